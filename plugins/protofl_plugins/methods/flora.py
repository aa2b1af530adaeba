"""LoRA adapters whose exact mean is merged into the frozen weights: all of it, or a residual.

Both methods keep M, the sum of all merges, so that a client's frozen weights are W + s·M. A client
that missed a merge gets M itself. `protofl_plugins.shared.adapters` has the adapters' steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch

import protofl as pf
from protofl_plugins.models.adapted import Adapted
from protofl_plugins.models.low_rank import Factors, best_of_rank, stack
from protofl_plugins.shared import adapters


class FLoRA:
    """Stacked adapters, merged into the frozen weights (Wang et al., 2024).

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
        first |= _nothing_merged(server, sizes)
        return first

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Freeze W and add B_i and A_i of rank r_i, and a place for M."""
        adapters.adapt(client, merges=True)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send the stack, or M to a client that missed one, in the client's units; and the head."""
        sent = server.global_state.select("head/*")
        sent |= _last_merge(server, client_id, "adapter")
        return sent

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Merge a stack once, however often it is received, and begin with fresh adapters."""
        _merge(client, "adapter")
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
        result, stacks = adapters.mean_heads(server, uploads), {}
        for name in server.state["columns"]:
            factors, p = adapters.sent_factors(server, uploads, name)
            stacks[name] = stack(factors, [*p])
            result |= adapters.packed(name, stacks[name])
        result |= _merged(server, stacks)
        server.state["holders"] = list(uploads)
        return result


class FedExLoRA(FLoRA):
    """Averaged adapters, with the error of the means merged into the frozen weights.

    Singhal et al., "FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of Large
    Language Models", ACL 2025 (arXiv 2410.09432).

        local     B_i, A_i of rank r: min over them of ℓ(W + s·B_i·A_i), from the download on
        server    B ← Σ_i p_i·B_i,  A ← Σ_i p_i·A_i,  p_i = n_i/n
                  ΔW_res = Σ_i p_i·B_i·A_i − B·A
        down      B,  A,  and ΔW_res as factors:  W ← W + s·ΔW_res

    So W + s·B·A is the exact mean of the weights of the round's k clients. ΔW_res is also Σ_i
    p_i·(B_i − B)·(A_i − A), so its rank is at most (k − 1)·r, and an SVD gives its factors. If they
    have more numbers than the weights, clients get the sum M of all residuals in their place, as a
    client does that missed one. The paper has means with weights 1/k. Inference: the client's net
    after its download, which is merged.
    """

    asynchronous = (
        "the residual is that of clients that trained from one M, and a stale client has an "
        "earlier one"
    )
    downloads = {
        **FLoRA.downloads,
        "residual/*/a": pf.Key(
            "[r, columns]",
            "A of ΔW_res = B·A, by how much the mean of the clients' products differs from B·A",
            varies=-2,
        ),
        "residual/*/b": pf.Key("[rows, r]", "B of the same residual", varies=-1),
    }

    @staticmethod
    @pf.hookimpl
    def requires(run: pf.RunInfo, config: adapters.AdapterConfig) -> list[str]:
        """Return reasons why the run can't train such adapters: ranks that differ, and others."""
        reasons = adapters.unfit(run, config)
        if not reasons and len({*adapters.ranks_of(config.ranks)}) > 1:
            reasons.append(
                f"ranks={config.ranks}: the residual is exact for clients of one rank; "
                "--set ranks=4, or flora, flexlora or raflora"
            )
        return reasons

    @pf.hookimpl
    def setup_server(self, server: pf.Server[FLoRA.Config]) -> pf.Payload:
        """Draw A, set B = 0, M = 0 and the version to 0, and build the head."""
        first, columns = adapters.initial_factors(server), server.state["columns"]
        sizes = {name: (len(adapters.known(first, name).b), columns[name]) for name in columns}
        first |= _nothing_merged(server, sizes)
        return first

    @pf.hookimpl
    def download_payload(self, server: pf.Server[FLoRA.Config], client_id: int) -> pf.Payload:
        """Send B, A, the head, and ΔW_res or M."""
        sent = adapters.first_slices(server, client_id)
        sent |= _last_merge(server, client_id, "residual")
        return sent

    @pf.hookimpl
    def receive(self, client: pf.Client[FLoRA.Config]) -> None:
        """Merge ΔW_res once, however often it is received, and install B, A and the head."""
        _merge(client, "residual")
        adapters.install_factors(client)
        adapters.install_head(client)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[FLoRA.Config], uploads: pf.Uploads) -> pf.Payload:
        """Average B and A of each layer, and the heads, and add ΔW_res to M."""
        result, residuals = adapters.mean_heads(server, uploads), {}
        rank = (len(uploads) - 1) * adapters.ranks_of(server.config.ranks)[0]
        sizes = [server.global_state[_key(name)].shape for name in server.state["columns"]]
        thin = sum(rank * (rows + columns) - rows * columns for rows, columns in sizes) < 0
        for name, columns in server.state["columns"].items():
            factors, p = adapters.sent_factors(server, uploads, name)
            b, a = (torch.tensordot(p, torch.stack(each), 1) for each in zip(*factors, strict=True))
            result |= adapters.packed(name, Factors(b, a))
            residuals[name] = stack([Factors(f.b, f.a - a) for f in factors], [*p])
            if thin:
                residuals[name] = best_of_rank(residuals[name], a.new_zeros(rank, columns))
                result |= adapters.packed(name, residuals[name], prefix="residual")
        result |= _merged(server, residuals)
        server.state["holders"] = list(uploads) if thin else []
        return result


def _key(name: str) -> str:
    return f"adapter/{name}"


def _nothing_merged(
    server: pf.Server[FLoRA.Config], sizes: Mapping[str, tuple[int, int]]
) -> pf.Payload:
    """Return M = 0 of each layer, and the version 0."""
    M = {_key(name): torch.zeros(size, device=server.device) for name, size in sizes.items()}
    return pf.Payload(M, adapter_version=torch.tensor(0))


def _merged(server: pf.Server[FLoRA.Config], changes: Mapping[str, Factors]) -> pf.Payload:
    """Return M + B·A of each layer, and the next version."""
    result = pf.Payload(adapter_version=server.global_state["adapter_version"] + 1)
    for name, change in changes.items():
        result[_key(name)] = server.global_state[_key(name)] + change.b @ change.a
    return result


def _last_merge(server: pf.Server[FLoRA.Config], client_id: int, prefix: str) -> pf.Payload:
    """Return the last change of M, or M for a client that missed one, in the client's units."""
    global_state, s_i = server.global_state, adapters.unit(server.config, client_id)
    sent = global_state.select("adapter_version")
    for name in server.state["columns"] if int(global_state["adapter_version"]) else ():
        if client_id in server.state.get("holders", ()):  # none in a step of another method
            change = adapters.known(global_state, name, prefix).times(1 / s_i)
            sent |= adapters.packed(name, change, prefix=prefix)
        else:
            sent[_key(name)] = global_state[_key(name)] / s_i
    return sent


def _merge(client: pf.Client[FLoRA.Config], prefix: str) -> None:
    """Add a received change to the client's M, or take a received M, once."""
    received, net = client.received, cast(Adapted, client.module("extractor"))
    version = int(received["adapter_version"])
    if version == client.state.get("version", 0):
        return
    for name, M in net.merged().items():
        if _key(name) in received.keys():
            M.copy_(received[_key(name)])
        else:
            change = adapters.known(received, name, prefix)
            M += change.b @ change.a
    client.state["version"] = version
