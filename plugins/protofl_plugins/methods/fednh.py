"""FedNH: class prototypes, spread evenly at first and moved towards mean features, are the head.

Dai et al., "Tackling Data Heterogeneity in Federated Learning with Class Prototypes", AAAI 2023
(arXiv 2212.02758).

    W        prototypes C×d of norm 1; at first orthogonal rows, spread evenly on the unit sphere
    z        f_θ(x)/‖f_θ(x)‖
    local    min over θ_k and s_k of  E ℓ(s_k·W·z, y), starting from θ and s, W fixed
    μ_k,c    mean of z over the client's samples of class c after training, brought to norm 1
    α_k,c    n_k,c / Σ_j n_j,c over the clients of the round
    server   θ ← 1/|S|·Σ_k θ_k,  s likewise
             W_c ← ρ·W_c + (1 − ρ)·μ_c,  μ_c = Σ_k α_k,c·μ_k,c;  μ_c and W_c brought to norm 1

θ is the feature extractor. The server draws θ and W and sends them, with s, from the first round. A
class that no client of the round has keeps W_c. Inference: the scores s·W·z.

More classes than features have no orthogonal rows: W then starts as the rows of a matrix with
orthogonal columns, brought to norm 1.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import weights
from protofl_plugins.shared.prototypes import mean_prototypes, of_all_classes, received_prototypes

SCALE = weights.SharedWeights("scale")
"""Hooks of s."""


class FedNH:
    """Fixed, smoothly updated class prototypes replace the head (Dai et al., 2023)."""

    class Config(weights.ScopeConfig, weights.SharingConfig):
        """Options, with the paper's symbols; shared: scope."""

        aggregate: Literal["weighted", "uniform"] = pf.Field(
            "uniform", description="weights n_k/n of the averages of θ and s, or 1/|S|"
        )
        rho: float = pf.Field(
            0.9,
            ge=0,
            le=1,
            description="ρ, smoothing of W; 1 keeps the first W, 0 takes the round's means",
        )
        s: float = pf.Field(
            1.0,
            gt=0,
            description="s at the start; training changes it. Small values give flat softmax "
            "outputs, which learn slowly",
        )

    asynchronous = "versions"
    terms = {"ce": "cross-entropy of the scores s_k·W·z"}
    uploads = {
        "extractor/*": "θ_k, the body after local training; gradients can be inverted from it",
        "scale/*": pf.Key(
            "[]", "s_k, the trained factor of the scores", reveals="how certain the model is"
        ),
        "samples": "n_k, the number of training samples",
        "prototypes": "μ_k,c of the client's classes: mean unit features, of norm 1",
        "classes": "which classes the client has",
        "counts": "n_k,c, the class distribution",
    }
    downloads = {
        "extractor/*": "θ, the average of the clients' bodies",
        "scale/*": pf.Key("[]", "s, the average of the s_k"),
        "prototypes": "W of all classes",
    }
    ablations = {"without semantics: fixed W": "--set rho=1"}

    requires = weights.EXTRACTOR.requires

    @pf.hookimpl
    def phases(self, config: Config) -> list[pf.Phase]:
        """Train θ and s; the model's own head is not used."""
        return [pf.Phase("body", trains=("extractor", "scale"))]

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Draw θ and W; s."""
        C, d = server.num_classes, server.feature_dim
        W = nn.init.orthogonal_(torch.empty(C, d), generator=server.generator("W"))
        start = weights.EXTRACTOR.setup_server(server)
        scale = Scale(server.config.s).to(server.device)
        for end in weights.sharing(server, server.clients):
            start.update(pf.models.pack_weights(scale, f"scale{end}"))
        return pf.Payload({**start, **of_all_classes(normalize(W).to(server.device))})

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Add s_k."""
        client.add_module("scale", Scale(client.config.s), with_model=True)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """θ, s and W."""
        theta = weights.EXTRACTOR.download_payload(server, client_id)
        s = SCALE.download_payload(server, client_id)
        return pf.Payload({**theta, **s, **server.global_state.select("prototypes")})

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """θ_k ← θ, s_k ← s."""
        weights.EXTRACTOR.receive(client)
        SCALE.receive(client)

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """W as a table C×d."""
        return {"W": received_prototypes(client)[0]}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """E ℓ(s_k·W·z, y)."""
        cosines = head_cosines(output.features, constants["W"])
        return {"ce": cross_entropy(client.module("scale")(cosines), batch.y)}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """θ_k and s_k; μ_k,c and n_k,c of an evaluation pass after training."""
        features, labels = client.train_features()
        means, counts = F.class_means(normalize(features), labels, client.num_classes)
        mu = pf.class_rows(counts > 0, prototypes=normalize(means), counts=counts)
        theta = weights.EXTRACTOR.upload_payload(client)
        return pf.Payload({**theta, **SCALE.upload_payload(client), **mu})

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average θ and s; move W_c."""
        theta = weights.EXTRACTOR.server_aggregate(server, uploads)
        s = SCALE.server_aggregate(server, uploads)
        mu, known = mean_prototypes(server, uploads, "weighted", server.feature_dim)
        old, _ = server.global_state.table("prototypes", server.num_classes)
        W = normalize(F.ema(old, normalize(mu).to(old.dtype), server.config.rho, known))
        return pf.Payload({**theta, **s, **of_all_classes(W)})

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Return s·W·z; the scores of the own head, before there is a W."""
        features = client.features(x)
        if "prototypes" not in client.received:
            return client.head(features)
        scores: Tensor = client.module("scale")(
            head_cosines(features, received_prototypes(client)[0])
        )
        return scores

    @pf.hookimpl
    def global_models(self, server: pf.Server[Config]) -> dict[str, nn.Module]:
        """Evaluate {θ, W} on the global test samples."""
        W, _ = server.global_state.table("prototypes", server.num_classes)
        models: dict[str, nn.Module] = {}
        for end, (first, *_) in weights.sharing(server, server.clients).items():
            model = server.build(server.clients[first].architecture)
            pf.models.load_weights(model.extractor, server.global_state, f"extractor{end}")
            model.head = Cosines(W)
            models[end.removeprefix("@") or "model"] = model
        return models


class Scale(nn.Module):
    """s, which is trained with the body.

    Args:
        s: Its first value.
    """

    def __init__(self, s: float) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.tensor(s))

    def forward(self, cosines: Tensor) -> Tensor:
        """Return s·W·z."""
        return self.s * cosines


class Cosines(nn.Module):
    """W as a head: s does not change which score is the largest.

    Args:
        W: C×d.
    """

    def __init__(self, W: Tensor) -> None:
        super().__init__()
        self.register_buffer("W", W)

    def forward(self, features: Tensor) -> Tensor:
        """Return W·z."""
        return head_cosines(features, self.get_buffer("W"))


def head_cosines(features: Tensor, W: Tensor) -> Tensor:
    """Return W·z, B×C, of features f_θ(x), B×d."""
    return normalize(features.to(W.dtype), dim=1) @ W.T
