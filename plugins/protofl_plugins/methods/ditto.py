"""Ditto: clients train a second model near the shared model.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021 (arXiv
2012.04221), Eq. 1 and algorithm 1, with FedAvg as the solver of G(·).

    shared    w_k: local steps on F_k(w_k), starting from w
    own       v_k ← v_k − η·(∇F_k(v_k) + λ·(v_k − w)), s steps, continuing from the last round
              (min over v_k of h_k(v_k; w) = F_k(v_k) + λ/2·‖v_k − w‖²)
    server    w ← w + Σ_k p_k·(w_k − w)

F_k is the client's mean cross-entropy, w the model that the client received, p_k = n_k/n. v_k is
the client's model; w_k is a second net that trains on the same batches, so s is the number of
steps of a round. The algorithm takes the first v_k as given: ``start``. Inference is by v_k.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Literal

import torch

import protofl as pf
from protofl_plugins.shared import weights


class Ditto:
    """Clients train a second model near the shared model (Li et al., 2021)."""

    class Config(weights.ModelSharingConfig, weights.ScopeConfig):
        """Options, with the paper's symbols; shared: scope, aggregate, buffers."""

        lambda_: float = pf.Field(
            1.0,
            alias="lambda",
            ge=0,
            description="λ, weight of the distance to w; 0 regresses to local training, large "
            "values to the shared model. λ·η above 2 diverges",
        )
        start: Literal["received", "initial"] = pf.Field(
            "received",
            description="v_k at first: the first w that the client receives, or the initial w",
        )

    tasks = pf.datasets.Task.ALL
    native_widths = True
    asynchronous = "versions"
    terms = {
        "ce": "cross-entropy of v_k",
        "prox": "λ/2·‖v_k − w‖², Eq. 1",
        "shared_ce": "cross-entropy of w_k",
    }
    uploads = {
        "model/*": "the shared model w_k after local training; gradients can be inverted from it. "
        "The client's own model stays private",
        "samples": "n_k, the number of training samples",
    }
    downloads = {"model/*": "w, the average of the clients' copies of the shared model"}

    requires = weights.MODEL.requires
    setup_server = weights.MODEL.setup_server  # w

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Add the net of w_k; v_k ← the initial w, if it starts there."""
        model = client.module("model")
        client.add_module("shared", deepcopy(model))
        if client.config.start == "initial":
            model.load_state_dict(client.build(client.architecture).state_dict())
            client.state["started"] = True

    download_payload = weights.MODEL.download_payload  # w

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install w: w_k ← w, and in the first round of the client v_k ← w."""
        if not client.received.under("model"):
            return
        pf.models.load_weights(client.module("shared"), client.received, "model")
        if not client.state.get("started"):
            weights.MODEL.receive(client)
            client.state["started"] = True

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Keep w as it was received."""
        return {"w": weights.flat(client.module("shared").parameters()).detach()}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """h_k(v_k; w) and F_k(w_k)."""
        distance = (weights.flat(client.parameters()) - constants["w"]).square().sum()
        return {
            "ce": client.task.loss(output.logits, batch.y),
            "prox": client.config.lambda_ / 2 * distance,
            "shared_ce": client.task.loss(client.module("shared")(batch.x), batch.y),
        }

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send w_k and n_k."""
        buffers = weights.averages_buffers(client.config)
        w_k = pf.models.pack_weights(client.module("shared"), "model", buffers=buffers)
        return pf.Payload(w_k, samples=torch.tensor(client.num_samples))

    server_aggregate = weights.MODEL.server_aggregate  # w ← Σ_k p_k·w_k
    global_models = weights.MODEL.global_models
