"""Trackers of a run: a thread and a queue for each tracker."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from protofl.errors import ProtoflError, RunFailure, error_text
from protofl.federation import events
from protofl.federation.events import Event, Progress
from protofl.federation.plan.plan import Plan
from protofl.hooks.plugin.members import Choice
from protofl.hooks.views.run_info import TrackedRun
from protofl.records.layout import TRACKING
from protofl.records.run_folder import RunFolder
from protofl.system.files.atomic import write_json
from protofl.system.files.checksums import read_json
from protofl.system.files.home import expand_user

RESUME_TRACKING = "--resume --track on the finished run writes them down"

LAST_WAIT = 30.0
"""Seconds that a run waits for its trackers at the end."""

WAITING = 1000
"""Maximum number of rounds that wait for a slow tracker."""


def still_at_work() -> bool:
    """Return True if a tracker of this program has not ended."""
    threads = threading.enumerate()
    return any(isinstance(thread, TrackerThread) and not thread.over.is_set() for thread in threads)


@dataclass(frozen=True)
class Ending:
    """The end of a run."""

    status: str
    summary: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


class TrackerThread(threading.Thread):
    """The thread of a tracker: it passes rounds to the plugin without blocking the run.

    Args:
        tracker: The tracker.
        run: The run.
        say: Takes lines for the user, from this thread.
    """

    def __init__(self, tracker: Choice, run: TrackedRun, say: Callable[[str], None]) -> None:
        super().__init__(name=f"tracker {tracker.name}", daemon=True)
        self.tracker, self._run, self._say = tracker, run, say
        self._queue: SimpleQueue[tuple[int, Mapping[str, Any]] | Ending] = SimpleQueue()
        self._lost = self._failed = 0
        self.over = threading.Event()
        """Set when the tracker has ended; unlike join, a wait for it may be interrupted."""

    # --- in the run's thread ----------------------------------------------------------------------

    def take(self, number: int, row: Mapping[str, Any]) -> None:
        """Add a round; it is dropped if too many are waiting."""
        if self._queue.qsize() < WAITING:
            self._queue.put((number, row))
        else:
            self._lost += 1

    def end(self, ending: Ending) -> None:
        """End the run; waiting rounds are still passed on, and only the first ending counts."""
        self._queue.put(ending)

    # --- in its own -------------------------------------------------------------------------------

    def run(self) -> None:
        """Open the tracker, pass on every round, close it; no error leaves this method.

        The tracker gets copies, so it cannot change the record of the run.
        """
        try:
            self._tell()
        finally:
            self.over.set()

    def _tell(self) -> None:
        config, rows = deepcopy((self._run.config, self._run.rows))
        self._run = replace(self._run, config=config, rows=rows)
        try:
            handle = self.tracker.call("open_run", run=self._run)
        except BaseException as error:
            self._say(f"{self._words(error)}; the run goes on without it")
            return
        while not isinstance(item := self._queue.get(), Ending):
            number, row = item
            try:
                self.tracker.call(
                    "log_round", opened=handle, run=self._run, row=deepcopy(row), number=number
                )
            except BaseException as error:
                self._failed += 1
                if self._failed == 1:
                    self._say(f"{self._words(error)}; the run goes on")
        try:
            ending = deepcopy(vars(item))
            self.tracker.call("end_run", opened=handle, run=self._run, **ending)
        except BaseException as error:
            self._say(self._words(error))
        if self._failed > 1:
            self._say(f"tracker {self.tracker.name}: {self._failed} rounds were not written down")
        if self._lost:
            problem = f"tracker {self.tracker.name} is slow: {self._lost} rounds were left out"
            self._say(f"{problem}; {RESUME_TRACKING}")

    def _words(self, error: BaseException) -> str:
        ended = isinstance(error, RunFailure) and error.__cause__
        text = error_text(ended or error)
        return f"tracker {self.tracker.name}: {' '.join(text.split())[:300]}"


class TrackedProgress:
    """Progress of a run that also goes to its trackers.

    Trackers start when the run folder exists, so that a refused run leaves nothing anywhere.

    Args:
        progress: Called with every event, and with a note for each problem of a tracker.
        group: The name of a group of runs, such as a sweep; may be empty.
    """

    def __init__(self, progress: Progress, group: str = "") -> None:
        self._progress, self._group = progress, group
        self._plan: Plan | None = None
        self._folder: RunFolder | None = None
        self._threads: list[TrackerThread] = []
        self._begun, self._count = False, 0
        self._lines = SimpleQueue[str]()

    def __enter__(self) -> TrackedProgress:
        return self

    def __call__(self, event: Event) -> None:
        """Take an event, in the thread of the run."""
        match event:
            case events.Planned():
                self._plan, self._folder = event.plan, event.folder
            case events.FolderMade():
                self._folder = event.folder
                self._begin()
            case events.RoundStarted():
                self._begin()
            case events.RoundDone():
                for thread in self._threads:
                    thread.take(self._count, event.row)
                self._count += 1
            case events.Finished():
                self._begin()
                self._end(Ending("finished", event.result.summary))
        self._progress(event)  # it may end the run
        self._tell()

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        """Wait for the trackers, at most `LAST_WAIT` seconds."""
        if not self._threads or self._plan is None:
            return
        if isinstance(problem, Exception):
            message = problem.what if isinstance(problem, ProtoflError) else error_text(problem)
            self._end(Ending("failed", error=" ".join(message.split())))
        else:
            self._end(Ending("interrupted"))  # counts only where it did not finish
        late = f"has not ended within {LAST_WAIT:g} s"
        try:
            until = time.monotonic() + LAST_WAIT
            for thread in self._threads:
                thread.over.wait(max(0.0, until - time.monotonic()))
        except KeyboardInterrupt:  # ends the wait; what the run has come to stays
            late = "was not waited for any longer"
        self._tell()
        for thread in (thread for thread in self._threads if not thread.over.is_set()):
            line = f"tracker {thread.tracker.name} {late}, and may lack rounds: {RESUME_TRACKING}"
            self._progress(events.Note(line))

    def _begin(self) -> None:
        """Start the threads, where there are trackers and they have not been started."""
        if self._begun or self._plan is None or self._folder is None or not self._plan.trackers:
            return
        self._begun = True
        try:
            self._start(self._plan, self._folder)
        except (OSError, ProtoflError) as error:
            self._lines.put(f"the run is not tracked: {error_text(error)}")

    def _start(self, plan: Plan, home: RunFolder) -> None:
        settings, folder = plan.settings, expand_user(home.path).absolute()
        rows = [*home.rows]
        self._count = len(rows)
        run = TrackedRun(
            key=self._key(home.path / TRACKING),
            name=folder.name,
            group=self._group,
            folder=folder,
            config=home.config(),
            trials=settings.trials,
            rounds=settings.rounds,
            rows=rows,
        )
        self._threads = [TrackerThread(tracker, run, self._lines.put) for tracker in plan.trackers]
        for thread in self._threads:
            thread.start()

    def _key(self, path: Path) -> str:
        """Return the key of the run for its trackers, which stays the same after a resume."""
        key = ""
        if path.exists():
            try:
                key = str(read_json(path).get("key", ""))
            except ProtoflError as error:
                self._lines.put(f"{error.what}: trackers take the run for another one")
        if not key.isalnum():
            key = uuid.uuid4().hex[:16]
            write_json(path, {"key": key})
        return key

    def _end(self, ending: Ending) -> None:
        for thread in self._threads:
            thread.end(ending)

    def _tell(self) -> None:
        """Report the lines of the threads, because progress is called in the run's thread only."""
        while not self._lines.empty():
            self._progress(events.Note(self._lines.get()))
