"""Weight sharing of FedAvg, FedProx and LG-FedAvg.

w ← Σ_i (n_i / n) · w_i        (FedPKD Eq. 1)
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import nn

import protofl as pf


class SharingConfig(pf.Config):
    """Weights of clients in the mean."""

    aggregate: Literal["weighted", "uniform"] = pf.Field(
        "weighted", description="weights n_i/n of the average, or 1/M"
    )


class ModelSharingConfig(SharingConfig):
    """Options of the aggregation of whole models."""

    buffers: Literal["average", "local"] = pf.Field(
        "average", description="average BatchNorm statistics too, or keep them on the client"
    )


class SharedPart:
    """Hooks that send what the server knows of a part of the model down, and install it.

    ``part`` is ``model`` or ``head``.
    """

    part: ClassVar[str] = "model"

    @pf.hookimpl
    def download_payload(self, server: pf.Server, client_id: int) -> pf.Payload:
        """The shared weights."""
        return server.knowledge.select(f"{self.part}/*")

    @pf.hookimpl
    def receive(self, client: pf.Client) -> None:
        """Install the shared weights in the client's model."""
        if client.received.under(self.part):
            pf.models.load_weights(client.module(self.part), client.received, self.part)


class SharedWeights(SharedPart):
    """`SharedPart` of which clients send theirs, and the server averages them."""

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Any]) -> pf.Payload:
        """The client's weights, and n_i."""
        buffers = _sends_buffers(client.config)
        payload = pf.models.pack_weights(client.module(self.part), self.part, buffers=buffers)
        payload["samples"] = torch.tensor(client.num_samples)
        return payload

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Any], uploads: pf.Uploads) -> pf.Payload:
        """Σ_i (n_i / n) · w_i over the round's clients."""
        samples = torch.stack([upload["samples"] for upload in uploads.values()])
        weights = None if server.config.aggregate == "uniform" else samples
        return pf.models.average_weights(list(uploads.values()), self.part, weights)


class SharedModel(SharedWeights):
    """`SharedWeights` of whole models, which the server builds and sends from round 0.

    With the option ``buffers = local`` BatchNorm statistics stay on the client.
    """

    native_widths = True
    uploads = {
        "model/*": "the whole model after local training; gradients can be inverted from it",
        "samples": "n_i, the number of training samples",
    }
    downloads = {"model/*": "the average of the clients' models"}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Require a single architecture."""
        if run.homogeneous:
            return []
        names = ", ".join(a.name for a in run.architectures)
        one = "--models cnn4, resnet18"
        if run.sample.kind != "image":
            one = f"--set models.only={run.architectures[0].name}"
        return [
            f"it averages whole models, and the clients have {len(run.architectures)} "
            f"architectures ({names}); a homogeneous group works ({one}), or a "
            "method for heterogeneous models (fedproto, fedtgp, fedsa)"
        ]

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Any]) -> pf.Payload:
        """w, as the server builds it."""
        model = server.build(server.clients[0].architecture)
        return pf.models.pack_weights(model, "model", buffers=_sends_buffers(server.config))

    @pf.hookimpl
    def global_models(self, server: pf.Server[Any]) -> dict[str, nn.Module]:
        """w; none where BatchNorm statistics stay on the clients, as it can't predict without."""
        model = server.build(server.clients[0].architecture)
        if not _sends_buffers(server.config) and any(True for _ in model.buffers()):
            return {}
        pf.models.load_weights(model, server.knowledge, "model")
        return {"model": model}


def _sends_buffers(config: SharingConfig) -> bool:
    return not isinstance(config, ModelSharingConfig) or config.buffers == "average"
