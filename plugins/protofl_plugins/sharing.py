"""Sharing weights: what FedAvg, FedProx and LG-FedAvg have in common.

w ← Σ_i (n_i / n) · w_i        (FedPKD Eq. 1)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import protofl as pf
import torch


class SharingConfig(pf.Config):
    """How weights are averaged."""

    aggregate: Literal["weighted", "uniform"] = pf.Field(
        "weighted", description="weights n_i/n of the average, or 1/M"
    )


class SharedWeights:
    """Hooks that send a part of the model up, average it, and install the average.

    ``part`` is ``model`` or ``head``. With the option ``buffers = local`` BatchNorm statistics
    stay on the client.
    """

    part: ClassVar[str] = "model"

    @pf.hookimpl
    def download_payload(self, server: pf.Server, client_id: int) -> pf.Payload:
        """The average, once there is one."""
        start = f"{self.part}/"
        return pf.Payload({k: v for k, v in server.knowledge.items() if k.startswith(start)})

    @pf.hookimpl
    def receive(self, client: pf.Client) -> None:
        """Install the average in the client's model."""
        if client.received.under(self.part):
            pf.load_weights(client.module(self.part), client.received, self.part)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client) -> pf.Payload:
        """The client's weights, and n_i."""
        buffers = getattr(client.config, "buffers", "average") == "average"
        payload = pf.pack_weights(client.module(self.part), self.part, buffers=buffers)
        payload["samples"] = torch.tensor(client.num_samples)
        return payload

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server, uploads: Mapping[int, pf.Payload]) -> pf.Payload:
        """Σ_i (n_i / n) · w_i over the round's clients."""
        samples = torch.stack([upload["samples"] for upload in uploads.values()])
        weights = None if server.config.aggregate == "uniform" else samples
        return pf.average_weights(list(uploads.values()), self.part, weights)


def needs_one_architecture(run: pf.RunInfo) -> list[str]:
    """The reason why whole models can't be averaged in a heterogeneous group."""
    if run.homogeneous:
        return []
    names = ", ".join(a.name for a in run.architectures)
    return [
        f"it averages whole models, and the clients have {len(run.architectures)} architectures "
        f"({names}); a homogeneous group works (--models cnn4, resnet18), or a method for "
        "heterogeneous models (fedproto, fedtgp, fedsa)"
    ]
