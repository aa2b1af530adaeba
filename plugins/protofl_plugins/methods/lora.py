"""LoRA adapters that are averaged: of one rank or several, both matrices or one of them.

The methods differ in what travels and in the server's step. All of them start from one frozen net W
that the clients share; `protofl_plugins.shared.adapters` has the adapters' steps.
"""

from __future__ import annotations

from typing import Literal

import torch

import protofl as pf
from protofl_plugins.models.low_rank import (
    Factors,
    best_of_rank,
    padded_mean,
    slice_weights,
    stack,
)
from protofl_plugins.shared import adapters


class FedIT:
    """The means of LoRA's matrices A and B, padded with zeros (Zhang et al., 2024).

    Zhang et al., "Towards Building the Federated GPT: Federated Instruction Tuning", ICASSP 2024
    (arXiv 2305.05644), for one rank; for ranks that differ, the zero-padded FedIT to which FLoRA
    (arXiv 2409.05976) and FlexLoRA (arXiv 2402.11505) compare.

        local     B_i, A_i of rank r_i: min over them of ℓ(W + s_i·B_i·A_i), from the download on
        server    B ← Σ_i p_i·B_i,  A ← Σ_i p_i·A_i,  p_i = n_i/n, zero-padded to the largest rank
        down      B[:, :r_i],  A[:r_i]

    The product of the means, (Σ_i p_i·B_i)·(Σ_i p_i·A_i), is not the mean of the products:
    FedEx-LoRA, FlexLoRA, FLoRA and FFA-LoRA avoid that error. Slices that no client of the round
    has stay, as zeros in both factors could not be trained again. Inference: the client's net after
    its download.
    """

    class Config(adapters.AdapterConfig):
        """Options; shared: ranks, layers, targets, scale, alpha, head."""

    parts = adapters.BOTH
    tasks = pf.datasets.Task.ALL
    asynchronous: bool | str = "versions"
    uploads = adapters.KEYS | adapters.UPLOADS
    downloads = adapters.KEYS | adapters.DOWNLOADS

    run_defaults = staticmethod(adapters.same_net)
    requires = staticmethod(adapters.unfit)

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Draw A of the largest rank, set B = 0, and build the head; of what travels."""
        return adapters.initial_factors(server, self.parts)

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Freeze W and add B_i and A_i of rank r_i."""
        adapters.adapt(client)

    download_payload = staticmethod(adapters.first_slices)

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install B_i, A_i and the head, those that were sent."""
        adapters.install_factors(client)
        adapters.install_head(client)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send B_i, A_i, the head and n_i; of what travels."""
        return adapters.trained_factors(client, adapters.rank_of(client), self.parts)

    check_upload = staticmethod(adapters.rank_fault)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average the padded B and A of each layer, and the heads."""
        result = adapters.mean_heads(server, uploads)
        for name in server.state["columns"]:
            factors, p = adapters.sent_factors(server, uploads, name)
            old = adapters.known(server.global_state, name)
            b = padded_mean([f.b for f in factors], p, old.b, dim=1)
            a = padded_mean([f.a for f in factors], p, old.a, dim=0)
            result |= adapters.packed(name, Factors(b, a))
        return result


class FlexLoRA(FedIT):
    """Adapters of different ranks, averaged as products (Bai et al., 2024).

    Bai et al., "Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
    Resources", NeurIPS 2024 (arXiv 2402.11505).

        local     B_i, A_i of rank r_i: min over them of ℓ(W + s_i·B_i·A_i), from the download on
        server    ΔW ← Σ_i p_i·s_i·B_i·A_i,  p_i = n_i/n;   ΔW = U·Σ·V
        down      B = U[:, :r_i]·Σ[:r_i]/s_i,  A = V[:r_i]

    The SVD is that of the stacked factors (`protofl_plugins.models.low_rank`), so no ΔW is made.
    Where ΔW has fewer singular values than the largest rank, the further slices have a fresh A and
    B = 0, as at first. Σ goes into B, as in the published code, whose s_i = α/r_i with α = 16:
    ``alpha=16``. By default s_i is one number, ``scale``, for all ranks. Inference: the client's
    net after its download.
    """

    asynchronous = (
        "each step cuts the sum of products to new singular vectors, and the factors of a stale "
        "upload belong to earlier ones"
    )

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[FedIT.Config], uploads: pf.Uploads) -> pf.Payload:
        """Cut ΔW of each layer to the largest rank by its SVD."""
        result = adapters.mean_heads(server, uploads)
        for name in server.state["columns"]:
            factors, p = adapters.sent_factors(server, uploads, name)
            product = stack(factors, self.weights([f.rank for f in factors], p))
            fresh = adapters.fresh(server, name).to(p)
            result |= adapters.packed(name, best_of_rank(product, fresh))
        return result

    def weights(self, ranks: list[int], p: torch.Tensor) -> list[torch.Tensor]:
        """Return the weights of a layer's factors in ΔW: p_i."""
        return [*p]


