"""FCCL: cross-correlation of scores on public data, and distillation from a client's own past.

Huang et al., "Learn from Others and Be Yourself in Heterogeneous Federated Learning", CVPR 2022.

    pretrain   θ_i*: min E_{(x, y) ~ D_i} ℓ(z_i(x), y), in a client's first round
    average    Z̄ = 1/M · Σ_i Z_i, Z_i the logits of θ_i of the public samples
    M_i^uv     correlation of column u of Z_i and column v of Z̄ over a batch of public samples
    L_Col      Σ_u (1 − M_i^uu)² + λ_Col·Σ_u Σ_{v ≠ u} (1 + M_i^uv)²
    L_Inter    KL(σ(z_i^{t−1}(x)) ‖ σ(z_i(x))), z_i^{t−1} of the model of the client's last round
    L_Intra    KL(σ(z_i*(x)) ‖ σ(z_i(x))), z_i* of the pretrained model
    L_Loc      E_{(x, y) ~ D_i} ℓ(z_i(x), y) + λ_Loc·(L_Inter + L_Intra)

A round here is collaborative updating by L_Col, local updating by L_Loc, upload of Z_i, average. A
client's first round is its pretraining, and it receives Z̄ from its second round on.

Both teachers are in evaluation mode. A client keeps θ_i* beside its model; θ_i^{t−1} is its model
before the round. Inference is by the head.

The equations are those of the published code, with the paper's names. There all clients exchange
scores in every public batch, so that Z̄ follows the models; here, as in FedMD, once in a round.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import public_data


class FCCL:
    """Clients correlate scores on public data, and keep what they knew (Huang et al., 2022)."""

    class Config(pf.VariantConfig):
        """Options, with the paper's symbols."""

        deviations = {
            "correlation": pf.Deviation(
                "M_i",
                "exact",
                "unbiased",
                "the code divides by unbiased deviations, which gives (B−1)/B of the correlation",
            ),
        }
        lambda_col: float = pf.Field(
            0.0051,
            ge=0,
            description="λ_Col of different classes; 0 makes scores of one class alike alone",
        )
        lambda_loc: float = pf.Field(
            1.0, ge=0, description="λ_Loc of L_Inter + L_Intra; 0 leaves cross-entropy alone"
        )
        pretrain_epochs: int | None = pf.Field(
            None,
            ge=1,
            description="epochs of a client's first round, its pretraining; the published code "
            "takes 50. None: --local-epochs",
        )
        public_epochs: int = pf.Field(
            1, ge=1, description="epochs of collaborative updating on public samples"
        )
        correlation: Literal["exact", "unbiased"] = pf.Field(
            None, description="M_i as the correlation, or (B−1)/B of it in batches of B samples"
        )

    native_widths = True
    needs_public = True
    asynchronous = True
    terms = {
        "col": "L_Col, cross-correlation with the mean logits of public samples",
        "ce": "cross-entropy on private samples",
        "inter": "λ_Loc·L_Inter, distillation from the model of the client's last round",
        "intra": "λ_Loc·L_Intra, distillation from the client's pretrained model",
    }
    uploads = {"public_logits": "Z_i of all public samples: what the model takes them for"}
    downloads = {
        "public_logits": "Z̄, the mean of the clients' logits",
        "pretrain": pf.Key("[] bool", "that this is the client's first round"),
    }
    ablations = {
        "without L_Inter": "--drop local_loss.inter",
        "without L_Intra": "--drop local_loss.intra",
        "without collaborative updating": "--drop local_loss.col",
    }

    requires = staticmethod(public_data.without_public)

    @pf.hookimpl
    def phases(self, config: Config) -> list[pf.Phase]:
        """Pretraining in a client's first round; then collaborative and local updating."""
        return [
            pf.Phase("pretrain", epochs=config.pretrain_epochs, needs="pretrain", terms=("ce",)),
            pf.Phase(
                "collaborative",
                "public",
                config.public_epochs,
                needs="public_logits",
                rows="public_index",
                terms=("col",),
            ),
            pf.Phase(needs="public_logits", terms=("ce", "inter", "intra")),
        ]

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send Z̄; to a client that has not been pretrained, only that it is to be."""
        if client_id not in server.state.get("pretrained", ()):
            return pf.Payload(pretrain=torch.tensor(True))
        return server.global_state.select("public_logits", "public_index")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Add both teachers in the round's first phase; return Z̄."""
        if "public_logits" not in client.received:
            return {}
        if "intra" not in client.state and not client.received["pretrain"]:
            return {}
        if "inter" not in client.modules:  # the client's model is still θ_i^{t−1}
            for name in ("inter", "intra"):
                teacher = deepcopy(client.module("model"))
                client.add_module(name, teacher, train=False, temporary=True)
            pf.models.load_weights(client.module("intra"), client.state["intra"], "model")
        return public_data.received_scores(client, "public_logits")

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """L_Col, or L_Loc; cross-entropy in pretraining."""
        config, z = client.config, output.logits
        if batch.phase == "collaborative":
            M = correlation(z, constants["scores"][batch.index], config.correlation)
            return {"col": col_loss(M, config.lambda_col)}
        terms = {"ce": cross_entropy(z, batch.y)}
        if batch.phase != "pretrain" and constants:
            for name in ("inter", "intra"):
                kl = F.kl_divergence(z, client.module(name)(batch.x))
                terms[name] = config.lambda_loc * kl
        return terms

    @pf.hookimpl
    def after_training(self, client: pf.Client[Config]) -> None:
        """Keep θ_i*, after the client's first phase: pretraining."""
        if "intra" not in client.state:
            trained = pf.models.pack_weights(client.module("model"), "model")
            client.state["intra"] = {key: tensor.clone() for key, tensor in trained.items()}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send Z_i."""
        return pf.Payload(public_logits=public_data.public_logits(client))

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average: Z̄ = 1/M · Σ_i Z_i."""
        server.state["pretrained"] = sorted({*server.state.get("pretrained", ()), *uploads})
        return pf.Payload(public_logits=public_data.stacked(uploads, "public_logits").mean(0))


def correlation(Z: Tensor, mean: Tensor, scale: Literal["exact", "unbiased"]) -> Tensor:
    """Return M_i of scores Z and Z̄ of a batch, both B×C: M^uv, C×C, within ±1.

    A column whose scores are all equal has the correlation 0 with any, and so have all columns of
    one or two samples: the correlation of two points is ±1 whatever they are.
    """
    if len(Z) < 3:
        Z = Z * 0
    M = _centred(Z).T @ _centred(mean.to(Z.dtype))
    return M if scale == "exact" else M * (len(Z) - 1) / len(Z)


def _centred(Z: Tensor) -> Tensor:
    """Return the columns of Z minus their means, with length 1; 0 for a constant column."""
    Z = Z - Z.mean(0)
    squared = Z.square().sum(0)
    return Z * torch.where(squared > 0, squared, 1).rsqrt()


def col_loss(M: Tensor, weight: float) -> Tensor:
    """Return L_Col of M, C×C, with λ_Col = ``weight``."""
    same = M.diagonal()
    others = (1 + M).square().sum() - (1 + same).square().sum()
    return (1 - same).square().sum() + weight * others
