"""``protofl partition show``: the split of a data set over clients, as a table and a picture."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from protofl.system.formatting import shortened
from protofl_cli import render
from protofl_cli.options import Block, DataDir, Debug, option, plugin_options
from protofl_cli.overwriting import Force, checked

if TYPE_CHECKING:
    from torch import Tensor

    from protofl.data.dataset import Dataset
    from protofl.data.split import Split

WIDE = 20
"""With more classes than this, a client's largest classes are listed instead of all."""

LONG = 60
"""Largest number of rows of the table; the picture has all clients."""


def show(
    dataset: Annotated[str, option("--dataset", "NAME[:PATH]", "Data set.")] = "digits",
    partition: Annotated[
        str | None, option("--partition", "NAME", "Partitioner (default: dirichlet)")
    ] = None,
    clients: Annotated[
        int | None,
        option(
            "--clients",
            "N",
            "Number of clients M (≥ 1; default: of the data set, otherwise 20)",
            min=1,
        ),
    ] = None,
    seed: Annotated[int, option("--seed", "N", "Seed s.", min=0)] = 0,
    batch_size: Annotated[
        int | None,
        option(
            "--batch-size",
            "N",
            "Samples of a mini-batch; clients get at least this many (≥ 1; default: of the "
            "data set, otherwise 10)",
            min=1,
        ),
    ] = None,
    public: Annotated[
        int, option("--public", "N", "Number of public samples to hold out first.", min=0)
    ] = 0,
    subset: Annotated[
        str,
        option(
            "--subset",
            "N|1/N",
            "Class-balanced part of the samples: a share (1/20, 0.05) or a number",
        ),
    ] = "1",
    set_: Annotated[
        list[str] | None,
        option(
            "--set",
            "PART.KEY=VALUE",
            "Option of the partitioner (partition.beta=0.5) or of the data set "
            "(dataset.side=32); repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "PNG",
            "File of the picture (default: partition-DATA-PARTITION-CLIENTS-sSEED.png)",
        ),
    ] = None,
    force: Force = False,
    data_dir: DataDir = None,
    block: Block = None,
    debug: Debug = False,
) -> None:
    """Show how a data set is split over clients: samples of each client and class, and a picture.

    A run with the same options has the same split.
    """
    options = plugin_options(set_, "partition.KEY=VALUE", ("dataset", "partition"))
    target = _target(out, force)
    with render.waiting("loading"):
        data, split = _make(
            dataset,
            partition,
            clients,
            seed,
            batch_size,
            public,
            _share(subset),
            options,
            data_dir,
            block or [],
        )
    name = split.partitioner
    train, test = split.counts(data.y, data.num_classes)
    counts = train + test
    data_name = dataset.partition(":")[0]
    if target is None:
        stem = f"partition-{data_name}-{name}-{split.num_clients}-s{seed}"
        target = Path(re.sub(r"[^A-Za-z0-9._-]+", "-", stem) + ".png")
        checked("--out", target, force=force)

    render.heading(f"{data_name}, {name}, {split.num_clients} clients, seed {seed}")
    for note in (data.note, *split.notes):
        if note:
            render.text(f"  note: {note}", "yellow")
    if data.num_classes <= WIDE:
        _whole_table(data, train, test)
    else:
        _short_table(data, train, test)
    from protofl_workbench import plots
    from protofl_workbench.plots.split_chart import split_figure

    title = f"{data_name} · {name} · {split.num_clients} clients · seed {seed}"
    plots.save(split_figure(counts, data.classes, title), target)
    figures = [("data", f"{len(data.y):,} {data.sample}")]
    figures += _figures(split, train, test, data.num_classes)
    render.pairs([*figures, ("picture", str(target))])


def _target(out: Path | None, force: bool) -> Path | None:
    """The picture's file, checked before anything takes time."""
    from protofl.errors import UsageError

    if out is None:
        return None
    if out.suffix.lower() != ".png":
        raise UsageError(f"--out {out} is no PNG file", do="give a name that ends in .png")
    return checked("--out", out, force=force)


def _share(text: str) -> float:
    """What ``--subset`` says, as a run reads it."""
    from protofl.system.options.table import validated

    share: float = validated("subset", text)
    return share