class RaFLoRA(FlexLoRA):
    """Adapters averaged over the clients that have a slice of rank (Wu et al., 2026).

    Wu et al., "Preventing Rank Collapse in Federated Low-Rank Adaptation with Client
    Heterogeneity", 2026 (arXiv 2602.13486); after its abstract and summaries.

        local     as FlexLoRA
        server    ΔW ← Σ_k Σ_{i: r_i ≥ k} p_i/(Σ_{j: r_j ≥ k} p_j)·s_i·B_i[:, k]·A_i[k]
                  ΔW = U·Σ·V
        down      B = U[:, :r_i]·Σ[:r_i]/s_i,  A = V[:r_i]

    FlexLoRA's weights p_i of a slice sum to less than 1 where few clients have it, and the energy
    of ΔW ends in the smallest rank ("rank collapse"). The paper partitions slices by the ranks that
    occur, which gives the same weights. Σ goes into B, as published for FlexLoRA, whose s_i =
    16/r_i is ``alpha=16``.
    """

    def weights(self, ranks: list[int], p: torch.Tensor) -> list[torch.Tensor]:
        """Return the weights of each slice of a layer's factors in ΔW (Eq. 8)."""
        return slice_weights(ranks, p)


class FFALoRA(FedIT):
    """LoRA whose A is frozen and whose B is averaged (Sun et al., 2024).

    Sun et al., "Improving LoRA in Privacy-preserving Federated Learning", ICLR 2024 (arXiv
    2403.12313).

        start     A_0 random and the same for all clients, B = 0
        local     B_i: min over it of ℓ(W + s_i·B_i·A_0), starting from B; A_0 is frozen
        server    B ← Σ_i p_i·B_i,  p_i = n_i/n

    As A_0 is one matrix, the mean of B is exact: (Σ_i p_i·B_i)·A_0 = Σ_i p_i·B_i·A_0. The clients
    draw A_0 from the run's seed, so it never travels. The paper has one rank. With ranks that
    differ a client has the first r_i rows of A_0 and columns of B, and B_i is padded with zeros,
    which keeps the mean exact; columns that no client of the round has stay. Inference: the
    client's net after its download.
    """

    parts = "b"
    uploads = {"adapter/*/b": adapters.KEYS["adapter/*/b"], **adapters.UPLOADS}
    downloads = {"adapter/*/b": adapters.KEYS["adapter/*/b"], **adapters.DOWNLOADS}

    @pf.hookimpl
    def setup_client(self, client: pf.Client[FedIT.Config]) -> None:
        """Freeze W, add B_i of rank r_i, and draw and freeze the first r_i rows of A_0."""
        adapters.adapt(client, train_a=False)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[FedIT.Config], uploads: pf.Uploads) -> pf.Payload:
        """Average B of each layer, padded with zeros, and the heads."""
        result, p = adapters.mean_heads(server, uploads), adapters.shares(uploads)
        for name in server.state["columns"]:
            key = f"adapter/{name}/b"
            sent = [adapters.unit(server.config, i) * u[key] for i, u in uploads.items()]
            result[key] = padded_mean(sent, p.to(sent[0]), server.global_state[key], dim=1)
        return result


class FedSALoRA(FedIT):
    """LoRA of which only the matrices A are averaged (Guo et al., 2025).

    Guo et al., "Selective Aggregation for Low-Rank Adaptation in Federated Learning", ICLR 2025
    (arXiv 2410.01463). FedSA, the method of prototypes and anchors, is another one: `fedsa`.

        local     B_i, A_i of rank r_i: min over them of ℓ(W + s_i·B_i·A_i), starting from A and the
                  client's own last B_i, which is 0 at first
        server    A ← Σ_i p_i·A_i,  p_i = n_i/n

    A learns what clients have in common, B what is a client's own. As published for classification,
    the head stays on the client too: ``head=local``. The paper has one rank. With ranks that
    differ, row k of A is the mean over the round's clients with r_i ≥ k, with weights p_i/Σ_{j: r_j
    ≥ k} p_j, as zeros in the mean would shrink rows whose B is not averaged; a row that none of
    them has stays. Inference: the client's net with the downloaded A and its own B_i and head.
    """

    class Config(FedIT.Config):
        """Options; shared: ranks, layers, targets, scale, alpha."""

        head: Literal["average", "local"] = pf.Field(
            "local", description="keep heads on clients, or average them with weights n_i/n"
        )

    parts = "a"
    uploads = {"adapter/*/a": adapters.KEYS["adapter/*/a"], **adapters.UPLOADS}
    downloads = {"adapter/*/a": adapters.KEYS["adapter/*/a"], **adapters.DOWNLOADS}

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[FedIT.Config], uploads: pf.Uploads) -> pf.Payload:
        """Average the rows of A of each layer over the clients that have them, and the heads."""
        result, p = adapters.mean_heads(server, uploads), adapters.shares(uploads)
        for name in server.state["columns"]:
            key = f"adapter/{name}/a"
            sent = [upload[key] for upload in uploads.values()]
            by_row = slice_weights([len(a) for a in sent], p.to(sent[0]))
            weighted = [w.unsqueeze(1) * a for w, a in zip(by_row, sent, strict=True)]
            one = torch.ones(len(sent), device=p.device, dtype=sent[0].dtype)
            result[key] = padded_mean(weighted, one, server.global_state[key], dim=0)
        return result
