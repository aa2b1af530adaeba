"""raFLoRA: each slice of rank is averaged over the clients that have it.

Wu et al., "Preventing Rank Collapse in Federated Low-Rank Adaptation with Client Heterogeneity",
2026 (arXiv 2602.13486); after its abstract and summaries.

    local     as FlexLoRA
    server    ΔW ← Σ_k Σ_{i: r_i ≥ k} p_i/(Σ_{j: r_j ≥ k} p_j)·s_i·B_i[:, k]·A_i[k]
              ΔW = U·Σ·V
    down      B = U[:, :r_i]·Σ[:r_i]/s_i,  A = V[:r_i]

FlexLoRA's weights p_i of a slice sum to less than 1 where few clients have it, and the energy of ΔW
ends in the smallest rank ("rank collapse"). The paper partitions slices by the ranks that occur,
which gives the same weights. Σ goes into B, as published for FlexLoRA, whose s_i = 16/r_i is
``alpha=16``.
"""

from __future__ import annotations

import protofl as pf
from protofl_plugins.models.low_rank import best_of_rank, slice_weights, stack
from protofl_plugins.shared import adapters


class RaFLoRA:
    """Adapters averaged over the clients that have a slice of rank (Wu et al., 2026)."""

    class Config(adapters.AdapterConfig):
        """Options."""

    tasks = pf.datasets.Task.ALL
    asynchronous = (
        "each step cuts the sum of products to new singular vectors, and the factors of a stale "
        "upload belong to earlier ones"
    )
    uploads = {
        **adapters.KEYS,
        "head/*": "the head, with head=average; gradients can be inverted from it",
        "samples": "n_i, the number of training samples",
    }
    downloads = {
        **adapters.KEYS,
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
        """Draw A of the largest rank, set B = 0, and build the head."""
        return adapters.initial_factors(server)

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Freeze W and add B_i and A_i of rank r_i."""
        adapters.adapt(client)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send the first r_i slices of B and A, and the head."""
        return adapters.first_slices(server, client_id)

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install B_i, A_i and the head."""
        adapters.install_factors(client)
        adapters.install_head(client)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send B_i, A_i, the head and n_i."""
        return adapters.trained_factors(client, adapters.rank_of(client))

    @pf.hookimpl
    def check_upload(self, server: pf.Server[Config], client_id: int, upload: pf.Payload) -> str:
        """Refuse a rank above the client's own."""
        return adapters.rank_fault(server, client_id, upload)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Cut the sum of slices of each layer to the largest rank by its SVD (Eq. 8)."""
        result = adapters.mean_heads(server, uploads)
        for name in server.state["columns"]:
            factors, p = adapters.sent_factors(server, uploads, name)
            product = stack(factors, slice_weights([f.rank for f in factors], p))
            fresh = adapters.fresh(server, name).to(p)
            result |= adapters.packed(name, best_of_rank(product, fresh))
        return result
