"""Low-rank adapters over a frozen net, of ranks that differ between clients.

A client has the weights W + s·B_i·A_i of rank r_i in each adapted layer, and a head that is its own
or averaged with weights p_i = n_i/n. W is the same for all: the initial weights (``--same-init``,
the default of these methods), or pretrained ones. s is one number for all clients and ranks, so
that slices of factors mean the same on clients of different ranks; or with ``alpha`` s_i = α/r_i,
as published for FlexLoRA and raFLoRA. Then the server takes s_i·B_i in place of B_i, and a client
gets the server's B divided by its own s_i.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, cast

import torch
from pydantic import AfterValidator, BeforeValidator
from torch import Tensor
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl_plugins.listed_options import joined
from protofl_plugins.low_rank import Factors
from protofl_plugins.models.adapted import Adapted, Layers, matrices, thawed


def ranks_of(text: str) -> list[int]:
    """Return the ranks in a text such as ``8,4,2``.

    Raises:
        ValueError: A rank is not a whole number from 1.
    """
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isdecimal() and int(word) > 0):
            raise ValueError(f"rank {word!r} is not a whole number from 1, as in 8,4,2")
    return [int(word) for word in words]


def _checked(text: str) -> str:
    return ",".join(map(str, ranks_of(text)))


class AdapterConfig(pf.Config):
    """Options of the adapters."""

    ranks: Annotated[str, BeforeValidator(joined), AfterValidator(_checked)] = pf.Field(
        "4", description="ranks r_i, with commas between; client i gets number i mod their count"
    )
    layers: Layers = pf.Field(
        "linear",
        description="layers with an adapter: linear ones and attention, or convolutions too, as "
        "matrices",
    )
    scale: float = pf.Field(
        1.0, gt=0, description="s, of all ranks; the smaller, the slower adapters learn"
    )
    alpha: float | None = pf.Field(
        None, gt=0, description="α, for a scale s_i = α/r_i of each client. None: s = scale"
    )
    head: Literal["average", "local"] = pf.Field(
        "average", description="average the heads too, with weights n_i/n, or keep them on clients"
    )


class Adapters:
    """Hooks of methods whose clients train adapters; `combine` says what the server makes of them.

    ``merges``: the server's result becomes a part of the frozen weights.
    """

    merges = False
    terms = {"ce": "cross-entropy"}
    uploads = {
        "adapter/*": "B_i and A_i of each adapted layer; gradients can be inverted from them",
        "head/*": "the head, with head=average; gradients can be inverted from it",
        "samples": "n_i, the number of training samples",
    }
    downloads = {
        "adapter/*": "B and A of each adapted layer, of the client's rank",
        "head/*": "the average of the heads, with head=average",
    }

    @abstractmethod
    def combine(
        self,
        server: pf.Server[AdapterConfig],
        name: str,
        factors: Sequence[Factors],
        p: Tensor,
    ) -> Factors:
        """Return the server's factors of a layer.

        Args:
            server: The server; `known` and `fresh` return what it had, and new rows of A.
            name: The layer's weight.
            factors: Those of the round's M clients, with s_i·B_i for B_i if ``alpha`` is set.
            p: p_i = n_i/n, [M].
        """

    @pf.hookimpl
    def run_defaults(self, config: AdapterConfig) -> dict[str, object]:
        """One frozen net for all clients."""
        return {"same_init": True}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: AdapterConfig) -> list[str]:
        """Require one net, with layers that the ranks fit."""
        if config.alpha is not None and config.scale != 1:
            return [
                f"alpha={config.alpha:g} sets s_i = α/r_i, and scale={config.scale:g} sets s; "
                "leave one of them out"
            ]
        if not run.homogeneous:
            names = ", ".join(a.name for a in run.architectures)
            return [
                f"it needs one frozen net, and the clients have {names}; --models cnn4, or "
                "torchvision:resnet18 with --set models.weights=FILE"
            ]
        net = run.architectures[0]
        if net.precomputed:
            return [
                "adapters change the features of the frozen net, and keep_features computes them "
                "once; leave keep_features out"
            ]
        with torch.device("meta"):
            sizes = matrices(run.build(net, 0).extractor, config.layers)
        if not sizes:
            more = "; --set layers=all" if config.layers == "linear" else ""
            return [f"{net.name} has no {config.layers} layer before its head to adapt{more}"]
        name, (rows, columns) = min(sizes.items(), key=lambda item: min(item[1]))
        most, largest = min(rows, columns), max(ranks_of(config.ranks))
        if largest <= most:
            return []
        return [
            f"ranks={config.ranks}: rank {largest} is above {most}, the largest of the weight "
            f"{name} [{rows}, {columns}] of {net.name}; --set ranks={most}"
        ]

    @pf.hookimpl
    def setup_client(self, client: pf.Client[AdapterConfig]) -> None:
        """The client's net, frozen, with adapters of its rank."""
        model = cast(pf.models.SplitModel, client.module("model"))
        if isinstance(model.extractor, Adapted):  # by another method of the run
            return
        config, drawn = client.config, client.shared_generator("adapters")
        ranks = ranks_of(config.ranks)
        rank = ranks[client.id % len(ranks)]
        model.extractor = Adapted(
            model.extractor,
            config.layers,
            rank,
            config.scale * unit(config, client.id),
            lambda columns: rows_of(rank, columns, drawn),
            merges=self.merges,
        )

    @pf.hookimpl
    def setup_server(self, server: pf.Server[AdapterConfig]) -> pf.Payload:
        """A of the largest rank, drawn, and B = 0; the head as the server builds it."""
        config, ranks = server.config, ranks_of(server.config.ranks)
        model = server.build(server.clients[0].architecture)
        server.state["ranks"] = [ranks[n % len(ranks)] for n in range(len(server.clients))]
        first = pf.Payload()
        if config.head == "average":
            first = pf.models.pack_weights(model.head, "head")
        for name, (rows, columns) in matrices(thawed(model.extractor), config.layers).items():
            server.state.setdefault("columns", {})[name] = columns
            a = fresh(server, name)
            first |= packed(name, Factors(a.new_zeros(rows, len(a)), a))
        return first

    @pf.hookimpl
    def download_payload(self, server: pf.Server[AdapterConfig], client_id: int) -> pf.Payload:
        """The first r_i slices, in the client's units, and the head."""
        rank, t = server.state["ranks"][client_id], unit(server.config, client_id)
        found = server.knowledge.select("head/*")
        for name in server.state["columns"]:
            found |= packed(name, known(server.knowledge, name).cut(rank).times(1 / t))
        return found

    @pf.hookimpl
    def receive(self, client: pf.Client[AdapterConfig]) -> None:
        """Install factors and head."""
        if client.received:
            for name, own in adapters_of(client).items():
                install(own, known(client.received, name))
        self.receive_head(client)

    @pf.hookimpl
    def local_loss(
        self,
        client: pf.Learner[AdapterConfig],
        batch: pf.Batch,
        output: pf.Output,
        given: pf.Given,
    ) -> pf.Terms:
        """Cross-entropy."""
        return {"ce": cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[AdapterConfig]) -> pf.Payload:
        """The client's factors, its head and n_i."""
        found = pf.Payload(samples=torch.tensor(client.num_samples))
        if client.config.head == "average":
            found |= pf.models.pack_weights(client.module("head"), "head")
        for name, own in adapters_of(client).items():
            found |= packed(name, own.cut(self.rank(client)))
        return found

    @pf.hookimpl
    def check_upload(
        self, server: pf.Server[AdapterConfig], client_id: int, upload: pf.Payload
    ) -> str:
        """Refuse a rank above the client's own."""
        most = server.state["ranks"][client_id]
        for name in server.state["columns"]:
            rank = known(upload, name).rank
            if rank > most:
                return f"an adapter of {name} with rank {rank}, and its own rank is {most}"
        return ""

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[AdapterConfig], uploads: pf.Uploads) -> pf.Payload:
        """Each layer's factors, combined, and the mean of the heads."""
        sent = list(uploads.values())
        samples = torch.stack([upload["samples"] for upload in sent])
        found = pf.Payload()
        if server.config.head == "average":
            found = pf.models.average_weights(sent, "head", samples)
        for name in server.state["columns"]:
            factors = [
                known(upload, name).times(unit(server.config, i)) for i, upload in uploads.items()
            ]
            p = (samples / samples.sum()).to(factors[0].a)
            found |= packed(name, self.combine(server, name, factors, p))
        return found

    def rank(self, client: pf.Client[AdapterConfig]) -> int:
        """Return the client's rank r_i."""
        return next(iter(adapters_of(client).values())).rank

    def receive_head(self, client: pf.Client[AdapterConfig]) -> None:
        """Install the head that was received, if any was."""
        if client.received.under("head"):
            pf.models.load_weights(client.module("head"), client.received, "head")


