"""FedSA-LoRA: A and B are trained, and only A is shared (share-A).

Guo et al., "Selective Aggregation for Low-Rank Adaptation in Federated Learning", ICLR 2025 (arXiv
2410.01463). FedSA, the method of prototypes and anchors, is another one: `fedsa`.

    local     B_i, A_i of rank r_i: min over them of ℓ(W + s_i·B_i·A_i), starting from A and the
              client's own last B_i, which is 0 at first
    server    A ← Σ_i p_i·A_i,  p_i = n_i/n

A learns what clients have in common, B what is a client's own. As published for classification, the
head stays on the client too: ``head=local``. The paper has one rank. With ranks that differ, row k
of A is the mean over the round's clients with r_i ≥ k, with weights p_i/Σ_{j: r_j ≥ k} p_j, as
zeros in the mean would shrink rows whose B is not averaged; a row that none of them has stays.
Inference: the client's net with the downloaded A and its own B_i and head.
"""

from __future__ import annotations

from typing import Literal

import torch

import protofl as pf
from protofl_plugins.models.low_rank import padded_mean, slice_weights
from protofl_plugins.shared import adapters

A = {"adapter/*/a": adapters.KEYS["adapter/*/a"]}


class FedSALoRA:
    """LoRA of which only the matrices A are averaged (Guo et al., 2025)."""

    class Config(adapters.AdapterConfig):
        """Options."""

        head: Literal["average", "local"] = pf.Field(
            "local", description="keep heads on clients, or average them with weights n_i/n"
        )

    tasks = pf.datasets.Task.ALL
    asynchronous = "versions"
    uploads = {
        **A,
        "head/*": "the head, with head=average; gradients can be inverted from it",
        "samples": "n_i, the number of training samples",
    }
    downloads = {
        **A,
        "head/*": "the average of the heads, with head=average",
    }

    @pf.hookimpl
    def run_defaults(self, config: Config) -> dict[str, object]:
        """Give all clients one frozen net W."""
        return {"same_init": True}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """Require one net, with layers that the ranks fit."""
        return adapters.unfit(run, config)

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Draw A of the largest rank, and build the head if heads are averaged."""
        return adapters.initial_factors(server, "a")

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Freeze W and add B_i = 0 and A_i of rank r_i."""
        adapters.adapt(client)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send the first r_i rows of A, and the head if heads are averaged."""
        return adapters.first_slices(server, client_id)

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install A_i and the head; B_i stays as the client has it."""
        adapters.install_factors(client)
        adapters.install_head(client)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send A_i and n_i, and the head if heads are averaged."""
        return adapters.trained_factors(client, adapters.rank_of(client), "a")

    @pf.hookimpl
    def check_upload(self, server: pf.Server[Config], client_id: int, upload: pf.Payload) -> str:
        """Refuse a rank above the client's own."""
        return adapters.rank_fault(server, client_id, upload)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
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
