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
from typing import cast

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import cross_entropy, pad

import protofl as pf
from protofl_plugins.adapters import AdapterConfig, Adapters, adapters_of, known
from protofl_plugins.low_rank import Factors


class HetLoRA(Adapters):
    """Adapters of different ranks, averaged by their norms and pruned (Cho et al., 2024)."""

    class Config(AdapterConfig):
        """Options, with the paper's symbols."""

        gamma: float = pf.Field(
            0.99, gt=0, le=1, description="γ, the share of the rank that pruning leaves; 1: none"
        )
        lambda_: float = pf.Field(
            0.01, ge=0, alias="lambda", description="λ of the penalty on the tail; 0 turns it off"
        )

    terms = {"ce": "cross-entropy", "tail": "λ·‖B_i[:, ⌊γr_i⌋:]‖·‖A_i[⌊γr_i⌋:]‖, over layers"}
    ablations = {"without rank self-pruning": "--set gamma=1"}

    @pf.hookimpl
    def receive(self, client: pf.Client[AdapterConfig]) -> None:
        """Install factors and head; without the slices that were pruned."""
        super().receive(client)
        with torch.no_grad():
            for own in adapters_of(client).values():
                own.a[self.rank(client) :] = 0
                own.b[:, self.rank(client) :] = 0

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.Given:
        """The slices of the tail, 1 in it and 0 elsewhere."""
        if client.config.gamma == 1:
            return {}
        most, rank = super().rank(client), self.rank(client)
        tail = torch.zeros(most, device=client.device)
        tail[self._kept(client) : rank] = 1
        client.scratch["tail"], client.scratch["before"] = tail, _tail_of(client, tail)
        return {"tail": tail}

    @pf.hookimpl
    def local_loss(
        self,
        client: pf.Learner[AdapterConfig],
        batch: pf.Batch,
        output: pf.Output,
        given: pf.Given,
    ) -> pf.Terms:
        """Cross-entropy, and the penalty on the tail."""
        terms = {"ce": cross_entropy(output.logits, batch.y)}
        if given:
            lambda_ = cast(HetLoRA.Config, client.config).lambda_
            terms["tail"] = lambda_ * _tail_of(client, given["tail"])
        return terms

    @pf.hookimpl
    def after_training(self, client: pf.Client[Config]) -> None:
        """Prune the rank if the tail has become smaller."""
        before = client.scratch.pop("before", None)
        if before is None or not _tail_of(client, client.scratch["tail"]) < before:
            return
        client.state["rank"] = self._kept(client)
        for own in adapters_of(client).values():
            own.a[client.state["rank"] :] = 0
            own.b[:, client.state["rank"] :] = 0

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[AdapterConfig], uploads: pf.Uploads) -> pf.Payload:
        """The weighted mean; and the ranks that clients have left."""
        found = super().server_aggregate(server, uploads)
        ranks, name = list(server.state["ranks"]), next(iter(server.state["columns"]))
        for client, upload in uploads.items():
            ranks[client] = known(upload, name).rank
        server.state["ranks"] = ranks
        return found

    def combine(
        self, server: pf.Server[AdapterConfig], name: str, factors: Sequence[Factors], p: Tensor
    ) -> Factors:
        """The mean of padded factors, weighted by ‖B_i·A_i‖_F; uniform if all are 0."""
        norms = torch.stack([f.norm() for f in factors])
        w = torch.where(norms.sum() > 0, norms, torch.ones_like(norms))
        w = w / w.sum()
        old = known(server.knowledge, name)
        here = max(f.rank for f in factors)
        padded = [
            (pad(f.b, (0, here - f.rank)), pad(f.a, (0, 0, 0, here - f.rank))) for f in factors
        ]
        b, a = (torch.tensordot(w, torch.stack(each), 1) for each in zip(*padded, strict=True))
        return Factors(torch.cat([b, old.b[:, here:]], 1), torch.cat([a, old.a[here:]]))

    def rank(self, client: pf.Client[AdapterConfig]) -> int:
        """Return the rank that pruning has left."""
        return int(client.state.get("rank", super().rank(client)))

    def _kept(self, client: pf.Client[Config]) -> int:
        return max(1, math.floor(client.config.gamma * self.rank(client)))


def _tail_of(client: pf.Learner[AdapterConfig], tail: Tensor) -> Tensor:
    """Return Σ over layers of ‖B·diag(tail)‖·‖diag(tail)·A‖; the mask is [r]."""
    each = [
        vector_norm(own.b * tail) * vector_norm(own.a * tail.unsqueeze(1))
        for own in adapters_of(client).values()
    ]
    return torch.stack(each).sum()
