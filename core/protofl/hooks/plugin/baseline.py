"""The do-nothing defaults: what runs where a method writes no hook of its own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn.functional import cross_entropy

from protofl.hooks.hookspecs.markers import hookimpl
from protofl.hooks.views.batch import Batch, Output
from protofl.hooks.views.client import Client
from protofl.hooks.wire.payload import Payload


class Baseline:
    """Cross-entropy training of the client's own model; nothing is sent."""

    terms = {"ce": "cross-entropy of the client's classifier on its own samples"}

    @hookimpl
    def download_payload(self) -> Payload:
        """Nothing."""
        return Payload()

    @hookimpl
    def local_loss(self, batch: Batch, output: Output) -> Mapping[str, Tensor]:
        """Cross-entropy."""
        return {"ce": cross_entropy(output.logits, batch.y)}

    @hookimpl
    def upload_payload(self) -> Payload:
        """Nothing."""
        return Payload()

    @hookimpl
    def server_aggregate(self) -> Mapping[str, Tensor]:
        """Nothing changes."""
        return {}

    @hookimpl
    def server_train(self) -> Mapping[str, Tensor]:
        """Nothing changes."""
        return {}

    @hookimpl
    def inference(self, client: Client, x: Tensor) -> Tensor:
        """Scores of the classifier h(f(x))."""
        scores: Tensor = client.head(client.features(x))
        return scores
