"""FedIT: the LoRA matrices A and B are averaged separately.

Zhang et al., "Towards Building the Federated GPT: Federated Instruction Tuning", ICASSP 2024 (arXiv
2305.05644), for one rank; for ranks that differ, the zero-padded FedIT to which FLoRA (arXiv
2409.05976) and FlexLoRA (arXiv 2402.11505) compare.

    local     B_i, A_i of rank r_i: min over them of ℓ(W + s_i·B_i·A_i), starting from the download
    server    B ← Σ_i p_i·B_i,  A ← Σ_i p_i·A_i,  p_i = n_i/n, padded with zeros to the largest rank
    down      B[:, :r_i],  A[:r_i]

The product of the means, (Σ_i p_i·B_i)·(Σ_i p_i·A_i), is not the mean of the products: FlexLoRA,
FLoRA and FFA-LoRA avoid that error. Slices that no client of the round has stay, as zeros in both
factors could not be trained again. Inference: the client's net after its download.
"""

from __future__ import annotations

import protofl as pf
from protofl_plugins.models.low_rank import Factors, padded_mean
from protofl_plugins.shared import adapters


class FedIT:
    """The means of LoRA's matrices A and B, padded with zeros (Zhang et al., 2024)."""

    class Config(adapters.AdapterConfig):
        """Options."""

    tasks = pf.datasets.Task.ALL
    asynchronous = "versions"
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
        """Average the padded B and A of each layer, and the heads."""
        result = adapters.mean_heads(server, uploads)
        for name in server.state["columns"]:
            factors, p = adapters.sent_factors(server, uploads, name)
            old = adapters.known(server.global_state, name)
            b = padded_mean([f.b for f in factors], p, old.b, dim=1)
            a = padded_mean([f.a for f in factors], p, old.a, dim=0)
            result |= adapters.packed(name, Factors(b, a))
        return result
