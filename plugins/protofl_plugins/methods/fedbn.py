"""FedBN: clients share one model and keep their BatchNorm layers.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021
(arXiv 2102.07623), algorithm 1.

    local     min over w_k of  E_{(x, y) ~ D_k} ℓ(w_k; x, y), starting from w outside of BatchNorm
    server    w^(l) ← 1/K · Σ_k w_k^(l) for every layer l that is not BatchNorm

A BatchNorm layer stays on its client whole: γ, β, and the running mean and variance. The server
builds the other layers and sends them from the first round. Clients train with cross-entropy and
infer by the shared layers and their own BatchNorm layers.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import protofl as pf
from protofl_plugins.shared import weights


class FedBN:
    """Clients share one model and keep their BatchNorm layers (Li et al., 2021)."""

    class Config(weights.SharingConfig):
        """Options."""

        aggregate: Literal["weighted", "uniform"] = pf.Field(
            "uniform", description="weights 1/K of the average, or n_k/n"
        )

    tasks = pf.datasets.Task.OF_HEADS
    native_widths = True
    asynchronous = "versions"
    uploads = {
        "model/*": "the layers other than BatchNorm after local training; gradients can be "
        "inverted from them",
        "samples": "n_k, the number of training samples",
    }
    downloads = {"model/*": "the average of the clients' layers other than BatchNorm"}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """Require a single architecture, with BatchNorm."""
        if reasons := weights.MODEL.requires(run, config):
            return reasons
        (architecture,) = run.architectures
        if batch_norm_names(run.unset_model(architecture)):
            return []
        suits = {"image": " (--models resnet18)", "series": " (--set models.only=fcn1d of cnn1d)"}
        return [
            f"it keeps BatchNorm layers on the clients, and {architecture.name} has none, so this "
            "would be fedavg with aggregate=uniform; an architecture with BatchNorm works"
            f"{suits.get(run.sample.kind, '')}, or fedavg"
        ]

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build w without BatchNorm layers."""
        return shared_layers(weights.built_model(server))

    download_payload = weights.MODEL.download_payload  # w

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install w: w_k^(l) ← w^(l) in layers other than BatchNorm."""
        if not client.received.under("model"):
            return
        model = client.module("model")
        shared = {key: client.received[key] for key in shared_layers(model)}
        pf.models.load_weights(model, pf.models.pack_weights(model, "model") | shared, "model")

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send w_k without BatchNorm layers, and n_k."""
        shared = shared_layers(client.module("model"))
        return pf.Payload(shared, samples=torch.tensor(client.num_samples))

    server_aggregate = weights.MODEL.server_aggregate  # w^(l) ← 1/K · Σ_k w_k^(l)


def batch_norm_names(model: nn.Module) -> set[str]:
    """Return the wire names of the parameters and buffers of all BatchNorm layers of a model."""
    names = set()
    for prefix, layer in model.named_modules():
        if isinstance(layer, _BatchNorm):
            names |= {f"model/{prefix}.{name}" for name, _ in layer.named_parameters()}
            names |= {f"model/buffer/{prefix}.{name}" for name, _ in layer.named_buffers()}
    return names


def shared_layers(model: nn.Module) -> pf.Payload:
    """Return copies of a model's weights ``model/*`` without those of BatchNorm layers."""
    own = batch_norm_names(model)
    packed = pf.models.pack_weights(model, "model")
    return pf.Payload({key: tensor for key, tensor in packed.items() if key not in own})