def _make(
    dataset: str,
    partition: str | None,
    clients: int | None,
    seed: int,
    batch_size: int | None,
    public: int,
    subset: float,
    options: dict[str, dict[str, Any]],
    data_dir: Path | None,
    block: list[str],
) -> tuple[Dataset, Split]:
    """Return the data and their split, as a run makes them."""
    from protofl.data.partition import kept_split, make_split, number_of_clients
    from protofl.federation.inputs import load_data
    from protofl.hooks.discovery.registry import Registry
    from protofl.hooks.plugin.members import choose
    from protofl.runs.plugin_names import name_plugins
    from protofl.system.files.atomic import default_data_dir
    from protofl.system.options.table import default_values

    named = name_plugins({"dataset": dataset, "partition": partition, "block": block}).typed
    registry = Registry.of(named)
    chosen = choose(registry, "dataset", named["dataset"], options["dataset"])
    usual = default_values() | getattr(chosen.plugin, "defaults", {})
    name = named.get("partition") or usual["partition"]
    partitioner = choose(registry, "partitioner", name, options["partition"])
    folder = (data_dir or default_data_dir()).expanduser().absolute()
    data = load_data(chosen, folder, lambda line: render.line(line, "dim"))
    bound, counting = (
        functools.partial(partitioner.call, hook) for hook in ("partition", "count_clients")
    )
    count = number_of_clients(data, clients, usual["clients"], counting)
    split = make_split(
        data,
        bound,
        count,
        batch_size or usual["batch_size"],
        seed,
        public,
        partitioner=partitioner.name,
        subset=subset,
    )
    split.notes.extend(kept_split(data))
    return data, split


def _whole_table(data: Dataset, train: Tensor, test: Tensor) -> None:
    counts = train + test
    rows = []
    for client in range(min(len(counts), LONG)):
        cells = [f"{n:,}" if n else "·" for n in counts[client].tolist()]
        sums = [f"{int(t[client].sum()):,}" for t in (counts, train, test)]
        rows.append([str(client), *cells, *sums])
    rows += _rest(len(counts), data.num_classes + 4)
    total = [f"{n:,}" for n in counts.sum(0).tolist()]
    rows.append(["all", *total, *(f"{int(t.sum()):,}" for t in (counts, train, test))])
    names = [shortened(name, 14) for name in data.classes]
    columns = ["client", *names, "samples", "train", "test"]
    render.table(columns, rows, right=columns[1:], keep=columns)


def _short_table(data: Dataset, train: Tensor, test: Tensor) -> None:
    counts = train + test
    rows = []
    for client in range(min(len(counts), LONG)):
        order = counts[client].argsort(descending=True, stable=True).tolist()
        present = [c for c in order if counts[client, c]]
        largest = [
            f"{shortened(data.classes[c], 14)}: {int(counts[client, c]):,}" for c in present[:5]
        ]
        if len(present) > 5:
            largest.append(f"{len(present) - 5} more")
        sums = [f"{int(t[client].sum()):,}" for t in (counts, train, test)]
        rows.append([str(client), *sums, str(len(present)), ", ".join(largest)])
    rows += _rest(len(counts), 6)
    sums = [f"{int(t.sum()):,}" for t in (counts, train, test)]
    rows.append(["all", *sums, str(int((counts.sum(0) > 0).sum())), ""])
    columns = ("client", "samples", "train", "test", "classes", "largest classes")
    render.table(columns, rows, right=columns[1:5], keep=columns[:5])


def _rest(clients: int, columns: int) -> list[list[str]]:
    return [["…"] * columns] if clients > LONG else []


def _figures(split: Split, train: Tensor, test: Tensor, classes: int) -> list[tuple[str, str]]:
    from protofl.data.split import majority_correct

    counts = train + test
    sizes, held = counts.sum(1), (counts > 0).sum(1)
    rows = [
        ("samples of a client", f"{int(sizes.min()):,} … {int(sizes.max()):,}"),
        ("classes of a client", f"{int(held.min())} … {int(held.max())} of {classes}"),
        ("majority guess", f"{majority_correct(train, test):.1%} accuracy"),
    ]
    if split.public is not None:
        rows.append(("public samples", f"{len(split.public):,}"))
    if split.global_test is not None:
        rows.append(("global test set", f"{len(split.global_test):,} samples"))
    return [*rows, ("hash of the split", split.hash)]
