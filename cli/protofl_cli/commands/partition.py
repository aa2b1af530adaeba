"""``protofl partition show``: the split of a data set over clients, as a table and a picture."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from protofl.system.files.home import expand_user
from protofl.system.formatting import shortened
from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.completion import plugin_names
from protofl_cli.options.options import Block, DataDir, Debug, option, plugin_options
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.screens import render

if TYPE_CHECKING:
    from torch import Tensor

    from protofl.data.dataset import Dataset
    from protofl.data.split import Split

WIDE = 20
"""With more classes than this, a client's largest classes are listed instead of all."""

LONG = 60
"""Largest number of clients in the table; the picture has all clients."""


@prints_json
def show(
    dataset: Annotated[
        str, option("--dataset", "NAME[:PATH]", "Data set.", autocompletion=plugin_names("dataset"))
    ] = "digits",
    partition: Annotated[
        str | None,
        option(
            "--partition",
            "NAME",
            "Partitioner (default: the data set's)",
            autocompletion=plugin_names("partitioner"),
        ),
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
            "FILE",
            "File of the picture: .png, .pdf or .svg (default: "
            "partition-DATA-PARTITION-CLIENTS-sSEED.png)",
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
    data_dir: DataDir = None,
    block: Block = None,
    debug: Debug = False,
) -> None:
    """Show how a data set is split over clients: samples of each client and class, and a picture.

    A run with the same options has the same split.
    """
    from protofl.system.options.table import validated
    from protofl_workbench.plots.figure_files import format_of

    options = plugin_options(set_, "partition.KEY=VALUE", ("dataset", "partition"))
    if out is not None:
        format_of(checked("--out", out, force=force))
    share = validated("subset", subset)
    with render.waiting("loading"):
        data, split = _make(
            {"dataset": dataset, "partition": partition, "block": block or []},
            options,
            data_dir,
            (clients, seed, public, share),
        )
    from protofl.data.split import client_names
    from protofl.data.task_names import STRATA

    train, test = split.counts(data.y, data.num_classes)
    parts = [dataset.partition(":")[0], split.partitioner, f"{split.num_clients} clients"]
    stem = f"partition-{parts[0]}-{split.partitioner}-{split.num_clients}-s{seed}"
    target = out or Path(re.sub(r"[^A-Za-z0-9._-]+", "-", stem) + ".png")
    checked("--out", target, force=force)
    names = client_names(split, data.columns)
    if not as_json:
        render.heading(", ".join([*parts, f"seed {seed}"]))
        for note in (*data.note.splitlines(), *split.notes):
            render.text(f"  note: {note}", "yellow")
        _show_table(data, train, test, names)
    from protofl_workbench import plots
    from protofl_workbench.plots.client_charts import split_figure

    title = " · ".join([*parts, f"seed {seed}"])
    part, _ = STRATA[data.task.name]
    plots.save(split_figure(train + test, data.classes, title, names, part), target)
    if as_json:
        about = {"dataset": dataset, "partition": split.partitioner, "seed": seed}
        print_json({**about, **_values(data, split, train, test, names), "picture": target})
        return
    figures = [("data", f"{len(data.y):,} {data.sample}")]
    figures += _figures(split, data, train + test)
    render.pairs([*figures, ("picture", str(target))])


def _make(
    chosen: dict[str, Any],
    options: dict[str, dict[str, Any]],
    data_dir: Path | None,
    numbers: tuple[int | None, int, int, float],
) -> tuple[Dataset, Split]:
    """Return the data and their split, as a run makes them."""
    from protofl.data.partition import kept_split, make_split, minimum_for, number_of_clients
    from protofl.federation.plan.run_data import load_data, own_partition
    from protofl.hooks.discovery.registry import Registry
    from protofl.hooks.plugin.members import choose
    from protofl.runs.request.program_classes import name_plugins
    from protofl.system.files.atomic import default_data_dir
    from protofl.system.options.table import default_values

    clients, seed, public, subset = numbers
    named, _ = name_plugins(chosen)
    registry = Registry.of(named)
    dataset = choose(registry, "dataset", named["dataset"], options["dataset"])
    usual = default_values() | getattr(dataset.plugin, "defaults", {})
    given, partition_options = named.get("partition"), options["partition"]
    name = own_partition(dataset, given) or given
    if not name:
        name, partition_options = (
            usual["partition"],
            usual.get("options", {}).get("partition", {}) | partition_options,
        )
    partitioner = choose(registry, "partitioner", name, partition_options)
    folder = expand_user(data_dir or default_data_dir()).absolute()
    data = load_data(dataset, folder, lambda line: render.line(line, "dim"))
    bound, counting = (
        functools.partial(partitioner.call, hook) for hook in ("partition", "count_clients")
    )
    count = number_of_clients(data, clients, usual["clients"], counting)
    split = make_split(
        data,
        bound,
        count,
        **minimum_for(partitioner.config),
        seed=seed,
        public=public,
        partitioner=partitioner.name,
        subset=subset,
    )
    split.notes.extend(kept_split(data))
    return data, split


def _show_table(data: Dataset, train: Tensor, test: Tensor, clients: Sequence[str]) -> None:
    """Print the samples of each client: by class, or in its largest classes if there are many.

    Args:
        data: The data.
        train: Training samples of each client and class, [M, C].
        test: Test samples, [M, C].
        clients: Names of the clients; empty for their numbers.
    """
    from protofl.data.task_names import STRATA

    counts = train + test
    names = [shortened(name, 14) for name in data.classes]
    few = len(names) <= WIDE

    def row(label: str, *tables: Tensor) -> list[str]:
        counts, *_ = tables
        sums = [label, *(f"{int(table.sum()):,}" for table in tables)]
        present = [c for c in counts.argsort(descending=True, stable=True).tolist() if counts[c]]
        if few:
            return [*sums, *(f"{n:,}" if n else "·" for n in counts.tolist())]
        largest = [f"{names[c]}: {int(counts[c]):,}" for c in present[:5]]
        largest += [f"{len(present) - 5} more"] if len(present) > 5 else []
        return [*sums, str(len(present)), ", ".join(largest)]

    shown = min(len(counts), LONG)
    rows = [
        row(clients[n] if clients else str(n), counts[n], train[n], test[n]) for n in range(shown)
    ]
    rows += [["…"] * len(rows[0])] if shown < len(counts) else []
    rows.append(row("all", counts.sum(0), train.sum(0), test.sum(0)))
    columns = ["client", "samples", "train", "test"]
    parts = STRATA[data.task.name][1]
    columns += names if few else [parts, f"largest {parts}"]
    right = columns[1:] if few else columns[1:5]
    render.table(columns, rows, right=right, keep=["client", *right])


def _values(
    data: Dataset, split: Split, train: Tensor, test: Tensor, names: Sequence[str]
) -> dict[str, Any]:
    """Return a split as JSON values."""
    from protofl.data.split import majority_guess

    each = zip(train.tolist(), test.tolist(), strict=True)
    return {
        "classes": data.classes,
        "clients": [
            {"client": n, "name": names[n] if names else None, "train": own, "test": held}
            for n, (own, held) in enumerate(each)
        ],
        "majority": float(majority_guess(split, data)),
        "public_samples": 0 if split.public is None else len(split.public),
        "global_test_samples": 0 if split.global_test is None else len(split.global_test),
        "hash": split.hash,
        "notes": [*data.note.splitlines(), *split.notes],
    }


def _figures(split: Split, data: Dataset, counts: Tensor) -> list[tuple[str, str]]:
    from protofl.data.split import majority_guess
    from protofl.data.task_names import STRATA

    _, parts = STRATA[data.task.name]
    sizes, held = counts.sum(1), (counts > 0).sum(1)
    rows = [
        ("samples of a client", f"{int(sizes.min()):,} … {int(sizes.max()):,}"),
        (f"{parts} of a client", f"{int(held.min())} … {int(held.max())} of {data.num_classes}"),
        ("majority guess", f"{majority_guess(split, data):.1%} {data.task.score_name}"),
    ]
    if split.public is not None:
        rows.append(("public samples", f"{len(split.public):,}"))
    if split.global_test is not None:
        rows.append(("global test set", f"{len(split.global_test):,} samples"))
    return [*rows, ("hash of the split", split.hash)]
