"""DS-FL: clients exchange probabilities of public samples, sharpened by the server.

Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient
Collaborative Training with Non-IID Private Data", IEEE TMC 2021, Algorithm 2.

    update      min over w_i of  E_{(x, y) ~ D_i} ℓ(z_i(x), y)
    predict     p_i(x) = softmax(z_i(x)) of the public samples
    aggregate   ERA: p̂(x) = softmax( (1/M · Σ_i p_i(x)) / T );  SA: the mean itself
    distil      min over w_i of  E_x −Σ_c p̂_c(x)·log softmax(z_i(x))_c

Clients distil after the server's step, and are evaluated after that. The server may train a model
of its own on the same p̂ (``server_model``). Inference is by the head.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl import functional as F
from protofl_plugins import public_distillation as D


class DSFL(D.ScoresDown, D.TrainsServerModel):
    """Clients exchange probabilities of public samples, sharpened (Itahara et al., 2021)."""

    class Config(D.PublicPhaseConfig):
        """Options, with the paper's symbols."""

        paper_epochs = {"local_epochs": 10, "public_epochs": 20}
        T: float = pf.Field(
            0.1, gt=0, description="T of ERA; small values give one class all, large ones none any"
        )
        aggregate: Literal["era", "mean"] = pf.Field(
            "era", description="entropy reduction, or the plain mean (SA)"
        )
        server_model: str | None = pf.Field(
            None, description="an architecture that the server trains on p̂ too; None for no model"
        )
        server_epochs: int | None = pf.Field(
            None, ge=1, description="its epochs. None: as public_epochs"
        )
        server_lr: float = pf.Field(1e-3, gt=0, description="learning rate of its Adam; ours")

    native_widths = True
    terms = {
        "ce": "cross-entropy on private samples",
        "distil": "cross-entropy to the aggregated probabilities of public samples",
    }
    uploads = {
        "public_probabilities": "probabilities of all public samples: what the model takes them for"
    }
    downloads = {"public_probabilities": "the clients' mean probabilities, sharpened"}
    scores = "public_probabilities"
    ablations = {"SA": "--set aggregate=mean"}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """Public samples, and a server model that the group can build."""
        wanted = config.server_model
        return D.without_public(run) + (D.without_server_model(run, wanted) if wanted else [])

    @pf.hookimpl
    def phases(self, config: Config) -> list[pf.Phase]:
        """Update and, after the server's step, distil."""
        distil = D.public_phase("distil", config, needs="public_probabilities", terms=("distil",))
        return [pf.Phase(terms=("ce",)), distil]

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """The server's own model, where one is asked for."""
        if server.config.server_model:
            server.modules["model"] = server.build(server.config.server_model)
        return pf.Payload()

    @pf.hookimpl
    def local_loss(self, batch: pf.Batch, output: pf.Output, given: pf.Given) -> pf.Terms:
        """Update, or distil."""
        if batch.phase == "distil":
            p_hat = given["scores"][batch.index]
            return {"distil": cross_entropy(output.logits, p_hat)}
        return {"ce": cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """p_i."""
        return pf.Payload(public_probabilities=D.public_logits(client).softmax(1))

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """p̂."""
        return pf.Payload(public_probabilities=self._aggregated(server, uploads))

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """The server's model distils p̂ as clients do."""
        if "model" not in server.modules:
            return pf.Payload()
        config, model = server.config, D.server_model(server)
        p_hat = self._aggregated(server, uploads)

        def loss(features: Tensor, logits: Tensor, index: Tensor) -> Tensor:
            return cross_entropy(logits, p_hat[index])

        epochs = config.server_epochs or config.public_epochs
        D.train_on_public(server, model, loss, epochs=epochs, lr=config.server_lr)
        return pf.Payload()

    @staticmethod
    def _aggregated(server: pf.Server, uploads: pf.Uploads) -> Tensor:
        p = D.stacked(uploads, "public_probabilities")
        return (
            F.entropy_reduction(p, server.config.T)
            if server.config.aggregate == "era"
            else p.mean(0)
        )
