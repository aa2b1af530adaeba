"""FedALA: clients learn how much of each shared weight they take.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023
(arXiv 2212.01197), algorithm 1.

    θ̂_i     θ_i + (Θ − θ_i) ⊙ W_i, elementwise, in the p higher layers; Θ in the lower ones
    W_i      ← clip(W_i − η·∇_θ̂ L ⊙ (Θ − θ_i), 0, 1), from W_i = 1, on s % of the samples
    local    min over θ_i of  E_{(x, y) ~ D_i} ℓ(θ_i; x, y), starting from θ̂_i
    server   Θ ← Σ_i (n_i / n) · θ_i

Θ is the model that the client received, θ_i its own after its last training. A client learns W_i
from its second round on: until the loss has settled at first, and for one epoch in later rounds. A
layer is a module with weights of its own; p = 1 is the last one. When the loss has settled is ours:
the losses of the last ten epochs deviate by less than a threshold, or 100 epochs have passed.
Inference is by the client's model after its training, and by Θ before its first.
"""

from __future__ import annotations

from collections import deque
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

import protofl as pf
from protofl_plugins.shared import weights

LAST, MOST = 10, 100
"""Epochs whose losses are compared, and the most epochs."""


class FedALA:
    """Clients learn how much of each shared weight they take (Zhang et al., 2023)."""

    class Config(weights.ModelSharingConfig):
        """Options, with the paper's symbols; shared: aggregate, buffers."""

        p: int = pf.Field(
            1, ge=0, description="p, higher layers that are mixed; 0 takes Θ, as FedAvg does"
        )
        s: float = pf.Field(80.0, gt=0, le=100, description="s, percent of the samples for W")
        eta: float = pf.Field(1.0, gt=0, description="η of W; small values keep W near 1, thus Θ")
        threshold: float = pf.Field(
            0.1, gt=0, description="deviation of losses at which W has settled; large: ten epochs"
        )

    tasks = pf.datasets.Task.OF_HEADS
    native_widths = True
    asynchronous = "versions"
    uploads = weights.UPLOADS
    downloads = weights.DOWNLOADS
    ablations = {"without adaptive aggregation": "--set p=0"}

    requires = weights.MODEL.requires
    setup_server = weights.MODEL.setup_server  # Θ
    download_payload = weights.MODEL.download_payload  # Θ

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install Θ, until the client's first training."""
        if "W" not in client.state:
            weights.MODEL.receive(client)

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Learn W_i and install θ̂_i; in the client's first round W_i = 1 and θ̂_i = Θ."""
        if not client.received.under("model"):
            return {}
        names = higher_layers(client.module("model"), client.config.p)
        if "W" not in client.state:
            theta = dict(client.module("model").named_parameters())
            client.state["W"] = {name: torch.ones_like(theta[name]).detach() for name in names}
        elif names:
            adapt(client, names)
        else:
            weights.MODEL.receive(client)
        return {}

    upload_payload = weights.MODEL.upload_payload  # θ_i and n_i
    server_aggregate = weights.MODEL.server_aggregate  # Θ ← Σ_i (n_i / n) · θ_i
    global_models = weights.MODEL.global_models


def higher_layers(model: nn.Module, p: int) -> list[str]:
    """Return the names of the trained parameters of the last p layers."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    layers = [*dict.fromkeys(name.rpartition(".")[0] for name in names)]
    return [name for name in names if name.rpartition(".")[0] in layers[len(layers) - p :]]


@torch.enable_grad()
def adapt(client: pf.Client[FedALA.Config], names: list[str]) -> None:
    """Learn W_i of the named parameters, and install θ̂_i."""
    config, model = client.config, client.module("model")
    own = {name: p for name, p in model.named_parameters() if name in names}
    theta = {name: p.detach().clone() for name, p in own.items()}
    weights.MODEL.receive(client)
    difference = {name: p.detach() - theta[name] for name, p in own.items()}  # Θ − θ_i
    W = cast(dict[str, Tensor], client.state["W"])
    generator, losses = client.generator("samples"), deque[float](maxlen=LAST)
    count = max(1, round(config.s / 100 * client.num_samples))
    rows = torch.randperm(client.num_samples, generator=generator)[:count]
    model.train(count >= client.least_batch)
    first = not client.state.get("learned", False)
    for _ in range(MOST if first else 1):
        total = 0.0
        for batch in rows.tensor_split(max(1, count // client.batch_size)):
            mixed = {n: (theta[n] + difference[n] * W[n]).requires_grad_() for n in names}  # θ̂_i
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            scores = functional_call(model, {**mixed, **buffers}, client.train.inputs(batch))
            loss = client.task.loss(scores, client.train.y[batch.to(client.device)])
            gradients = torch.autograd.grad(loss, [*mixed.values()])
            for n, gradient in zip(names, gradients, strict=True):
                W[n] = (W[n] - config.eta * gradient * difference[n]).clamp(0, 1)
            total += float(loss.detach()) * len(batch) / count
        losses.append(total)
        if len(losses) == LAST and torch.tensor(losses).std(correction=0) < config.threshold:
            break
    client.state["W"], client.state["learned"] = W, True
    model.eval()
    with torch.no_grad():
        for n, p in own.items():
            p.copy_(theta[n] + difference[n] * W[n])
