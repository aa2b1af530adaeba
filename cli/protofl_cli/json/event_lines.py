"""Events of a run as lines of JSON, for other programs: ``protofl run --events FILE|-``.

Each line is one object with ``event`` and ``time`` (UTC), and is flushed at once::

    {"event": "planned", "time": "…", "format": 1, "method": "fedproto", "folder": "/…/runs/a", …}
    {"event": "started", "time": "…", "folder": "/…/runs/a", "rounds_done": 0}
    {"event": "round_started", "time": "…", "trial": 0, "round": 0}
    {"event": "stage", "time": "…", "stage": "train", "clients": 20}
    {"event": "refused_upload", "time": "…", "trial": 0, "round": 0, "client": 3}
    {"event": "evaluation", "time": "…", "trial": 0, "round": 0, "test_accuracy": 0.9, …}
    {"event": "round", "time": "…", "trial": 0, "round": 0, "row": {…}}
    {"event": "checkpoint", "time": "…", "trial": 0, "round": 0, "folder": "/…/a/checkpoint"}
    {"event": "finished", "time": "…", "folder": "/…/runs/a", "summary": {…}}

A ``note`` may come at any time. The last line of a run that does not finish is ``failed`` or
``interrupted``. Trials and rounds count from 0.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from protofl.errors import ProtoflError, UsageError, error_text
from protofl.federation import events
from protofl.federation.events import Event, Progress
from protofl.system.files.home import expand_user
from protofl.system.files.tables import json_values

if TYPE_CHECKING:
    from protofl.records.row import Row
    from protofl.records.run_folder import RunFolder

FORMAT = 1
"""Number of the form of the lines; a change that removes or changes a key raises it."""

ACCURACIES = (
    *("test_accuracy", "client_test_accuracy", "test_accuracy_std", "validation_accuracy"),
    *("unseen_accuracy", "fine_tuned_accuracy", "honest_accuracy"),
)
"""Figures of a round in the event ``evaluation``; null if the round lacks them."""


class EventLines:
    """Progress of a run that is also written as lines.

    If the lines can no longer be read or written (a closed pipe, a full disk), the run goes on
    without them, and a note says so.

    Args:
        target: A file, or an open stream, which stays open.
        progress: Called with every event too.
        resume: True to append to an existing file.

    Raises:
        UsageError: The file exists and the run is not resumed, or it cannot be written.
    """

    def __init__(self, target: Path | TextIO, progress: Progress, *, resume: bool = False) -> None:
        self._progress, self._is_own = progress, isinstance(target, Path)
        self._stream: TextIO | None
        self._stream = _opened(target, resume=resume) if isinstance(target, Path) else target
        self._folder: RunFolder | None = None
        self._begun = False

    def __enter__(self) -> EventLines:
        return self

    def __call__(self, event: Event) -> None:
        """Take an event, in the thread of the run."""
        match event:
            case events.Note():
                self._write("note", text=event.text)
            case events.Planned():
                self._planned(event)
            case events.DryRunStarted():
                self._write("dry_run")
            case events.FolderMade():
                self._folder = event.folder
                self._start()
            case events.RoundStarted():
                self._start()  # a resumed run makes no folder
                self._write("round_started", trial=event.trial, round=event.round)
            case events.StageStarted():
                self._write("stage", stage=event.stage, clients=event.jobs)
            case events.RoundDone():
                self._round(event.row)
            case events.Finished():
                result = event.result
                self._write("finished", folder=_absolute(result.folder), summary=result.summary)
        self._progress(event)

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        """Write how the run ended, unless it finished, and close the file."""
        if isinstance(problem, ProtoflError):
            about = {"what": problem.what, "near": problem.near, "do": problem.do}
            self._write("failed", **about, exit_code=problem.exit_code)
        elif isinstance(problem, KeyboardInterrupt):
            self._write("interrupted", exit_code=getattr(problem, "exit_code", 130))
        elif isinstance(problem, Exception):
            self._write("failed", what=error_text(problem), near="", do="", exit_code=1)
        if self._stream is not None and self._is_own:
            with suppress(OSError):
                self._stream.close()

    # --- lines ------------------------------------------------------------------------------------

    def _planned(self, event: events.Planned) -> None:
        s, self._folder = event.plan.settings, event.folder
        self._write(
            "planned",
            format=FORMAT,
            method=s.method,
            name=s.method,
            models=s.models,
            dataset=s.dataset,
            clients=event.plan.info.num_clients,
            seed=s.seed,
            trials=s.trials,
            rounds=s.rounds,
            rounds_done=len(event.folder.rows),
            folder=_absolute(event.folder.path),
        )

    def _start(self) -> None:
        """Write that training starts, once."""
        if not self._begun and self._folder is not None:
            self._begun = True
            done = len(self._folder.rows)
            self._write("started", folder=_absolute(self._folder.path), rounds_done=done)

    def _round(self, row: Row) -> None:
        place = {"trial": row.trial, "round": row.round}
        for client in row.skipped_uploads:
            self._write("refused_upload", **place, client=client)
        if row.evaluated:
            figures = {name: row.get(name) for name in ACCURACIES}
            self._write("evaluation", **place, evaluated=row.evaluated, **figures)
        self._write("round", **place, row=row.line)
        commit = self._folder.commit if self._folder is not None else None
        if commit is not None and (commit.trial, commit.round) == (row.trial, row.round):
            assert self._folder is not None
            self._write("checkpoint", **place, folder=_absolute(self._folder.path / "checkpoint"))

    def _write(self, event: str, **values: Any) -> None:  # noqa: ANN401 - JSON
        if self._stream is None:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps(json_values({"event": event, "time": now, **values}), allow_nan=False)
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Go on without lines."""
        stream, self._stream = self._stream, None
        with suppress(OSError, ValueError):
            if stream is not None and self._is_own:
                stream.close()
            elif stream is not None:  # otherwise Python fails when it flushes it at the end
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        why = error.strerror if isinstance(error, OSError) else error
        self._progress(events.Note(f"--events: {why}; the run goes on without these lines"))


def _absolute(path: Path) -> Path:
    return expand_user(path).absolute()


def _opened(target: Path, *, resume: bool) -> TextIO:
    path = expand_user(target)
    try:
        if path.is_file() and path.stat().st_size and not resume:
            raise UsageError(
                f"--events {target} exists already",
                do="choose another file; only a resumed run (--resume) appends to it",
            )
        return path.open("a", encoding="utf-8")
    except OSError as error:
        what = f"--events {target} cannot be written: {error.strerror or error}"
        raise UsageError(what, do="choose another file, or - for standard output") from None
