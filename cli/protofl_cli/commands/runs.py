"""``protofl runs``: list, show, compare and remove recorded runs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofl.system.files.home import expand_user
from protofl.system.formatting import count, size_text
from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.options import Debug, option
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl.records.run_index import IndexEntry
    from protofl_workbench.recorded.recorded_run import Run

Folder = Annotated[Path, option("--runs", "DIR", "Folder of runs; subfolders are searched too.")]
Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...", help="Run folders, or at least four digits of an identity (see list)."
    ),
]


@prints_json
def list_runs(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Folder of runs, as --runs.")
    ] = None,
    runs: Folder = Path("runs"),
    method: Annotated[str | None, option("--method", "NAME", "Only this method.")] = None,
    models: Annotated[str | None, option("--models", "GROUP", "Only this model group.")] = None,
    dataset: Annotated[str | None, option("--dataset", "NAME", "Only this data set.")] = None,
    seed: Annotated[int | None, option("--seed", "N", "Only this seed.")] = None,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Only unfinished runs.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List runs by the time of their last round, the newest last.

    Runs with the same identity differ only in seed, trials and rounds. Accuracies are means over
    trials; the best round is chosen on test samples.
    """
    from protofl.errors import UsageError
    from protofl.records.reading import DAMAGED, FINISHED, UNFINISHED, Reading
    from protofl.records.run_index import runs_in

    folder = folder or runs
    if not expand_user(folder).is_dir():
        raise UsageError(f"there is no folder {folder}", do="give the folder of your runs")
    matching = []
    for path, told in runs_in(expand_user(folder)).items():
        asked = {"models": models, "seed": seed}
        is_asked = all(want in (None, getattr(told, key)) for key, want in asked.items())
        is_asked &= method in (None, told.method, told.name)
        is_asked &= dataset in (None, told.dataset, told.dataset.partition(":")[0])
        if is_asked and not (unfinished and told.finished):
            if told.problem:
                state = DAMAGED
            else:
                state = FINISHED if told.finished else Reading(path).state
            matching.append((path, told, state))
    matching.sort(key=lambda each: (each[1].time, each[0]))
    if as_json:
        rows = [{"folder": str(p), "state": state, **asdict(told)} for p, told, state in matching]
        print_json(rows)
        return
    if not matching:
        render.text(f"No such runs in {folder}.")
        return
    rows = [
        _row(path.relative_to(expand_user(folder)), told, state) for path, told, state in matching
    ]
    common = {key: rows[0][key] for key in SHARED if len({row[key] for row in rows}) == 1}
    columns, dropped = _fitting(rows, [key for key in rows[0] if key not in common])
    render.table(
        columns,
        [[row[key] for key in columns] for row in rows],
        right=("rounds", "best", "final"),
        keep=("rounds", "best", "final", "state", "identity"),
        wrap=True,
    )
    for _, told, _ in matching:
        if told.problem:
            render.line(told.problem, "red")
    for path, _, state in matching:
        if state == UNFINISHED:
            render.line(f"{path}: {Reading(path).interruption}", "yellow")
    if common:
        said = ", ".join(f"{key} {value}" for key, value in common.items())
        render.text(said if len(rows) == 1 else f"all: {said}", "dim")
    if dropped:
        render.text(f"hidden for lack of space: {', '.join(dropped)} (see --json)", "dim")
    summary = f"{count(len(matching), 'run')} in {folder}"
    if any(told.trials > 1 for _, told, _ in matching):
        summary += "; rounds: trials × rounds of each"
    render.line(f"{summary}; details: protofl runs show IDENTITY", "dim")


def _fitting(rows: list[dict[str, str]], columns: list[str]) -> tuple[list[str], list[str]]:
    """Return the columns that fit on the screen, and the others."""
    wide = {key: max(len(key), *(len(row[key]) for row in rows)) for key in columns}
    kept, dropped = list(columns), list[str]()
    for key in DISPENSABLE:
        if key in kept and sum(wide[k] + 3 for k in kept) - 3 > render.console().width:
            kept.remove(key)
            dropped.append(key)
    return kept, dropped


DISPENSABLE = ("split", "final", "models", "data", "method")
"""Columns that are hidden on narrow screens; the name of a folder often has the same."""

SHARED = ("method", "models", "data", "split", "state")
"""Columns that are shown once below the table if all rows are equal."""


