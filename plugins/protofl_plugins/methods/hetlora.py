"""HetLoRA: adapters of different ranks are padded with zeros and weighted by their norms.

Cho et al., "Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models", EMNLP
2024 (arXiv 2401.06432); after its abstract and other implementations.

    local     ℓ(W + s·B_i·A_i) + λ·‖B_i[:, ⌊γr_i⌋:]‖·‖A_i[⌊γr_i⌋:]‖
    pruning   r_i ← ⌊γr_i⌋ if the product of the tail's norms is smaller after training than before
    server    B ← Σ_i w_i·B_i,  A ← Σ_i w_i·A_i,  w_i = ‖B_i·A_i‖_F / Σ_j ‖B_j·A_j‖_F, padded with
              zeros to the largest rank
    down      B[:, :r_i],  A[:r_i]

The equations are for one layer: here each layer has its own weights w_i, and the penalty and the
products of norms are summed over layers. A client's rank is one for all layers, and at least 1.
Slices that no client of the round has stay, as zeros could not be trained again. λ is ours.
Inference: the client's net after its download.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.linalg import vector_norm

import protofl as pf
from protofl_plugins.models.low_rank import Factors, padded_mean
from protofl_plugins.shared import adapters


class HetLoRA:
    """Adapters of different ranks, averaged by their norms and pruned (Cho et al., 2024)."""

    class Config(adapters.AdapterConfig):
        """Options, with the paper's symbols; shared: ranks, layers, targets, scale, alpha, head."""

        gamma: float = pf.Field(
            0.99, gt=0, le=1, description="γ, the share of the rank that pruning leaves; 1: none"
        )
        lambda_: float = pf.Field(
            0.01, ge=0, alias="lambda", description="λ of the penalty on the tail; 0 turns it off"
        )

    tasks = pf.datasets.Task.ALL
    asynchronous = (
        "a client may prune its rank in training, and its upload is then no update of its download"
    )
    terms = {"ce": "cross-entropy", "tail": "λ·‖B_i[:, ⌊γr_i⌋:]‖·‖A_i[⌊γr_i⌋:]‖, over layers"}
    uploads = adapters.KEYS | adapters.UPLOADS
    downloads = adapters.KEYS | adapters.DOWNLOADS
    ablations = {"without rank self-pruning": "--set gamma=1"}

    run_defaults = staticmethod(adapters.same_net)
    requires = staticmethod(adapters.unfit)

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Draw A of the largest rank, set B = 0, and build the head."""
        return adapters.initial_factors(server)

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Freeze W and add B_i and A_i of rank r_i."""
        adapters.adapt(client)

    download_payload = staticmethod(adapters.first_slices)

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install B_i, A_i and the head, without the slices that were pruned."""
        adapters.install_factors(client)
        adapters.install_head(client)
        _cut(client, _rank(client))

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Give the loss the mask of the tail, and keep the tail's product of norms."""
        tail = torch.zeros(adapters.rank_of(client), device=client.device)
        tail[_kept(client) : _rank(client)] = 1
        client.scratch["tail"], client.scratch["before"] = tail, _tail_of(client, tail)
        return {"tail": tail}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Cross-entropy of W + s·B_i·A_i, and the penalty on the tail."""
        return {
            "ce": client.task.loss(output.logits, batch.y),
            "tail": client.config.lambda_ * _tail_of(client, constants["tail"]),
        }

    @pf.hookimpl
    def after_training(self, client: pf.Client[Config]) -> None:
        """Prune: r_i ← ⌊γr_i⌋ if the tail has become smaller."""
        if not _tail_of(client, client.scratch["tail"]) < client.scratch.pop("before"):
            return
        client.state["rank"] = _kept(client)
        _cut(client, client.state["rank"])

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send B_i, A_i, the head and n_i."""
        return adapters.trained_factors(client, _rank(client))

    check_upload = staticmethod(adapters.rank_fault)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average the factors by w_i and the heads by p_i, and keep the ranks that were sent."""
        result, ranks = adapters.mean_heads(server, uploads), list(server.state["ranks"])
        for name in server.state["columns"]:
            factors, _ = adapters.sent_factors(server, uploads, name)
            mean = _mean_by_norm(factors, adapters.known(server.global_state, name))
            result |= adapters.packed(name, mean)
        first = next(iter(server.state["columns"]))
        for client, upload in uploads.items():
            ranks[client] = adapters.known(upload, first).rank
        server.state["ranks"] = ranks
        return result


def _mean_by_norm(factors: Sequence[Factors], old: Factors) -> Factors:
    """Return Σ_i w_i·B_i and Σ_i w_i·A_i, padded; slices that no client has are the old ones."""
    norms = torch.stack([f.norm() for f in factors])
    w = torch.where(norms.sum() > 0, norms, torch.ones_like(norms))
    w = w / w.sum()
    b = padded_mean([f.b for f in factors], w, old.b, dim=1)
    return Factors(b, padded_mean([f.a for f in factors], w, old.a, dim=0))


def _rank(client: pf.Client[HetLoRA.Config]) -> int:
    """Return r_i, the rank that pruning has left."""
    return int(client.state.get("rank", adapters.rank_of(client)))


def _kept(client: pf.Client[HetLoRA.Config]) -> int:
    """Return ⌊γr_i⌋, at least 1."""
    return max(1, math.floor(client.config.gamma * _rank(client)))


def _cut(client: pf.Client[HetLoRA.Config], rank: int) -> None:
    """Set the slices from a rank on to 0."""
    with torch.no_grad():
        for adapter in adapters.adapters_of(client).values():
            adapter.a[rank:] = 0
            adapter.b[:, rank:] = 0


def _tail_of(client: pf.Learner[HetLoRA.Config], tail: Tensor) -> Tensor:
    """Return Σ over layers of ‖B·diag(tail)‖·‖diag(tail)·A‖; the mask is [r]."""
    each = [
        vector_norm(adapter.b * tail) * vector_norm(adapter.a * tail.unsqueeze(1))
        for adapter in adapters.adapters_of(client).values()
    ]
    return torch.stack(each).sum()
