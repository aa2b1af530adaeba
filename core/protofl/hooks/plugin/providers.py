"""The defaults of hooks that a method does not provide."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from protofl.hooks.hookspecs import hookimpl
from protofl.hooks.views.batch import Batch, Output
from protofl.hooks.views.client import Client, Learner
from protofl.hooks.wire.payload import Payload


class Baseline:
    """Training of the client's own model by the loss of the task; nothing is sent."""

    terms = {"ce": "cross-entropy, or the task's loss, of the client's model on its own samples"}

    @hookimpl
    def download_payload(self) -> Payload:
        """Return an empty payload."""
        return Payload()

    @hookimpl
    def local_loss(self, client: Learner, batch: Batch, output: Output) -> Mapping[str, Tensor]:
        """Return the cross-entropy, or the loss of another task."""
        return {"ce": client.task.loss(output.logits, batch.y)}

    @hookimpl
    def upload_payload(self) -> Payload:
        """Return an empty payload."""
        return Payload()

    @hookimpl
    def server_aggregate(self) -> Mapping[str, Tensor]:
        """Return no changes."""
        return {}

    @hookimpl
    def server_train(self) -> Mapping[str, Tensor]:
        """Return no changes."""
        return {}

    @hookimpl
    def inference(self, client: Client, x: Tensor) -> Tensor:
        """Return the scores of the classifier h(f(x))."""
        scores: Tensor = client.head(client.features(x))
        return scores
