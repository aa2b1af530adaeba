"""MOON: clients contrast their features with those of the shared and of their last local model.

Li et al., "Model-Contrastive Federated Learning", CVPR 2021 (arXiv 2103.16257), algorithm 1.

    z, z_glob, z_prev   features of x by w_i, by w, and by w_i^{t−1}
    ℓ_con     −log( exp(sim(z, z_glob)/τ) / (exp(sim(z, z_glob)/τ) + exp(sim(z, z_prev)/τ)) )
                                                                                          (Eq. 3)
    local     min over w_i of  E ℓ_sup(w_i; x, y) + μ·ℓ_con(w_i; w_i^{t−1}; w; x), from w (Eq. 4, 5)
    server    w ← Σ_i (n_i / n) · w_i

sim is the cosine similarity, w the model that the client received, and w_i^{t−1} the client's model
at the end of its last training. Features are what the head receives. w and w_i^{t−1} are frozen and
in eval mode. Inference is by the shared model.

The paper does not say what w_i^{t−1} is in a client's first round: ``first``. The published code
(main.py of github.com/QinbinLi/MOON, 8fcba3c) has no ℓ_con in the first round of the run. From the
second one on, it takes the client's initial net if the client has never been trained.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Literal, cast

from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

import protofl as pf
from protofl_plugins.shared import weights


class MOON:
    """Clients contrast features of the shared and their last local model (Li et al., 2021)."""

    class Config(weights.ModelSharingConfig, pf.VariantConfig):
        """Options, with the paper's symbols; shared: aggregate, buffers."""

        official = {"drop_last": True}
        deviations = {
            "first": pf.Deviation(
                "Eq. 3",
                "none",
                "initial",
                "clients that were not in the run's first round contrast with their initial net",
            ),
        }
        mu: float = pf.Field(
            1.0,
            ge=0,
            description="μ, weight of ℓ_con; 0 regresses to FedAvg. The paper tunes 0.1, 1, 5 and "
            "10",
        )
        temperature: float = pf.Field(
            0.5,
            gt=0,
            description="τ; small values make ℓ_con a hinge between the two similarities, with "
            "large ones it hardly has a gradient",
        )
        first: Literal["none", "initial"] = pf.Field(
            None,
            description="w_i^{t−1} in a client's first round: no ℓ_con, or the client's own "
            "initial net; in the run's first round no ℓ_con with both",
        )

    tasks = pf.datasets.Task.OF_HEADS
    native_widths = True
    asynchronous = "versions"
    terms = {
        "ce": "ℓ_sup, cross-entropy",
        "contrast": "μ·ℓ_con, Eq. 3, from the client's second round on",
    }
    uploads = weights.UPLOADS
    downloads = weights.DOWNLOADS

    requires = weights.MODEL.requires
    setup_server = weights.MODEL.setup_server  # w

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Add the frozen nets of w and w_i^{t−1}."""
        model = client.module("model")
        if client.config.first == "initial":
            client.state["initial"] = pf.models.pack_weights(model, "model")
        for name in ("received", "previous"):
            client.add_module(name, deepcopy(model), train=False)

    download_payload = weights.MODEL.download_payload  # w
    receive = weights.MODEL.receive  # w_i ← w

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Load w and w_i^{t−1} into the frozen nets."""
        previous = client.state.get("previous")
        if previous is None and client.round > 0:
            previous = client.state.get("initial")
        if previous is None:
            return {}
        w = pf.models.pack_weights(client.module("model"), "model")
        for name, tensors in (("received", w), ("previous", previous)):
            pf.models.load_weights(client.module(name), tensors, "model")
        return {"contrasts": True}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Eq. 4."""
        config, z = client.config, output.features
        terms = {"ce": client.task.loss(output.logits, batch.y)}
        if constants:
            z_glob, z_prev = (
                _net(client, name).features(batch.x) for name in ("received", "previous")
            )
            terms["contrast"] = config.mu * contrast_loss(z, z_glob, z_prev, config.temperature)
        return terms

    @pf.hookimpl
    def after_training(self, client: pf.Client[Config]) -> None:
        """Keep w_i for the client's next round, as its w_i^{t−1}."""
        client.state["previous"] = pf.models.pack_weights(client.module("model"), "model")
        client.state.pop("initial", None)

    upload_payload = weights.MODEL.upload_payload  # w_i and n_i
    server_aggregate = weights.MODEL.server_aggregate  # w ← Σ_i (n_i / n) · w_i
    global_models = weights.MODEL.global_models


def _net(client: pf.Learner[MOON.Config], name: str) -> pf.models.SplitModel:
    return cast(pf.models.SplitModel, client.module(name))


def contrast_loss(z: Tensor, z_glob: Tensor, z_prev: Tensor, temperature: float) -> Tensor:
    """Return the mean of ℓ_con (Eq. 3) over a batch: softplus((sim_prev − sim_glob)/τ).

    Args:
        z: Features by the client's model, B×K.
        z_glob: Features by the received model, B×K.
        z_prev: Features by the client's last model, B×K.
        temperature: τ.
    """
    closer = cosine_similarity(z, z_prev, dim=1) - cosine_similarity(z, z_glob, dim=1)
    return softplus(closer / temperature).mean()