def _row(path: Path, told: IndexEntry, state: str) -> dict[str, str]:
    asked = told.rounds * told.trials
    whole, progress = f"{told.rounds}", f"{told.done}/{told.rounds}"
    if told.trials > 1:
        whole = f"{told.trials} × {told.rounds}"
        progress = f"{told.done} of {whole}"
    seeds = f"s{told.seed}" if told.trials < 2 else f"s{told.seed}…{told.seed + told.trials - 1}"
    return {
        "folder": str(path),
        "method": told.name,
        "models": told.models,
        "data": _short(told.dataset),
        "split": told.partition,
        "rounds": whole if told.done == asked else progress,
        "best": _share(told.best),
        "final": _share(told.final),
        "state": state,
        "identity": f"{told.identity[:8] or '?'}-{seeds}",
    }


def _short(dataset: str) -> str:
    """Return the name of a data set, or of its file."""
    name, colon, path = dataset.partition(":")
    return Path(path).stem if colon else name


def _share(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.1%}"


@prints_json
def show_runs(
    names: Runs, runs: Folder = Path("runs"), as_json: Json = False, debug: Debug = False
) -> None:
    """Show the options, state, results and cost of runs, and how to repeat them."""
    from protofl.records.run_index import find_runs
    from protofl_workbench.recorded.recorded_run import load_run

    selected = [load_run(path) for name in names for path in find_runs(name, runs)]
    if as_json:
        from protofl_cli.pages.run_pages import run_values

        print_json([run_values(run) for run in selected])
        return
    for run in selected:
        _show(run)


def _show(run: Run) -> None:
    from protofl.data.task_names import score_name
    from protofl_cli.pages.run_pages import accuracy_table, architecture_table, page_rows
    from protofl_cli.screens.last_table import show_clients

    config = run.config
    render.heading(f"{run.name} · {config['models']} · {config['dataset']}", run.state)
    render.pairs(page_rows(run))
    render.text()
    if run.rows:
        columns, rows = accuracy_table(run)
        render.table(columns, rows, right=columns[1:])
        columns, rows = architecture_table(run)
        if rows:
            render.table(columns, rows, right=columns[1:])
        show_clients(run.clients, score_name(config), len(run.accuracies))


@prints_json
def diff_runs(
    a: Annotated[str, typer.Argument(metavar="A", help="Run folder or digits of an identity.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another run.")],
    runs: Folder = Path("runs"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show how two runs differ: options, data, software, results, and the first other round.

    Equal runs have equal figures in every round, to the last bit. Exit code 0: nothing but the
    time differs; 1: the runs differ.
    """
    from protofl.errors import UsageError
    from protofl.records.run_index import find_runs
    from protofl_cli.pages.run_pages import show_difference
    from protofl_workbench.comparing.run_difference import run_difference
    from protofl_workbench.recorded.recorded_run import load_run

    both = []
    for word in (a, b):
        paths = find_runs(word, runs)
        if len(paths) != 1:
            names = ", ".join(map(str, paths[:4]))
            raise UsageError(
                f"{word} names {len(paths)} runs: {names}", do="give the folder of one"
            )
        both.append(load_run(paths[0]))
    difference = run_difference(*both)
    if as_json:
        print_json(asdict(difference) | {"a": a, "b": b})
    else:
        show_difference(difference, *(run.folder for run in both))
    if not difference.is_empty:
        raise typer.Exit(1)


def remove_runs(
    names: Runs,
    runs: Folder = Path("runs"),
    force: Annotated[bool, typer.Option("--force", help="Do not ask.")] = False,
    debug: Debug = False,
) -> None:
    """Remove the files of runs, and their folders if nothing else is in them.

    Asks first. If one of the folders is not a run, or a run is in progress, nothing is removed.
    """
    from protofl.errors import UsageError
    from protofl.records.run_index import find_runs
    from protofl_workbench.recorded.removal import check_removable, remove, size_of

    paths = dict.fromkeys(path for name in names for path in find_runs(name, runs))
    folders = [check_removable(path) for path in paths]
    sizes = [size_of(path) for path in folders]
    if not force:
        if not sys.stdin.isatty():
            raise UsageError(
                f"removing {', '.join(map(str, folders[:5]))} needs a confirmation on a terminal",
                do="add --force",
            )
        for path, size in zip(folders, sizes, strict=True):
            render.line(f"{path}  {size_text(size)}")
        typer.confirm(
            f"Remove {'it' if len(folders) == 1 else f'these {len(folders)} runs'}?", abort=True
        )
    for path in folders:
        left = remove(path)
        stays = f"; it still holds {', '.join(left)}" if left else ""
        render.line(f"removed {path}{stays}")
