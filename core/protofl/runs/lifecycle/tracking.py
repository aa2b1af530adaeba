"""Trackers of a run, which take its rounds as they are done."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protofl.errors import ProtoflError, RunFailure, error_text
from protofl.federation import events
from protofl.federation.events import Event, Progress
from protofl.federation.plan.plan import Plan
from protofl.hooks.plugin.members import Choice
from protofl.hooks.views.tracked_run import TrackedRun
from protofl.records.layout import TRACKING
from protofl.records.run_folder import RunFolder
from protofl.system.files.atomic import write_json
from protofl.system.files.checksums import read_json
from protofl.system.files.home import expand_user


class TrackedProgress:
    """Progress of a run that also goes to its trackers.

    An error of a tracker is a note, and the run goes on without the tracker.

    Args:
        progress: Takes the events.
        group: A name for runs that belong together.
    """

    def __init__(self, progress: Progress, group: str = "") -> None:
        self._progress, self._group = progress, group
        self._plan: Plan | None = None
        self._run: TrackedRun | None = None
        self._opened: list[tuple[Choice, Any]] = []
        self._count = 0

    def __enter__(self) -> TrackedProgress:
        return self

    def __call__(self, event: Event) -> None:
        """Take an event."""
        match event:
            case events.Planned():
                self._plan = event.plan
                if (event.folder.path / "config.json").exists():  # a run that is resumed
                    self._open(event.plan, event.folder)
            case events.FolderMade():
                assert self._plan is not None
                self._open(self._plan, event.folder)
            case events.RoundDone():
                self._tell("log_round", row=event.row, number=self._count)
                self._count += 1
            case events.Finished():
                self._end("finished", event.result.summary)
        self._progress(event)  # it may end the run

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        """End the trackers of a run that was not finished."""
        if isinstance(problem, Exception):
            message = problem.what if isinstance(problem, ProtoflError) else error_text(problem)
            self._end("failed", error=" ".join(message.split()))
        else:
            self._end("interrupted")

    def _open(self, plan: Plan, home: RunFolder) -> None:
        folder, rows = expand_user(home.path).absolute(), [*home.rows]
        self._count = len(rows)
        self._run = TrackedRun(
            key=self._key(home.path / TRACKING),
            name=folder.name,
            group=self._group,
            folder=folder,
            config=home.config(),
            trials=plan.settings.trials,
            rounds=plan.settings.rounds,
            rows=rows,
        )
        for tracker in plan.trackers:
            try:
                self._opened.append((tracker, tracker.call("open_run", run=self._run)))
            except Exception as error:
                self._leave(tracker, error)

    def _tell(self, hook: str, **arguments: Any) -> None:  # noqa: ANN401 - as the hook says
        """Call a hook of all trackers; one that fails gets no further calls."""
        for tracker, opened in [*self._opened]:
            try:
                tracker.call(hook, opened=opened, run=self._run, **arguments)
            except Exception as error:
                self._opened.remove((tracker, opened))
                self._leave(tracker, error)

    def _end(self, status: str, summary: Mapping[str, Any] | None = None, error: str = "") -> None:
        self._tell("end_run", status=status, summary=summary or {}, error=error)
        self._opened = []

    def _leave(self, tracker: Choice, error: Exception) -> None:
        ended = isinstance(error, RunFailure) and error.__cause__
        text = " ".join(error_text(ended or error).split())[:300]
        line = f"tracker {tracker.name}: {text}; the run goes on without it"
        self._progress(events.Note(f"{line} (--resume --track sends the rounds that are missing)"))

    def _key(self, path: Path) -> str:
        """Return the key of the run for its trackers, which stays the same after a resume."""
        key = ""
        if path.exists():
            try:
                key = str(read_json(path).get("key", ""))
            except ProtoflError as error:
                self._progress(events.Note(f"{error.what}: trackers take the run for another one"))
        if not key.isalnum():
            key = uuid.uuid4().hex[:16]
            write_json(path, {"key": key})
        return key
