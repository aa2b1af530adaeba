"""FFA-LoRA: A is frozen at one random start, and only B is trained and averaged.

Sun et al., "Improving LoRA in Privacy-preserving Federated Learning", ICLR 2024 (arXiv 2403.12313).

    start     A_0 random and the same for all clients, B = 0
    local     B_i: min over it of ℓ(W + s_i·B_i·A_0), starting from B; A_0 is frozen
    server    B ← Σ_i p_i·B_i,  p_i = n_i/n

As A_0 is one matrix, the mean of B is exact: (Σ_i p_i·B_i)·A_0 = Σ_i p_i·B_i·A_0. The clients draw
A_0 from the run's seed, so it never travels. The paper has one rank. With ranks that differ a
client has the first r_i rows of A_0 and columns of B, and B_i is padded with zeros, which keeps the
mean exact; columns that no client of the round has stay. Inference: the client's net after its
download.
"""

from __future__ import annotations

import protofl as pf
from protofl_plugins.models.low_rank import padded_mean
from protofl_plugins.shared import adapters

B = {"adapter/*/b": adapters.KEYS["adapter/*/b"]}


class FFALoRA:
    """LoRA whose A is frozen and whose B is averaged (Sun et al., 2024)."""

    class Config(adapters.AdapterConfig):
        """Options."""

    tasks = pf.datasets.Task.ALL
    asynchronous = "versions"
    uploads = {
        **B,
        "head/*": "the head, with head=average; gradients can be inverted from it",
        "samples": "n_i, the number of training samples",
    }
    downloads = {
        **B,
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
        """Set B = 0 of the largest rank, and build the head."""
        return adapters.initial_factors(server, "b")

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Freeze W, add B_i of rank r_i, and draw and freeze the first r_i rows of A_0."""
        adapters.adapt(client, train_a=False)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send the first r_i columns of B, and the head."""
        return adapters.first_slices(server, client_id)

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install B_i and the head."""
        adapters.install_factors(client)
        adapters.install_head(client)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send B_i, the head and n_i."""
        return adapters.trained_factors(client, adapters.rank_of(client), "b")

    @pf.hookimpl
    def check_upload(self, server: pf.Server[Config], client_id: int, upload: pf.Payload) -> str:
        """Refuse a rank above the client's own."""
        return adapters.rank_fault(server, client_id, upload)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average B of each layer, padded with zeros, and the heads."""
        result, p = adapters.mean_heads(server, uploads), adapters.shares(uploads)
        for name in server.state["columns"]:
            key = f"adapter/{name}/b"
            sent = [adapters.unit(server.config, i) * u[key] for i, u in uploads.items()]
            result[key] = padded_mean(sent, p.to(sent[0]), server.global_state[key], dim=1)
        return result
