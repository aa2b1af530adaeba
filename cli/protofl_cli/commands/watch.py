"""``protofl watch``: monitor running experiments from another terminal or machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl.system.files.home import expand_user
from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.options import Debug, option
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl_workbench.recorded.monitor import Monitor, RunStatus

GRACE = 10.0
"""Seconds without a running process after which it ends: a sweep may be between two runs."""


@prints_json
def watch(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Run folder, folder of runs, or folder of a sweep."),
    ] = Path("runs"),
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
    every: Annotated[float, option("--every", "SECONDS", "Time between updates.", min=0.1)] = 1.0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Monitor running experiments: round, accuracy, traffic, time left.

    Only reads files, so it works in another terminal, or on another machine with the folder. Ends
    when no run is in progress. Ctrl-C ends the monitor, not the runs. --json prints the current
    state and exits.
    """
    from protofl.errors import UsageError
    from protofl_cli.screens.run_lines import RIGHT, RunLines, board
    from protofl_workbench.recorded.monitor import Monitor

    path = expand_user(folder)
    if not path.is_dir():
        raise UsageError(f"there is no folder {folder}", do="give a run folder or a folder of runs")
    following = Monitor(path)
    path = following.runs
    if as_json:
        print_json([_values(run) for run in following.look()])
        return
    lines = RunLines(path)
    if once:
        render.board(partial(board, following.look(), path), RIGHT)
        return
    seen: list[RunStatus] = []
    try:
        with render.Live(RIGHT) as live:
            for seen in _looks(following, every):
                if live.draws:
                    live.show(partial(board, seen, path))
                else:
                    render.plain(lines.new(seen))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    for line in _ends(seen):
        render.line(line, "yellow")


def _values(run: RunStatus) -> dict[str, Any]:
    """Return the progress of a run as JSON values."""
    entry = run.entry
    about = {"folder": run.path, "name": entry.name, "state": run.state, "trial": run.trial}
    about |= {"round": run.round, "rounds": entry.rounds, "trials": entry.trials}
    about |= {"curve": run.curve, "megabytes": run.megabytes, "absent": run.absent}
    return {**about, "left": run.left, "problem": entry.problem}


def _looks(following: Monitor, every: float) -> Iterator[list[RunStatus]]:
    """Yield the states of the runs until no run is in progress."""
    quiet_since = time.monotonic()
    while True:
        seen = following.look()
        yield seen
        if following.is_at_work(seen):
            quiet_since = time.monotonic()
        elif _is_over(seen) or time.monotonic() - quiet_since >= GRACE:
            return
        time.sleep(every)


def _is_over(seen: list[RunStatus]) -> bool:
    """Return True if there is a single run and it has ended."""
    from protofl.records.reading import DIVERGED, FINISHED

    return len(seen) == 1 and seen[0].state in (FINISHED, DIVERGED)


def _ends(seen: list[RunStatus]) -> list[str]:
    """Say how to resume unfinished runs, and why runs diverged."""
    from protofl.records.reading import DIVERGED, UNFINISHED
    from protofl_cli.screens.tables import shown_path

    left = [run for run in seen if run.state == UNFINISHED]
    lost = [run for run in seen if run.state == DIVERGED]
    lines = [
        f"ended without a summary in round {run.round + 1}; resume with: "
        f"protofl run --resume --out {shown_path(run.path)}"
        for run in left[:3]
    ]
    if len(left) > 3:
        lines = [f"{len(left)} runs are unfinished: protofl runs list --unfinished"]
    entry = [f"diverged; details: protofl runs show {shown_path(run.path)}" for run in lost[:3]]
    return lines + entry
