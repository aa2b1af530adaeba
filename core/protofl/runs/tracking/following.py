"""Follows a run for its trackers: its events go to whoever asked for them, and to threads."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path
from types import TracebackType

from protofl.errors import ProtoflError, in_words
from protofl.federation.plan.plan import Plan
from protofl.federation.rounds import events
from protofl.federation.rounds.events import Event, Progress
from protofl.hooks.views.tracked_run import TrackedRun
from protofl.records.folder.reading import TRACKING
from protofl.records.folder.run_folder import RunFolder
from protofl.runs.tracking.told import AGAIN, Ending, Told
from protofl.system.files.atomic import write_json
from protofl.system.files.checksums import read_json


def check_trackers(plan: Plan) -> None:
    """Whether the trackers of a run can track at all.

    Raises:
        UsageError: One can't: its library is missing.
    """
    for tracker in plan.trackers:
        tracker.call("check")


class Followed:
    """The progress of a run, of which its trackers are told too.

    The trackers are those of the plan that the run tells of. They are told once the run folder is
    there, so that a run that is refused has left nothing anywhere.

    Args:
        progress: Called with every event, and with a note for what is wrong with a tracker.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._plan: Plan | None = None
        self._folder: RunFolder | None = None
        self._told: list[Told] = []
        self._begun, self._count = False, 0
        self._lines: list[str] = []
        self._lock = threading.Lock()

    @property
    def follows_steps(self) -> bool:
        """Whether steps are counted: trackers don't need them."""
        return events.follows_steps(self._progress)

    def __enter__(self) -> Followed:
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
                for told in self._told:
                    told.take(self._count, event.row)
                self._count += 1
            case events.Finished():
                self._begin()
                self._end(Ending("finished", event.result.summary))
        self._progress(event)  # it may end the run
        self._tell()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the trackers, as long as the user will."""
        if not self._told or self._plan is None:
            return
        if isinstance(problem, Exception):
            words = problem.what if isinstance(problem, ProtoflError) else in_words(problem)
            self._end(Ending("failed", error=" ".join(words.split())))
        else:
            self._end(Ending("interrupted"))  # counts only where it did not finish
        wait = self._plan.settings.track_wait
        late = f"has not ended within {wait:g} s (--track-wait)"
        try:
            until = time.monotonic() + wait
            for told in self._told:
                told.over.wait(max(0.0, until - time.monotonic()))
        except KeyboardInterrupt:  # ends the wait; what the run has come to stays
            late = "was not waited for any longer"
        self._tell()
        for told in (told for told in self._told if not told.over.is_set()):
            line = f"tracker {told.tracker.name} {late}, and may lack rounds: {AGAIN}"
            self._progress(events.Note(line))

    def _begin(self) -> None:
        """Start the threads, where there are trackers and they have not been started."""
        if self._begun or self._plan is None or self._folder is None or not self._plan.trackers:
            return
        self._begun = True
        try:
            self._start(self._plan, self._folder)
        except (OSError, ProtoflError) as error:
            self._say(f"the run is not tracked: {in_words(error)}")

    def _start(self, plan: Plan, home: RunFolder) -> None:
        settings, folder = plan.settings, home.path.expanduser().absolute()
        rows = [*home.rows]
        self._count = len(rows)
        run = TrackedRun(
            key=self._key(home.path / TRACKING),
            name=folder.name,
            group=settings.track_group,
            folder=folder,
            config=home.config(),
            trials=settings.trials,
            rounds=settings.rounds,
            rows=rows,
        )
        self._told = [Told(tracker, run, self._say) for tracker in plan.trackers]
        for told in self._told:
            told.start()

    def _key(self, path: Path) -> str:
        """What names the run for its trackers, now and when it is resumed."""
        key = ""
        if path.exists():
            try:
                key = str(read_json(path).get("key", ""))
            except ProtoflError as error:
                self._say(f"{error.what}: trackers take the run for another one")
        if not key.isalnum():
            key = uuid.uuid4().hex[:16]
            write_json(path, {"key": key})
        return key

    def _end(self, ending: Ending) -> None:
        for told in self._told:
            told.end(ending)

    def _say(self, line: str) -> None:
        with self._lock:
            self._lines.append(line)

    def _tell(self) -> None:
        """Pass on what the threads have to say: who follows is called in the run's thread alone."""
        with self._lock:
            lines, self._lines = self._lines, []
        for line in lines:
            self._progress(events.Note(line))
