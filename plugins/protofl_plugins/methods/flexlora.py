"""FlexLoRA: adapters of different ranks are averaged as products and cut by an SVD.

Bai et al., "Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
Resources", NeurIPS 2024 (arXiv 2402.11505).

    local     B_i, A_i of rank r_i: min over them of ℓ(W + s_i·B_i·A_i), starting from the download
    server    ΔW ← Σ_i p_i·s_i·B_i·A_i,  p_i = n_i/n;   ΔW = U·Σ·V
    down      B = U[:, :r_i]·Σ[:r_i]/s_i,  A = V[:r_i]

The SVD is that of the stacked factors (`protofl_plugins.models.low_rank`), so no ΔW is made. Where
ΔW has fewer singular values than the largest rank, the further slices have a fresh A and B = 0, as
at first. Σ goes into B, as in the published code, whose s_i = α/r_i with α = 16: ``alpha=16``. By
default s_i is one number, ``scale``, for all ranks. Inference: the client's net after its download.
"""

from __future__ import annotations

import protofl as pf
from protofl_plugins.models.low_rank import best_of_rank, stack
from protofl_plugins.shared import adapters


class FlexLoRA:
    """Adapters of different ranks, averaged as products (Bai et al., 2024)."""

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
        """Cut ΔW = Σ_i p_i·s_i·B_i·A_i of each layer to the largest rank by its SVD."""
        result = adapters.mean_heads(server, uploads)
        for name in server.state["columns"]:
            factors, p = adapters.sent_factors(server, uploads, name)
            product = stack(factors, [*p])
            fresh = adapters.fresh(server, name).to(p)
            result |= adapters.packed(name, best_of_rank(product, fresh))
        return result
