"""APFL: clients mix the shared model with their own one, and learn in which proportion.

Deng et al., "Adaptive Personalized Federated Learning", 2020 (arXiv 2003.13461), algorithm 1 and
the adaptive update of α.

    mixed     v̄_i = α_i·v_i + (1 − α_i)·w_i
    shared    w_i ← w_i − η·∇f_i(w_i), from w
    own       v_i ← v_i − η·∇_v f_i(v̄_i) = v_i − η·α_i·∇f_i(v̄_i), continuing from the last round
    mixing    α_i ← α_i − η·⟨v_i − w_i, ∇f_i(v̄_i)⟩, once in a round, where w_i = w
    server    w ← 1/|S| · Σ_{i∈S} w_i over the clients of the round

f_i is the mean cross-entropy of a mini-batch. The three steps are taken at once, from the same w_i,
v_i and α_i. w_i is the client's model; v_i is a second net, which starts from the first w that the
client trains with. α_i is a parameter beside them, which learns at the first mini-batch of a round:
later w_i is as local as v_i, and α_i would tend to 0. The loss takes α_i clipped to [0, 1], and a
client clips its α_i after its training, as the paper asks for a share but has no projection.
Inference is by v̄_i with the w that the client received. The BatchNorm statistics of v̄_i are its
own.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

import protofl as pf
from protofl_plugins.shared import weights


class APFL:
    """Clients learn in which proportion they mix own and shared weights (Deng et al., 2020)."""

    class Config(weights.ModelSharingConfig, weights.ScopeConfig):
        """Options, with the paper's symbols; shared: scope, buffers."""

        alpha: float = pf.Field(
            0.5,
            ge=0,
            le=1,
            description="α_i at first, the share of v_i; 0 regresses to FedAvg, and 1 with "
            "adaptive=never to local training from w",
        )
        adaptive: Literal["round", "step", "never"] = pf.Field(
            "round",
            description="when α_i is learned: at the first mini-batch of a round, where w_i is w; "
            "at all, which favours w_i, as it learns too; or never",
        )
        aggregate: Literal["weighted", "uniform"] = pf.Field(
            "uniform", description="weights 1/|S| of the average, or n_i/n"
        )

    tasks = pf.datasets.Task.ALL
    native_widths = True
    asynchronous = "versions"
    terms = {"shared_ce": "f_i(w_i), cross-entropy of w_i", "ce": "f_i(v̄_i), cross-entropy of v̄_i"}
    uploads = {
        "model/*": "the shared model w_i after local training; gradients can be inverted from it. "
        "v_i and α_i stay private",
        "samples": "n_i, the number of training samples",
    }
    downloads = {"model/*": "w, the average of the clients' copies of the shared model"}
    ablations = {"without the adaptive α": "--set adaptive=never"}

    requires = weights.MODEL.requires
    setup_server = weights.MODEL.setup_server  # w

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Add the net of v_i, and α_i."""
        alpha = nn.Parameter(torch.tensor(client.config.alpha))
        client.add_module("own", deepcopy(client.module("model")))
        client.add_module("alpha", nn.ParameterList([alpha]))

    download_payload = weights.MODEL.download_payload  # w

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install w: w_i ← w, and until the client's first training v_i ← w."""
        weights.MODEL.receive(client)
        if client.received.under("model") and "trained" not in client.state:
            pf.models.load_weights(client.module("own"), client.received, "model")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Give the loss the steps in which α_i learns, as 1, and the others as 0."""
        learns = torch.full((client.steps,), float(client.config.adaptive == "step"))
        learns[:1] = float(client.config.adaptive != "never")
        return {"learns": pf.per_step(learns)}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """f_i(w_i) and f_i(v̄_i)."""
        scores = mixed_scores(client, batch.x, constants["learns"])
        return {
            "shared_ce": client.task.loss(output.logits, batch.y),
            "ce": client.task.loss(scores, batch.y),
        }

    @pf.hookimpl
    def after_training(self, client: pf.Client[Config]) -> None:
        """Clip α_i to [0, 1]."""
        client.state["trained"] = True
        for alpha in client.module("alpha").parameters():
            alpha.clamp_(0, 1)

    upload_payload = weights.MODEL.upload_payload  # w_i and n_i
    server_aggregate = weights.MODEL.server_aggregate  # w ← 1/|S| · Σ_i w_i

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Return the scores of v̄_i."""
        return mixed_scores(client, x)

    global_models = weights.MODEL.global_models


def mixed_scores(
    client: pf.Learner[APFL.Config], x: Tensor, learns: Tensor | float = 0.0
) -> Tensor:
    """Return the scores by v̄_i. Their gradient by w_i is 0, as w_i learns from f_i(w_i) alone.

    Args:
        client: The client.
        x: Samples, B×….
        learns: Factor of the gradient by α_i, 0 or 1.
    """
    own = client.module("own")
    (raw,) = client.module("alpha").parameters()
    alpha = raw.clamp(0, 1).detach() + learns * (raw - raw.detach())  # the gradient is not clipped
    pairs = zip(own.named_parameters(), client.parameters(), strict=True)
    mixed = {name: alpha * v + (1 - alpha) * w.detach() for (name, v), w in pairs}
    scores: Tensor = functional_call(own, mixed, (x,))
    return scores
