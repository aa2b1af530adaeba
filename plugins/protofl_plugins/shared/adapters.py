"""Low-rank adapters over a frozen net, of ranks that differ between clients.

A client has the weights W + s·B_i·A_i of rank r_i in each adapted layer, and a head that is its own
or averaged with weights p_i = n_i/n. W is the same for all: the initial weights (``--same-init``,
the default of these methods), or pretrained ones. s is one number for all clients and ranks, so
that slices of factors mean the same on clients of different ranks; or with ``alpha`` s_i = α/r_i,
as published for FlexLoRA and raFLoRA. Then the server takes s_i·B_i in place of B_i, and a client
gets the server's B divided by its own s_i.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import AfterValidator, BeforeValidator
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.models.adapted import Adapted, Layers, Sizes, matrices, thawed
from protofl_plugins.models.low_rank import Factors
from protofl_plugins.shared import weights
from protofl_plugins.shared.number_lists import joined

KEYS = {
    "adapter/*/a": pf.Key(
        "[r, columns]",
        "A of ΔW = s·B·A of an adapted layer; gradients can be inverted from it",
        varies=-2,
    ),
    "adapter/*/b": pf.Key("[rows, r]", "B of the same adapter", varies=-1),
}
"""The factors of adapters as they travel; the rank r may differ between clients."""
UPLOADS = {
    "head/*": "the head, with head=average; gradients can be inverted from it",
    "samples": "n_i, the number of training samples",
}
"""Keys that clients send beside factors."""
DOWNLOADS = {"head/*": "the average of the heads, with head=average"}
"""Keys that clients receive beside factors."""
BOTH = "ab"
"""The factors A and B, for functions that can send one of them."""


def ranks_of(text: str) -> list[int]:
    """Return the ranks in a text such as ``8,4,2``.

    Raises:
        ValueError: A rank is not a whole number from 1.
    """
    entries = [word.strip() for word in text.split(",")]
    for word in entries:
        if not (word.isdecimal() and int(word) > 0):
            raise ValueError(f"rank {word!r} is not a whole number from 1, as in 8,4,2")
    return [int(word) for word in entries]


def _checked(text: str) -> str:
    return ",".join(map(str, ranks_of(text)))


def _names(value: object) -> object:
    return value if value is None else joined(value)


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
    targets: Annotated[str | None, BeforeValidator(_names)] = pf.Field(
        None,
        description="names of the layers that get an adapter, with commas between: the ends of "
        "their paths, as query,value; or all. None: of hf-text the query and value projections of "
        "attention, of other nets all that layers names",
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


# --- before the run -------------------------------------------------------------------------------


@pf.hookimpl
def same_net(config: AdapterConfig) -> dict[str, object]:
    """Give all clients one frozen net W."""
    return {"same_init": True}


@pf.hookimpl
def unfit(run: pf.RunInfo, config: AdapterConfig) -> list[str]:
    """Return reasons why the run can't train adapters: several nets, or ranks that don't fit."""
    if config.alpha is not None and config.scale != 1:
        return [
            f"alpha={config.alpha:g} sets s_i = α/r_i, and scale={config.scale:g} sets s; "
            "leave one of them out"
        ]
    if not run.homogeneous:
        names = ", ".join(a.name for a in run.architectures)
        return [
            f"it needs one frozen net, and the clients have {names}; --models cnn4, "
            "torchvision:resnet18 with --set models.weights=FILE, or hf-text:NAME"
        ]
    net = run.architectures[0]
    if net.precomputed:
        return [
            "adapters change the features of the frozen net, and keep_features computes them "
            "once; leave keep_features out"
        ]
    with torch.device("meta"):
        extractor = run.build(net, 0).extractor
    possible, sizes = matrices(extractor, config.layers, ["all"]), chosen(extractor, config)
    if not possible:
        more = "; --set layers=all" if config.layers == "linear" else ""
        return [f"{net.name} has no {config.layers} layer before its head to adapt{more}"]
    for target in targets_of(config):
        if target != "all" and not matrices(extractor, config.layers, [target]):
            return [_unknown_target(target, config, net.name, possible)]
    name, (rows, columns) = min(sizes.items(), key=lambda item: min(item[1]))
    most, largest = min(rows, columns), max(ranks_of(config.ranks))
    if largest <= most:
        return []
    return [
        f"ranks={config.ranks}: rank {largest} is above {most}, the largest of the weight "
        f"{name} [{rows}, {columns}] of {net.name}; --set ranks={most}"
    ]


def targets_of(config: AdapterConfig) -> list[str]:
    """Return the names of layers in the option ``targets``; none without it."""
    return [] if config.targets is None else [name.strip() for name in config.targets.split(",")]


def chosen(net: nn.Module, config: AdapterConfig) -> Sizes:
    """Return the weights of a net that get an adapter by the options, with rows and columns."""
    return matrices(net, config.layers, targets_of(config))


def _unknown_target(target: str, config: AdapterConfig, net: str, possible: Sizes) -> str:
    """Return the reason why a run can't train adapters of a layer that the net does not have."""
    paths = [name.rpartition(".")[0] for name in possible]
    names = [*dict.fromkeys(path.rpartition(".")[2] for path in paths)]
    near = difflib.get_close_matches(target, [*names, *paths], n=1, cutoff=0.5)
    shown = f"did you mean {near[0]!r}?" if near else f"its names: {', '.join(names)}, all"
    return f"targets={config.targets}: {net} has no {config.layers} layer {target!r}; {shown}"


