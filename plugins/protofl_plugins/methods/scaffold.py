"""SCAFFOLD: control variates correct the drift of clients.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020
(arXiv 1910.06378), algorithm 1.

    local     y_i ← y_i − η_l·(g_i(y_i) + c − c_i), K steps from y_i = x                  (Eq. 3)
    control   c_i⁺ = g_i(x)                                    option I                   (Eq. 4)
              c_i⁺ = c_i − c + (x − y_i)/(K·η_l)               option II
    up        Δy_i = y_i − x, Δc_i = c_i⁺ − c_i;   c_i ← c_i⁺
    server    x ← x + η_g·1/|S|·Σ_i Δy_i,   c ← c + 1/N·Σ_i Δc_i                          (Eq. 5)

S are the clients of the round, N is the number of all clients that can take part. c and all c_i
start at 0, and c_i stays on the client. g_i(x) of option I is the gradient of the client's mean
loss over all of its samples, by another pass in train mode. The correction is the loss term
⟨c − c_i, y_i − x⟩, whose gradient is c − c_i. BatchNorm statistics are averaged without η_g.
Inference is by the shared model.
"""

from __future__ import annotations

from typing import Literal, cast

import torch
from torch import Tensor
from torch.func import functional_call

import protofl as pf
from protofl_plugins.shared import weights

PARTS = ("model", "control")
"""x and c."""


