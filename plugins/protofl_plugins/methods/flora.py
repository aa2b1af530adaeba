"""FLoRA: adapters are stacked, without an error of the mean, and merged into the frozen weights.

Wang et al., "FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank
Adaptations", NeurIPS 2024 (arXiv 2409.05976).

    local     B_i = 0 and a fresh A_i each round: min over them of ℓ(W + s·B_i·A_i)
    server    A ← [p_1·A_1; p_2·A_2; …],  B ← [B_1, B_2, …],  p_i = n_i/n
    down      A and B, of rank Σ_i r_i:  W ← W + s·B·A = W + s·Σ_i p_i·B_i·A_i

A client that missed a merge gets the sum M of all B·A instead, and W + s·M are its weights. A
client keeps M, as large as the adapted weights. Inference: the client's net after its download,
which is merged.

The published code (github.com/ATP-1010/FederatedLLM) has α = 2·r_i for each rank, so s = 2:
``scale=2``. Its plain mean of equal ranks, to which the paper compares stacking, writes its sum
to a misspelt name (``weighted_sindgle_weights``): it is the first client's adapter times p_1.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.models.adapted import Adapted
from protofl_plugins.models.low_rank import Factors, stack
from protofl_plugins.shared import adapters


class FLoRA:
    """Stacked adapters, merged into the frozen weights (Wang et al., 2024)."""

    class Config(adapters.AdapterConfig):
        """Options; shared: ranks, layers, targets, scale, alpha, head."""

    tasks = pf.datasets.Task.ALL
    asynchronous = (
        "a client merges the stack of the last step into the weights that it holds, and "
        "a stale client lacks earlier ones"
    )
    uploads = adapters.KEYS | adapters.UPLOADS
    downloads = {
        **adapters.KEYS,
        "adapter/*": pf.Key("[rows, columns]", "the sum of all merges, for who missed some"),
        "adapter_version": pf.Key("[] int", "the number of merges so far"),
        **adapters.DOWNLOADS,
    }

    run_defaults = staticmethod(adapters.same_net)
    requires = staticmethod(adapters.unfit)

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Set M = 0 and the version to 0, and build the head."""
        first, sizes = adapters.adapted_layers(server)
        for name, (rows, columns) in sizes.items():
            first[_merged(name)] = torch.zeros(rows, columns, device=server.device)
        return pf.Payload(first, adapter_version=torch.tensor(0))

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Freeze W and add B_i and A_i of rank r_i, and a place for M."""
        adapters.adapt(client, merges=True)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send the stack, or M to a client that missed one, in the client's units; and the head."""
        global_state, s_i = server.global_state, adapters.unit(server.config, client_id)
        sent = global_state.select("head/*", "adapter_version")
        for name in server.state["columns"] if int(global_state["adapter_version"]) else ():
            if client_id in server.state["holders"]:
                sent |= adapters.packed(name, adapters.known(global_state, name).times(1 / s_i))
            else:
                sent[_merged(name)] = global_state[_merged(name)] / s_i
        return sent

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Merge a stack once, however often it is received, and begin with fresh adapters."""
        received, net = client.received, cast(Adapted, client.module("extractor"))
        version = int(received["adapter_version"])
        if version != client.state.get("version", 0):
            for name, M in net.merged().items():
                if f"adapter/{name}/a" in received:
                    M += _product(adapters.known(received, name))
                else:
                    M.copy_(received[_merged(name)])
            client.state["version"] = version
        drawn = client.generator("adapters")
        for adapter in adapters.adapters_of(client).values():
            a = adapters.rows_of(adapter.rank, adapter.a.shape[1], drawn).to(adapter.a)
            adapters.install(adapter, Factors(torch.zeros_like(adapter.b), a))
        adapters.install_head(client)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send B_i, A_i, the head and n_i."""
        return adapters.trained_factors(client, adapters.rank_of(client))

    check_upload = staticmethod(adapters.rank_fault)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Stack the factors of each layer, add B·A to M, and keep who can merge the stack."""
        global_state, result = server.global_state, adapters.mean_heads(server, uploads)
        for name in server.state["columns"]:
            factors, p = adapters.sent_factors(server, uploads, name)
            stacked = stack(factors, [*p])
            result |= adapters.packed(name, stacked)
            result[_merged(name)] = global_state[_merged(name)] + _product(stacked)
        server.state["holders"] = list(uploads)
        result["adapter_version"] = global_state["adapter_version"] + 1
        return result


def _merged(name: str) -> str:
    return f"adapter/{name}"


def _product(factors: Factors) -> Tensor:
    return factors.b @ factors.a
