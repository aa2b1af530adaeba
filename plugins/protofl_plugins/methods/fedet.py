"""FedET: small client models teach a large server model, whose last layer goes back to them.

Cho et al., "Heterogeneous Ensemble Knowledge Transfer for Training Large Models in Federated
Learning", IJCAI 2022, Algorithm 1.

    local      min over w_i of  E_{(x, y) ~ D_i} ℓ(w_i; x, y), starting from w_g
    consensus  α_i(x) = Var(z_i(x)) / Σ_k Var(z_k(x)),  ȳ(x) = argmax Σ_i α_i(x)·z_i(x)
    diversity  s_div(x) = Σ_{i in V} α_i(x)·z_i(x) / Σ_{i in V} α_i(x),
               V the clients whose argmax z_i(x) is not ȳ(x)
    server     min over w_s of  E_x CE(z_s(x), ȳ(x)) + λ·KL(softmax(s_div(x)) ‖ softmax(z_s(x)))
    layer      the server's before: 1/M · Σ_i that of the clients; w_g's afterwards: the server's
    w_g        1/M_g · Σ_i w_i over the round's clients of architecture g

x are public samples, on the server alone. Var is over classes. On a sample where no client dissents
the λ term is 0. The layer that all share is here the classifier on the K features. The server
trains by SGD with momentum 0.9; with ``epochs=paper`` by FedPKD's Adam at 0.001 ("for each client
and server training", its section V.A). Its model persists; clients infer by their architecture's.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import architecture_models, public_data, weights

MOMENTUM = 0.9
"""Momentum of the server's SGD."""


class FedET:
    """Small client models teach a large server model, share its last layer (Cho et al., 2022)."""

    class Config(architecture_models.ArchitecturesConfig):
        """Options, with the paper's symbols; shared: epochs, server_epochs."""

        paper_epochs = {"local_epochs": 10, "server_epochs": 10}
        by_epochs = {"server_optimizer": ("sgd", "adam"), "server_lr": (5e-3, 1e-3)}
        lambda_: float = pf.Field(
            0.05, alias="lambda", ge=0, description="λ of the diversity term; 0 trains by ȳ alone"
        )
        server_model: str | None = pf.Field(
            None, description="the server's architecture. None: the group's (resnet56)"
        )
        server_optimizer: Literal["sgd", "adam"] = pf.Field(
            None, description="the server's optimiser. None: sgd, or adam with epochs=paper"
        )
        server_lr: float = pf.Field(
            None, gt=0, description="its learning rate. None: 0.005, or 0.001 with epochs=paper"
        )
        aggregate: Literal["weighted", "uniform"] = pf.Field(
            "uniform", description="weights n_i/n of w_g, or 1/M"
        )

    needs_public = True
    asynchronous = "versions"
    check_options = {"aggregate": "weighted"}  # with the sample counts that only it sends
    uploads = {
        "model/*": "the whole model after local training; gradients can be inverted from it",
        "samples": "n_i, the number of training samples (only with aggregate=weighted)",
    }
    downloads = {"model/*": "the mean model of the client's architecture, with the server's layer"}
    ablations = {"without diversity": "--set lambda=0"}

    run_defaults = staticmethod(public_data.paper_defaults)

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """Require public samples, a server model, and one classifier for all."""
        reasons = public_data.without_public(run)
        reasons += public_data.without_server_model(run, config.server_model)
        models = {a.name: a for a in (*run.server_architectures, *run.architectures)}
        server = models.get(config.server_model or run.server_architecture)
        heads = dict.fromkeys(a.head for a in (*run.architectures, *([server] if server else [])))
        if len(heads) > 1:
            reasons.append(
                f"clients and server share the classifier, and those of {run.group} differ "
                f"({', '.join(heads)}); a group with one classifier works (--models htfe8), or "
                "a method that shares none (fedpkd, fedmd, ds-fl, feddf)"
            )
        return reasons

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build w_s, and w_g of every architecture, with the layer of w_s."""
        config = server.config
        model = server.modules["model"] = server.build(config.server_model or server.architecture)
        start = architecture_models.initial_models(server)
        layer = _layer(pf.models.pack_weights(model, "model"))
        for name in architecture_models.architectures_of(server, server.clients):
            start.update(weights.renamed(layer, "model", f"model@{name}"))
        return start

    download_payload = staticmethod(architecture_models.model_of)
    receive = weights.MODEL.receive  # w_i ← w_g
    upload_payload = staticmethod(architecture_models.trained_model)
    server_aggregate = staticmethod(architecture_models.mean_models)

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Put the clients' mean layer into w_s, train w_s, and put its layer into every w_g."""
        config, model = server.config, public_data.server_model(server)
        layers = [_layer(upload) for upload in uploads.values()]
        server_weights = pf.models.pack_weights(model, "model")
        pf.models.load_weights(
            model, server_weights | pf.models.average_weights(layers, "model"), "model"
        )

        z = architecture_models.public_logits_of(server, uploads)
        label = F.ensemble_logits(z).argmax(1)  # ȳ
        s_div, dissent = _dissenting(z, label)
        lambda_: float = config.lambda_

        def loss(
            features: Tensor, logits: Tensor, label: Tensor, s_div: Tensor, dissent: Tensor
        ) -> Tensor:
            share = dissent.to(logits.dtype).mean()
            diversity = F.kl_divergence(logits[dissent], s_div[dissent]) * share
            return cross_entropy(logits, label) + lambda_ * diversity

        epochs, lr = config.server_epochs, config.server_lr
        momentum = MOMENTUM if config.server_optimizer == "sgd" else None
        public_data.train_on_public(
            server,
            model,
            loss,
            of=(label, s_div, dissent),
            epochs=epochs,
            lr=lr,
            momentum=momentum,
        )

        layer, sent = _layer(pf.models.pack_weights(model, "model")), pf.Payload()
        for name in dict.fromkeys(k.split("/")[0] for k in server.global_state if "@" in k):
            sent.update(weights.renamed(layer, "model", name))
        return sent

    global_models = staticmethod(public_data.server_models)


def _dissenting(z: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Return s_div, [N, C], and the samples on which some client dissents, [N] bool.

    Args:
        z: z_i of M clients, [M, N, C].
        label: ȳ, [N].
    """
    alpha = F.variance_weights(z) * (z.argmax(2) != label)  # 0 for clients outside V
    total = alpha.sum(0)
    dissent = total > 0
    s_div = (alpha.unsqueeze(2) * z).sum(0) / total.masked_fill(~dissent, 1).unsqueeze(1)
    return s_div, dissent


def _layer(model: pf.Payload) -> pf.Payload:
    """Return the classifier's weights of a model."""
    return model.select("model/head.*")