class SCAFFOLD:
    """Control variates correct the drift of clients (Karimireddy et al., 2020)."""

    class Config(weights.BuffersConfig, weights.ScopeConfig):
        """Options, with the paper's symbols; shared: scope, buffers."""

        option: Literal["I", "II"] = pf.Field(
            "II",
            description="c_i of the next round: the gradient at x, or the mean gradient of the "
            "steps, without further cost",
        )
        server_rate: float = pf.Field(
            1.0, gt=0, description="η_g, the server's step size; 1 sets x to the mean of the y_i"
        )

    tasks = pf.datasets.Task.ALL
    native_widths = True
    asynchronous = True
    terms = {
        "ce": "cross-entropy",
        "correction": "⟨c − c_i, y_i − x⟩, the correction of Eq. 3",
    }
    uploads = {
        "model_update/*": pf.Key("as the parameter", "Δy_i; gradients can be inverted from it"),
        "control_update/*": pf.Key(
            "as the parameter", "Δc_i, the change of the client's mean gradient"
        ),
    }
    downloads = {
        "model/*": "x, the shared model",
        "control/*": pf.Key("as the parameter", "c, the mean of the clients' control variates"),
    }

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """Require a single architecture, and with option II steps that are plain SGD."""
        reasons = weights.MODEL.requires(run, config)
        if config.option == "II" and (run.optimizer != "sgd" or run.momentum or run.clip):
            steps = f"momentum {run.momentum:g}" if run.momentum else f"clip {run.clip:g}"
            steps = run.optimizer if run.optimizer != "sgd" else steps
            reasons.append(
                "option II takes (x − y_i)/(K·η_l) for the mean gradient of the steps, which is "
                "right for SGD without momentum and clipping, and the run has "
                f"{steps}; --optimizer sgd --momentum 0 --clip 0 works, or --set option=I"
            )
        return reasons

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build x, and c = 0."""
        start = weights.MODEL.setup_server(server)
        for key, tensor in [*start.items()]:
            if "/buffer/" not in key:
                start[key.replace("model", "control", 1)] = torch.zeros_like(tensor)
        return start

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send x and c."""
        (end,) = weights.sharing(server, [client_id])
        x, c = (weights.renamed(server.global_state, f"{part}{end}", part) for part in PARTS)
        return pf.Payload({**x, **c})

    receive = weights.MODEL.receive  # y_i ← x

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Keep x and c − c_i; with option I, take g_i(x)."""
        if client.config.option == "I":
            client.scratch["gradient"] = full_gradient(client)
        correction = _received(client, "control") - _own_control(client)
        return {"x": weights.flat(client.parameters()).detach(), "correction": correction}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """The loss whose gradient is g_i(y_i) + c − c_i, Eq. 3."""
        moved = weights.flat(client.parameters()) - constants["x"]
        return {
            "ce": client.task.loss(output.logits, batch.y),
            "correction": (constants["correction"] * moved).sum(),
        }

    @pf.hookimpl
    def after_training(self, client: pf.Client[Config]) -> None:
        """c_i⁺, Eq. 4."""
        c_i = _own_control(client)
        if client.config.option == "I":
            new = client.scratch["gradient"]
        elif not client.round_lr:  # a schedule at 0: no step, and so no mean gradient
            new = c_i
        else:
            x, c = _received(client, "model"), _received(client, "control")
            y_i = weights.flat(client.parameters()).detach()
            new = c_i - c + (x - y_i) / (client.steps * client.round_lr)
        client.scratch["change"] = new - c_i
        client.state["control"] = new

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send Δy_i and Δc_i."""
        x, y_i = client.received, pf.models.pack_weights(client.module("model"), "model")
        moved = {_update(key): y_i[key] - x[key] for key in x.select("model/*")}
        names = [name for name, _ in client.module("model").named_parameters()]
        c = {name: client.received[f"control/{name}"] for name in names}
        parts = client.scratch["change"].split([value.numel() for value in c.values()])
        changes = {
            f"control_update/{name}": part.view_as(value)
            for (name, value), part in zip(c.items(), parts, strict=True)
        }
        return pf.Payload({**moved, **changes})

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Eq. 5."""
        result = pf.Payload()
        everyone = weights.sharing(server, range(server.num_clients))
        for end, clients in weights.sharing(server, uploads).items():
            sent, N = [uploads[client] for client in clients], len(everyone[end])
            for key, old in server.global_state.select(*(f"{p}{end}/*" for p in PARTS)).items():
                changes = torch.stack([upload[_update(key)] for upload in sent])
                if not old.is_floating_point():  # BatchNorm's count of batches
                    result[key] = old + changes.amax(0)
                elif key.startswith("control"):
                    result[key] = old + changes.sum(0) / N
                else:
                    rate = 1.0 if "/buffer/" in key else server.config.server_rate
                    result[key] = old + rate * changes.mean(0)
        return result

    global_models = weights.MODEL.global_models


def _update(key: str) -> str:
    """Return the key of the change of ``model/NAME`` or ``control/NAME``, for any architecture."""
    part, _, name = key.partition("/")
    return f"{part.partition('@')[0]}_update/{name}"


def _received(client: pf.Client[SCAFFOLD.Config], part: str) -> Tensor:
    """Return x (``model``) or c (``control``) as one vector, in the order of the parameters."""
    names = [name for name, _ in client.module("model").named_parameters()]
    return weights.flat(client.received[f"{part}/{name}"] for name in names)


def _own_control(client: pf.Client[SCAFFOLD.Config]) -> Tensor:
    """Return c_i as one vector; 0 before the client's first round."""
    if "control" in client.state:
        return cast(Tensor, client.state["control"])
    return torch.zeros_like(weights.flat(client.parameters()))


@torch.enable_grad()
def full_gradient(client: pf.Client[SCAFFOLD.Config]) -> Tensor:
    """Return g_i(x), the gradient of the mean loss over all samples, as one vector.

    The model is in train mode, as in the steps that g_i(x) stands for; its BatchNorm statistics
    stay as they are. Batches have the run's size or up to twice as many samples.
    """
    model, n = client.module("model"), client.num_samples
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    for name in trained:
        parameters[name].requires_grad_()
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    model.train(n >= client.least_batch)
    for rows in torch.arange(n).tensor_split(max(1, n // client.batch_size)):
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        scores = functional_call(model, {**parameters, **buffers}, client.train.inputs(rows))
        y = client.train.y[rows.to(client.device)]
        loss = client.task.loss(scores, y, total=True) / n
        gradients = torch.autograd.grad(loss, [parameters[name] for name in trained])
        for name, gradient in zip(trained, gradients, strict=True):
            total[name] += gradient
    model.eval()
    return weights.flat(total.values()).detach()
