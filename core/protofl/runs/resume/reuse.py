"""Reuse of recorded runs: return a finished run, resume an unfinished one, or start a new one.

    run = run_or_reuse(request, "runs")

The run is found by its identity (`protofl.runs.results.identity`). A new run gets the folder
``METHOD-MODELS-DATA-sSEED-IDENTITY``. The result has exactly the requested trials and rounds, even
if the folder has more. If several processes request the same run, one trains it and the others
wait.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from protofl.errors import Diverged
from protofl.federation import events
from protofl.federation.events import Progress
from protofl.records.failure import Failure
from protofl.records.reading import GOING_ON, Reading
from protofl.runs.request.request import Request
from protofl.runs.resume.requested_run import RequestedRun
from protofl.system.files.atomic import disk_errors
from protofl.system.files.home import expand_user
from protofl.system.files.lock import waiting_lock
from protofl.system.machine import Idle
from protofl.system.randomness import WAITING, one_run

SECONDS = 0.5
"""Seconds between two checks of a run that another process trains."""


class DivergedBefore(Diverged):
    """The requested run diverged before, and would diverge again here.

    Args:
        failure: The recorded failure.
        folder: The folder of the run.
    """

    def __init__(self, failure: Failure, folder: Path) -> None:
        super().__init__(f"{failure.what} (in an earlier run)", failure.near, failure.do)
        self.folder = folder


def run_or_reuse(
    request: Request,
    runs: str | Path = "runs",
    progress: Progress = events.ignore,
    idle: Idle | None = None,
    *,
    repeat_diverged: bool = True,
) -> Reading:
    """Return the requested run; train only what is missing.

    Args:
        request: The run, without a folder (`protofl.runs.request.request.read_request`).
        runs: The folder of runs; those in folders below it are found too.
        progress: Called with every event of what is trained, and with notes: which run is reused
            and what isn't known of it, why another is not.
        idle: Hosts that earlier runs have left, and where this one leaves its own.
        repeat_diverged: False to raise the recorded error of a run that would diverge again, with
            the same code on the same machine, instead of training it.

    Returns:
        A run with exactly the trials and rounds asked for; trial k has seed s + k.

    Raises:
        UsageError: Something asked for can't be done; nothing has been started.
        RunFailure: The run failed; finished rounds are in its folder, and count the next time.
        DivergedBefore: The run diverged before, and `repeat_diverged` is False.
    """
    folder = expand_user(runs)
    waits = f"waiting for another process that makes the same run in {folder}"
    note = lambda: progress(events.Note(WAITING))  # noqa: E731
    with one_run(note), disk_errors(), ExitStack() as until:
        requested = RequestedRun.of(request, progress)
        for lock in requested.locks(folder):
            until.enter_context(waiting_lock(lock, lambda: requested.note(waits)))
        while True:
            there = requested.candidates(folder)
            whole = (run for run in there if not run.lacks_end)
            if run_part := next(filter(None, map(requested.part_of, whole)), None):
                return requested.told_of(run_part)
            busy = [run for run in there if run.state == GOING_ON and requested.shares_trials(run)]
            if not busy:
                break
            requested.note(f"waiting for {busy[0].folder}, which another process is training")
            while busy[0].state == GOING_ON:
                time.sleep(SECONDS)
        for run in filter(requested.can_extend, there):
            if not repeat_diverged and (failure := requested.failed_before(run)):
                raise DivergedBefore(failure, run.folder)
            if extended := requested.extended(run, idle):
                return extended
        return requested.begun(folder, idle)


def find(
    request: Request, runs: str | Path = "runs", progress: Progress = events.ignore
) -> Reading | None:
    """Return the requested run if all of it exists, otherwise None; nothing is trained.

    Args:
        request: What is asked for; it names no folder.
        runs: The folder of runs.
        progress: Called with notes, as in `run_or_reuse`.

    Raises:
        UsageError: Something asked for can't be done.
    """
    requested = RequestedRun.of(request, progress)
    parts = map(requested.part_of, requested.candidates(expand_user(runs)))
    return next((requested.told_of(run_part) for run_part in parts if run_part), None)
