"""Runs of a study's cells that are there already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from protofl.errors import UsageError
from protofl.recorded.once import find
from protofl.recorded.run import Run
from protofl.recorded.wanted import Wanted
from protofl.request.request import Request
from protofl.rounds.events import ignore
from protofl.studies.cells import Cell


def whole(cell: Cell, runs: Path) -> Run | None:
    """The run of a cell, if it has the rounds that are wanted.

    With ``--rounds`` those of a run count too that was begun for the study's number and has come so
    far: of methods that depend on the number (``fedkd``) it is another run than one begun for less.
    """
    request = cell.request()
    found = find(request, runs)
    if found is not None or not cell.begun or not cell.rounds or cell.rounds >= cell.begun:
        return found
    begun = replace(request, options={**request.options, "rounds": cell.begun})
    run = longest(begun, runs)
    trials = range(int(request.options.get("trials", 1)))
    if run is None or run.config["seed"] != request.options.get("seed", 0):
        return None
    if any(len(run.rows_of(trial)) < cell.rounds for trial in trials):
        return None
    try:
        return run.part(trials, cell.rounds)
    except UsageError:
        return None


def longest(request: Request, runs: Path) -> Run | None:
    """The run that is there with the most rounds, whole or not."""
    found = Wanted.of(request, ignore).candidates(runs.expanduser())
    return found[0] if found else None