def adapt(client: pf.Client[Any], *, merges: bool = False, train_a: bool = True) -> None:
    """Freeze the client's net and give its layers adapters of the client's rank.

    The first A_i are the first r_i rows of one A of the largest rank, which all clients draw from
    the run's seed.

    Args:
        client: The client.
        merges: Adapters, or a residual of them, are merged into the frozen weights after rounds
            (FLoRA, FedEx-LoRA).
        train_a: Train A too; False keeps it as it was drawn (FFA-LoRA).
    """
    model = cast(pf.models.SplitModel, client.module("model"))
    if isinstance(model.extractor, Adapted):  # by another method of the run
        return
    config, drawn = client.config, client.shared_generator("adapters")
    ranks = ranks_of(config.ranks)
    rank = ranks[client.id % len(ranks)]
    model.extractor = Adapted(
        model.extractor,
        partial(chosen, config=config),
        rank,
        config.scale * unit(config, client.id),
        lambda columns: rows_of(max(ranks), columns, drawn)[:rank],
        merges=merges,
        train_a=train_a,
    )


def adapted_layers(server: pf.Server[Any]) -> tuple[pf.Payload, dict[str, tuple[int, int]]]:
    """Return the initial head if heads are averaged, and the size of each adapted weight.

    The server's state keeps the clients' ``ranks`` and each weight's ``columns``.
    """
    config, ranks = server.config, ranks_of(server.config.ranks)
    model = server.build(server.clients[0].architecture)
    sizes = chosen(thawed(model.extractor), config)
    server.state["ranks"] = [ranks[n % len(ranks)] for n in range(len(server.clients))]
    server.state["columns"] = {name: columns for name, (_, columns) in sizes.items()}
    averaged = config.head == "average"
    return pf.models.pack_weights(model.head, "head") if averaged else pf.Payload(), sizes


def initial_factors(server: pf.Server[Any], parts: str = BOTH) -> pf.Payload:
    """Return A of the largest rank, drawn, and B = 0 of each layer; and the head.

    Args:
        server: The server.
        parts: The factors that travel: ``a``, ``b`` or both.
    """
    first, sizes = adapted_layers(server)
    for name, (rows, _) in sizes.items():
        a = fresh(server, name)
        first |= packed(name, Factors(a.new_zeros(rows, len(a)), a), parts)
    return first


# --- a round --------------------------------------------------------------------------------------


@pf.hookimpl
def first_slices(server: pf.Server[Any], client_id: int) -> pf.Payload:
    """Return B[:, :r_i]/s_i and A[:r_i] of each layer, those that the server has; and the head."""
    rank, s_i = server.state["ranks"][client_id], unit(server.config, client_id)
    sent = server.global_state.select("head/*")
    for name in server.state["columns"]:
        for key, factor in parts_of(server.global_state, name).items():
            if key.endswith("/a"):
                sent[key] = factor[:rank].clone()
            else:
                first = factor[:, :rank].contiguous()
                sent[key] = first if s_i == 1 else (1 / s_i) * first
    return sent


@torch.no_grad()
def install_factors(client: pf.Client[Any]) -> None:
    """Copy the received factors into the client's adapters; factors that were not sent stay."""
    for name, adapter in adapters_of(client).items():
        for key, factor in parts_of(client.received, name).items():
            if key.endswith("/a"):
                adapter.a.zero_()[: len(factor)] = factor[: adapter.rank]
            else:
                adapter.b.zero_()[:, : factor.shape[1]] = factor[:, : adapter.rank]


def install_head(client: pf.Client[Any]) -> None:
    """Copy the received head into the client's, if heads are averaged and the net has one."""
    if client.config.head == "average" and client.module("head").state_dict():
        weights.HEAD.receive(client)


