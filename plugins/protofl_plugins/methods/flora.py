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

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.adapters import (
    AdapterConfig,
    Adapters,
    adapters_of,
    install,
    known,
    packed,
    rows_of,
    unit,
)
from protofl_plugins.low_rank import Factors, stack
from protofl_plugins.models.adapted import Adapted


class FLoRA(Adapters):
    """Stacked adapters, merged into the frozen weights (Wang et al., 2024)."""

    Config = AdapterConfig
    merges = True
    downloads = {
        "adapter/*": "the stacked B and A of all clients, or the sum of all merges",
        "adapter_version": "the number of merges so far",
        "head/*": "the average of the heads, with head=average",
    }

    @pf.hookimpl
    def setup_server(self, server: pf.Server[AdapterConfig]) -> pf.Payload:
        """M = 0, version 0, and the head as the server builds it."""
        first = super().setup_server(server)
        for name in server.state["columns"]:
            b, a = (first.pop(f"adapter/{name}/{part}") for part in "ba")
            first[_merged(name)] = b.new_zeros(len(b), a.shape[1])
        return pf.Payload(first, adapter_version=torch.tensor(0))

    @pf.hookimpl
    def download_payload(self, server: pf.Server[AdapterConfig], client_id: int) -> pf.Payload:
        """The stack, or M to a client that missed one, in the client's units; and the head."""
        found, knowledge = server.knowledge.select("head/*", "adapter_version"), server.knowledge
        t = unit(server.config, client_id)
        for name in server.state["columns"] if int(knowledge["adapter_version"]) else ():
            if client_id in server.state["holders"]:
                found |= packed(name, known(knowledge, name).times(1 / t))
            else:
                found[_merged(name)] = knowledge[_merged(name)] / t
        return found

    @pf.hookimpl
    def receive(self, client: pf.Client[AdapterConfig]) -> None:
        """Merge a stack once, however often it is received, and begin with fresh adapters."""
        received, net = client.received, cast(Adapted, client.module("extractor"))
        version = int(received["adapter_version"])
        if version != client.state.get("version", 0):
            for name, M in net.merged().items():
                if f"adapter/{name}/a" in received:
                    M += _product(known(received, name))
                else:
                    M.copy_(received[_merged(name)])
            client.state["version"] = version
        drawn = client.generator("adapters")
        for own in adapters_of(client).values():
            a = rows_of(own.rank, own.a.shape[1], drawn).to(own.a)
            install(own, Factors(torch.zeros_like(own.b), a))
        self.receive_head(client)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[AdapterConfig], uploads: pf.Uploads) -> pf.Payload:
        """The stacks, M with them, and who can merge them."""
        found, knowledge = super().server_aggregate(server, uploads), server.knowledge
        for name in server.state["columns"]:
            found[_merged(name)] = knowledge[_merged(name)] + _product(known(found, name))
        server.state["holders"] = list(uploads)
        found["adapter_version"] = knowledge["adapter_version"] + 1
        return found

    def combine(
        self, server: pf.Server[AdapterConfig], name: str, factors: Sequence[Factors], p: Tensor
    ) -> Factors:
        """[B_1, B_2, …] and [p_1·A_1; p_2·A_2; …]."""
        return stack(factors, [*p])


def _merged(name: str) -> str:
    return f"adapter/{name}"


def _product(factors: Factors) -> Tensor:
    return factors.b @ factors.a
