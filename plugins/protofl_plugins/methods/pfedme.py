"""pFedMe: clients train the shared model by the Moreau envelope of their loss.

T. Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020 (arXiv
2006.08848), algorithm 1.

    envelope  F_i(w) = min_θ f_i(θ) + λ/2·‖θ − w‖²,  ∇F_i(w) = λ·(w − θ_i(w))
    inner     θ ← θ − a·(∇f_i(θ) + λ·(θ − w_i)), K steps on one mini-batch, to θ̃_i
    local     w_i ← w_i − η·λ·(w_i − θ̃_i), R steps from w_i = w
    server    w ← (1 − β)·w + β·1/|S|·Σ_{i∈S} w_i over the clients of the round

f_i is the mean cross-entropy of a mini-batch, η the run's learning rate. The algorithm asks for any
θ̃_i close to the minimum; as in the published code, θ starts from w in a round, and from the last
θ̃_i in its next steps. It is a second net, whose rate is a. Both nets step by the loss that has
these steps as its gradient, which needs plain SGD. Inference is by the last θ̃_i of the client, and
before its first training by w. The BatchNorm statistics of θ̃_i are its own.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call, grad

import protofl as pf
from protofl_plugins.shared import weights


class PFedMe:
    """Clients train the shared model by their loss's Moreau envelope (T. Dinh et al., 2020)."""

    class Config(weights.ModelSharingConfig, weights.ScopeConfig):
        """Options, with the paper's symbols; shared: scope, buffers."""

        lambda_: float = pf.Field(
            15.0,
            alias="lambda",
            gt=0,
            description="λ, weight of the distance of θ to w; small values leave w where it is, "
            "and large ones keep θ at w. λ·a and λ·η above 2 diverge",
        )
        K: int = pf.Field(5, ge=1, description="K, inner steps on each mini-batch")
        inner_rate: float = pf.Field(
            0.09, gt=0, description="a, rate of the inner steps; --lr is η, the rate of w"
        )
        beta: float = pf.Field(
            1.0, gt=0, description="β, the server's step towards the mean of w_i; 1 takes the mean"
        )
        aggregate: Literal["weighted", "uniform"] = pf.Field(
            "uniform", description="weights 1/|S| of the average of w_i, or n_i/n"
        )

    tasks = pf.datasets.Task.ALL
    native_widths = True
    asynchronous = "versions"
    terms = {
        "envelope": "λ/2·‖w_i − θ̃_i‖², whose gradient is that of F_i",
        "inner": "1/(2a)·‖θ − θ̃_i‖², whose step takes θ to θ̃_i",
    }
    uploads = {
        "model/*": "the shared model w_i after local training; gradients can be inverted from it. "
        "θ̃_i stays private",
        "samples": "n_i, the number of training samples",
    }
    downloads = {"model/*": "w, the average of the clients' copies of the shared model"}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """Require a single architecture, and plain SGD."""
        reasons = weights.MODEL.requires(run, config)
        if run.optimizer != "sgd" or run.momentum or run.clip:
            reasons.append(
                "its steps are plain SGD, and the run has another optimiser, momentum or "
                "clipping; --optimizer sgd --momentum 0 --clip 0 works"
            )
        return reasons

    setup_server = weights.MODEL.setup_server  # w

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Add the net of θ."""
        model = deepcopy(client.module("model"))
        client.add_module("theta", model, lr=client.config.inner_rate)

    download_payload = weights.MODEL.download_payload  # w

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install w: w_i ← w, and until the client's first training θ ← w."""
        weights.MODEL.receive(client)
        if "trained" not in client.state:
            start(client)

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Set θ ← w, and give the loss a with the schedule of the learning rate."""
        start(client)
        rate = client.config.inner_rate * client.round_lr / client.lr
        return {"a": torch.tensor(rate), "pull": torch.tensor(0.5 / rate if rate else 0.0)}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, constants: pf.LossData
    ) -> pf.Terms:
        """The loss whose gradient has the steps of w_i and θ."""
        lambda_, net = client.config.lambda_, client.module("theta")
        w, theta = client.parameters(), dict(net.named_parameters())
        near = {name: p.detach() for name, p in theta.items()}

        def f(near: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            return client.task.loss(functional_call(net, near | buffers, (batch.x,)), batch.y)

        for _ in range(client.config.K):
            gradients = grad(f)(near, dict(net.named_buffers()))
            near = {
                name: p - constants["a"] * (gradients[name] + lambda_ * (p - q.detach()))
                for (name, p), q in zip(near.items(), w, strict=True)
            }
        end = weights.flat(near.values())
        return {
            "envelope": lambda_ / 2 * (weights.flat(w) - end).square().sum(),
            "inner": constants["pull"] * (weights.flat(theta.values()) - end).square().sum(),
        }

    @pf.hookimpl
    def after_training(self, client: pf.Client[Config]) -> None:
        """Keep θ̃_i for inference from now on."""
        client.state["trained"] = True

    upload_payload = weights.MODEL.upload_payload  # w_i and n_i

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Step from w towards the mean of w_i by β; BatchNorm statistics take the mean."""
        result = weights.MODEL.server_aggregate(server, uploads)
        for key in (key for key in result if "/buffer/" not in key):
            w = server.global_state[key]
            result[key] = w + server.config.beta * (result[key] - w)
        return result

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Return the scores of θ̃_i."""
        scores: Tensor = client.module("theta")(x)
        return scores

    global_models = weights.MODEL.global_models


def start(client: pf.Client[PFedMe.Config]) -> None:
    """Set θ ← w; does nothing without a download."""
    if client.received.under("model"):
        pf.models.load_weights(client.module("theta"), client.received, "model")