def trained_factors(client: pf.Client[Any], rank: int, parts: str = BOTH) -> pf.Payload:
    """Return n_i, the head if heads are averaged, and the first slices of B_i and A_i.

    Args:
        client: The client.
        rank: The number of slices.
        parts: The factors to send: ``a``, ``b`` or both.
    """
    sent = pf.Payload(samples=torch.tensor(client.num_samples))
    if client.config.head == "average":
        sent |= pf.models.pack_weights(client.module("head"), "head")
    for name, adapter in adapters_of(client).items():
        sent |= packed(name, adapter.cut(rank), parts)
    return sent


@pf.hookimpl
def rank_fault(server: pf.Server[Any], client_id: int, upload: pf.Payload) -> str:
    """Return the fault of an upload whose rank is above the client's own; empty without one."""
    most = server.state["ranks"][client_id]
    for name in server.state["columns"]:
        for key, factor in parts_of(upload, name).items():
            rank = factor.shape[0 if key.endswith("/a") else 1]
            if rank > most:
                return f"an adapter of {name} with rank {rank}, and its own rank is {most}"
    return ""


def mean_heads(server: pf.Server[Any], uploads: pf.Uploads) -> pf.Payload:
    """Return Σ_i p_i·h_i, p_i = n_i/n, if heads are averaged and the net has one; else nothing."""
    if server.config.head != "average" or not server.global_state.select("head/*"):
        return pf.Payload()
    return pf.models.average_weights([*uploads.values()], "head", _samples(uploads))


def shares(uploads: pf.Uploads) -> Tensor:
    """Return p_i = n_i/n of the round's clients, [M]."""
    samples = _samples(uploads)
    return samples / samples.sum()


def _samples(uploads: pf.Uploads) -> Tensor:
    return torch.stack([upload["samples"] for upload in uploads.values()])


def sent_factors(
    server: pf.Server[Any], uploads: pf.Uploads, name: str
) -> tuple[list[Factors], Tensor]:
    """Return s_i·B_i and A_i of a weight by the round's M clients, and p_i = n_i/n, [M]."""
    factors = [known(upload, name).times(unit(server.config, i)) for i, upload in uploads.items()]
    return factors, shares(uploads).to(factors[0].a)


# --- adapters of one side, and of the wire --------------------------------------------------------


def unit(config: AdapterConfig, client_id: int) -> float:
    """Return the factor between a client's B_i and the server's: s_i = α/r_i, or 1 without α."""
    ranks = ranks_of(config.ranks)
    return 1.0 if config.alpha is None else config.alpha / ranks[client_id % len(ranks)]


def rank_of(client: pf.Client[Any]) -> int:
    """Return the rank r_i with which the client's adapters were built."""
    return next(iter(adapters_of(client).values())).rank


def adapters_of(side: pf.Learner[Any]) -> dict[str, Factors]:
    """Return a client's adapters, {name: B, A}."""
    return cast(Adapted, side.module("extractor")).adapters()


def known(payload: Mapping[str, Tensor], name: str, prefix: str = "adapter") -> Factors:
    """Return the factors of a weight in a payload or in the global state."""
    return Factors(payload[f"{prefix}/{name}/b"], payload[f"{prefix}/{name}/a"])


def parts_of(payload: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the factors of a weight that a payload has, by wire names."""
    keys = (f"adapter/{name}/{part}" for part in BOTH)
    return {key: payload[key] for key in keys if key in payload.keys()}


def packed(
    name: str, factors: Factors, parts: str = BOTH, *, prefix: str = "adapter"
) -> pf.Payload:
    """Return the factors of a weight by wire names: ``a``, ``b`` or both."""
    found = {"a": factors.a, "b": factors.b.contiguous()}
    return pf.Payload({f"{prefix}/{name}/{part}": found[part] for part in parts})


@torch.no_grad()
def install(adapter: Factors, factors: Factors) -> None:
    """Copy the first slices of factors into an adapter; the further slices become 0."""
    rank = min(adapter.rank, factors.rank)
    adapter.a.zero_()[:rank] = factors.a[:rank]
    adapter.b.zero_()[:, :rank] = factors.b[:, :rank]


def rows_of(rank: int, columns: int, drawn: torch.Generator) -> Tensor:
    """Return an A, [rank, columns], uniform in ±1/√columns as LoRA begins."""
    spread = 1 / math.sqrt(columns)
    return (2 * torch.rand(rank, columns, generator=drawn) - 1) * spread


def fresh(server: pf.Server[Any], name: str) -> Tensor:
    """Return newly drawn rows of A of one layer, at the largest rank."""
    largest = max(ranks_of(server.config.ranks))
    drawn = server.generator(f"A of {name}")
    return rows_of(largest, server.state["columns"][name], drawn).to(server.device)
