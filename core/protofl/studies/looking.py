"""Runs of a study's cells that are there already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from protofl.errors import UsageError
from protofl.recorded.once import find
from protofl.recorded.run import Run
from protofl.recorded.wanted import Wanted
from protofl.request.request import Request
from protofl.rounds.events import Event, Note, ignore
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
    wanted = Wanted.of(replace(request, options={**request.options, "rounds": cell.begun}), ignore)
    seed, trials = wanted.plan.settings.seed, range(wanted.plan.settings.trials)
    for run in wanted.candidates(runs.expanduser()):
        far = all(len(run.rows_of(trial)) >= cell.rounds for trial in trials)
        if run.config["seed"] == seed and far:
            try:
                return run.part(trials, cell.rounds)
            except UsageError:
                continue
    return None


def begun(request: Request, runs: Path) -> Run | None:
    """The run that would go on to be the one that is asked for, with the most rounds."""
    wanted = Wanted.of(request, ignore)
    return next(filter(wanted.can_extend, wanted.candidates(runs.expanduser())), None)


def not_reused(request: Request, runs: Path) -> str:
    """Why runs that were begun with these options are not the one that is asked for; "" for none.

    They were made by other code, say, or of other data.
    """
    said: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Note) and event.text.startswith(str(folder)):
            said.append(event.text)

    folder = runs.expanduser()
    Wanted.of(request, listen).candidates(folder)
    return "; ".join(said)
