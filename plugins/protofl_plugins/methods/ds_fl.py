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
from protofl_plugins.shared import public_data


class DSFL:
    """Clients exchange probabilities of public samples, sharpened (Itahara et al., 2021)."""

    class Config(public_data.PublicPhaseConfig):
        """Options, with the paper's symbols; shared: epochs, public_epochs."""

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
    needs_public = True
    terms = {
        "ce": "cross-entropy on private samples",
        "distil": "cross-entropy to the aggregated probabilities of public samples",
    }
    uploads = {
        "public_probabilities": "probabilities of all public samples: what the model takes them for"
    }
    downloads = {"public_probabilities": "the clients' mean probabilities, sharpened"}
    ablations = {"SA": "--set aggregate=mean"}

    run_defaults = staticmethod(public_data.paper_defaults)

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """Require public samples, and a server model that the group can build."""
        reasons = public_data.without_public(run)
        if config.server_model:
            reasons += public_data.without_server_model(run, config.server_model)
        return reasons

    @pf.hookimpl
    def phases(self, config: Config) -> list[pf.Phase]:
        """Update and, after the server's step, distil."""
        terms = ("distil",)
        distil = public_data.public_phase(
            "distil", config, needs="public_probabilities", terms=terms
        )
        return [pf.Phase(terms=("ce",)), distil]

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build the server's own model, if the options ask for one."""
        if server.config.server_model:
            server.modules["model"] = server.build(server.config.server_model)
        return pf.Payload()

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send the p̂; nothing before there are any."""
        return server.global_state.select("public_probabilities", "public_index")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Give the loss the p̂, once there are any."""
        return public_data.received_scores(client, "public_probabilities")

    @pf.hookimpl
    def local_loss(self, batch: pf.Batch, output: pf.Output, constants: pf.LossData) -> pf.Terms:
        """Update, or distil."""
        if batch.phase == "distil":
            p_hat = constants["scores"][batch.index]
            return {"distil": cross_entropy(output.logits, p_hat)}
        return {"ce": cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Predict: send p_i = softmax(z_i)."""
        return pf.Payload(public_probabilities=public_data.public_logits(client).softmax(1))

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Aggregate: p̂ by ERA or SA."""
        return pf.Payload(public_probabilities=_aggregated(uploads, server.config))

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Distil p̂ into the server's model, as clients do."""
        if "model" not in server.modules:
            return pf.Payload()
        config, p_hat = server.config, _aggregated(uploads, server.config)

        def loss(features: Tensor, logits: Tensor, p_hat: Tensor) -> Tensor:
            return cross_entropy(logits, p_hat)

        public_data.train_on_public(
            server,
            public_data.server_model(server),
            loss,
            of=(p_hat,),
            epochs=config.server_epochs or config.public_epochs,
            lr=config.server_lr,
        )
        return pf.Payload()

    global_models = staticmethod(public_data.server_models)


def _aggregated(uploads: pf.Uploads, config: DSFL.Config) -> Tensor:
    """Return p̂, [N, C]: ERA = softmax( (1/M · Σ_i p_i) / T ), or SA, the mean itself."""
    mean = public_data.stacked(uploads, "public_probabilities").mean(0)
    return (mean / config.T).softmax(1) if config.aggregate == "era" else mean
