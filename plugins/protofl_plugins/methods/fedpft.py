"""FedPFT: clients send Gaussian mixtures of their features once; the server trains a head on draws.

Beitollahi et al., "Parametric Feature Transfer: One-shot Federated Learning with Foundation
Models", 2024 (arXiv 2402.01862); defaults as in the authors' baseline for Flower.

    client    a mixture of G Gaussians for each class c of more than G samples, by expectation
              maximisation: w_g, μ_g, Σ_g; and the number N_c of samples
    server    N_c samples x̃ of each mixture of each client
              min over W, b of  E ℓ(W·x̃ + b, c)
    score     W·f(x) + b
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl_plugins.shared import feature_statistics as statistics
from protofl_plugins.shared import gaussian_mixtures
from protofl_plugins.shared.gaussian_mixtures import Covariance, Mixtures

REVEALS = "{} of each class's features, as exactly as the components are many: those of a class "
REVEALS += "of few samples tell the samples, to whoever has the extractor; which protofl leak does "
REVEALS += "not measure"


class FedPFT:
    """A head trained on samples of the clients' Gaussian mixtures (Beitollahi et al., 2024)."""

    class Config(statistics.StatisticsConfig):
        """Options, as the authors' code names them; shared: scope."""

        n_mixtures: int = pf.Field(
            1, ge=1, description="G, Gaussians of a class; many describe single samples"
        )
        cov_type: Covariance = pf.Field(
            "spherical",
            description="Σ_g: one variance, one for each feature, or a full covariance",
        )
        max_iter: int = pf.Field(
            10000, ge=1, description="most iterations of expectation maximisation"
        )
        epochs: int = pf.Field(
            50, ge=0, description="passes of the server over the samples; 0 leaves W at 0"
        )
        server_batch_size: int = pf.Field(32, ge=1, description="samples in a mini-batch")
        server_lr: float = pf.Field(1e-4, gt=0, description="learning rate of AdamW")

    uploads = {
        "mixture_weights": pf.Key(
            "[n, G]", "w_g of the client's classes", by_class=True, reveals=REVEALS.format("Shares")
        ),
        "mixture_means": pf.Key(
            "[n, G, K]",
            "μ_g of the client's classes",
            by_class=True,
            reveals=REVEALS.format("Means"),
        ),
        "mixture_covariances": pf.Key(
            "[n, G, …]",
            "Σ_g of the client's classes: σ² [n, G], variances [n, G, K] or full [n, G, K, K]",
            by_class=True,
            reveals=REVEALS.format("Variances"),
        ),
        "counts": "N_c of the client",
        "classes": "which classes the client has more than G samples of",
    }
    upload_rules = dict.fromkeys(uploads, "optional")  # a client sends them once
    downloads = statistics.LINEAR_HEAD  # W and b

    run_defaults = staticmethod(statistics.one_shot)
    phases = staticmethod(statistics.no_training)
    download_payload = staticmethod(statistics.head_of)  # W and b

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """A mixture of each class with more samples than components, once."""
        if "kept" in client.received:
            return pf.Payload()
        config, (features, labels) = client.config, client.train_features()
        counts = client.class_counts.to(labels.device)
        classes = (counts > config.n_mixtures).nonzero().squeeze(1)
        G, K = config.n_mixtures, features.shape[1]
        ends = {"spherical": (G,), "diag": (G, K), "full": (G, K, K)}[config.cov_type]
        found = Mixtures(*(features.new_zeros(0, *end) for end in ((G,), (G, K), ends)))
        if len(classes):
            generator = client.generator("seeds")
            found = gaussian_mixtures.fit(
                features, labels, classes, G, config.cov_type, config.max_iter, generator
            )
        return pf.Payload(
            mixture_weights=found.weights.to(features),
            mixture_means=found.means.to(features),
            mixture_covariances=found.covariances.to(features),
            counts=counts[classes],
            classes=classes,
        )

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """W and b, trained on samples of all mixtures so far."""
        C = server.num_classes

        def read(upload: pf.Payload) -> Mapping[str, Tensor]:
            names = ("mixture_weights", "mixture_means", "mixture_covariances", "counts", "classes")
            known = torch.zeros(C, dtype=torch.bool, device=server.device)
            known[upload["classes"]] = True
            return {"known": known, **{name: upload[name] for name in names}}

        def solve(
            mixture_weights: Tensor,
            mixture_means: Tensor,
            mixture_covariances: Tensor,
            counts: Tensor,
            classes: Tensor,
        ) -> Mapping[str, Tensor]:
            mixtures = Mixtures(mixture_weights, mixture_means, mixture_covariances)
            x = gaussian_mixtures.sample(mixtures, counts, server.generator("samples"))
            return trained(server, x, classes.repeat_interleave(counts))

        return statistics.heads(server, uploads, read, solve, merge=lambda a, b: torch.cat([a, b]))

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Predict by W and b; by the own head, before there is one."""
        return statistics.linear_scores(client, x, "offsets")


def trained(server: pf.Server[FedPFT.Config], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return W [C, K] and b [C], which start from 0, after training on samples.

    Args:
        server: The server, for options and draws.
        x: Samples x̃, n×K.
        y: Their classes, [n].
    """
    config = server.config
    W = x.new_zeros(server.num_classes, x.shape[1]).requires_grad_()
    b = x.new_zeros(server.num_classes).requires_grad_()

    def loss(rows: Tensor) -> Tensor:
        return cross_entropy(x[rows] @ W.T + b, y[rows])

    statistics.train_head(
        server,
        loss,
        [W, b],
        len(x),
        config.epochs,
        config.server_batch_size,
        lr=config.server_lr,
        weight_decay=0.01,
    )
    return {"discriminants": W.detach(), "offsets": b.detach()}