def unit(config: AdapterConfig, client_id: int) -> float:
    """Return the factor between a client's B_i and the server's: s_i = α/r_i, or 1 without α."""
    ranks = ranks_of(config.ranks)
    return 1.0 if config.alpha is None else config.alpha / ranks[client_id % len(ranks)]


def adapters_of(side: pf.Learner[AdapterConfig]) -> dict[str, Factors]:
    """Return a client's adapters, {name: B, A}."""
    return cast(Adapted, side.module("extractor")).adapters()


def known(payload: Mapping[str, Tensor], name: str) -> Factors:
    """Return the factors of a weight in a payload or in the knowledge."""
    return Factors(payload[f"adapter/{name}/b"], payload[f"adapter/{name}/a"])


def packed(name: str, factors: Factors) -> pf.Payload:
    """Return the factors of a weight by wire names."""
    return pf.Payload({f"adapter/{name}/a": factors.a, f"adapter/{name}/b": factors.b.contiguous()})


@torch.no_grad()
def install(own: Factors, given: Factors) -> None:
    """Copy the first slices of given factors into a client's; its further slices become 0."""
    rank = min(own.rank, given.rank)
    own.a.zero_()[:rank] = given.a[:rank]
    own.b.zero_()[:, :rank] = given.b[:, :rank]


def rows_of(rank: int, columns: int, drawn: torch.Generator) -> Tensor:
    """Return an A, [rank, columns], uniform in ±1/√columns as LoRA begins."""
    spread = 1 / math.sqrt(columns)
    return (2 * torch.rand(rank, columns, generator=drawn) - 1) * spread


def fresh(server: pf.Server[AdapterConfig], name: str) -> Tensor:
    """Return new rows of A of a weight, of the largest rank."""
    largest = max(ranks_of(server.config.ranks))
    drawn = server.generator(f"A of {name}")
    return rows_of(largest, server.state["columns"][name], drawn).to(server.device)
