"""One tracker at work: a thread, and a queue of rounds that has an end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from protofl.errors import in_words
from protofl.hooks.plugin.members import Choice
from protofl.hooks.views.tracked_run import TrackedRun

AGAIN = "--resume --track on the finished run writes them down"

WAITING = 1000
"""Rounds that wait for a slow tracker, at most."""


def still_at_work() -> bool:
    """Whether a tracker of this program has not ended."""
    threads = threading.enumerate()
    return any(isinstance(thread, Told) and not thread.over.is_set() for thread in threads)


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    status: str
    summary: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


class Told(threading.Thread):
    """Tells a tracker of a run, in its own time.

    Args:
        tracker: The tracker.
        run: The run.
        say: Takes lines for the user, from this thread.
        waiting: Rounds that wait, at most.
    """

    def __init__(
        self,
        tracker: Choice,
        run: TrackedRun,
        say: Callable[[str], None],
        waiting: int = WAITING,
    ) -> None:
        super().__init__(name=f"tracker {tracker.name}", daemon=True)
        self.tracker, self._run, self._say, self._most = tracker, run, say, waiting
        self._rows: deque[tuple[int, Mapping[str, Any]]] = deque()
        self._ending: Ending | None = None
        self._changed = threading.Condition()
        self._lost = self._failed = 0
        self._dead = False
        self.over = threading.Event()
        """Set when the tracker has been told of all; unlike join, a wait may be interrupted."""

    # --- in the run's thread ----------------------------------------------------------------------

    def take(self, number: int, row: Mapping[str, Any]) -> None:
        """A round; it is left out where too many are waiting."""
        with self._changed:
            if self._dead:
                return
            if len(self._rows) >= self._most:
                self._lost += 1
                return
            self._rows.append((number, row))
            self._changed.notify()

    def end(self, ending: Ending) -> None:
        """The run has ended; what waits is still told."""
        with self._changed:
            self._ending = self._ending or ending
            self._changed.notify()

    # --- in its own -------------------------------------------------------------------------------

    def run(self) -> None:
        """Open, tell every round, close; no error leaves it.

        What a tracker is given is its own: the run goes on with its record whatever becomes of it.
        """
        try:
            self._tell()
        finally:
            self.over.set()

    def _tell(self) -> None:
        config, rows = deepcopy((self._run.config, self._run.rows))
        self._run = replace(self._run, config=config, rows=rows)
        try:
            opened = self.tracker.call("open_run", run=self._run)
        except BaseException as error:
            with self._changed:
                self._dead = True
                self._rows.clear()
            self._say(f"{self._words(error)}; the run goes on without it")
            return
        while (round := self._next()) is not None:
            number, row = round[0], deepcopy(round[1])
            try:
                self.tracker.call("log_round", opened=opened, run=self._run, row=row, number=number)
            except BaseException as error:
                self._failed += 1
                if self._failed == 1:
                    self._say(f"{self._words(error)}; the run goes on")
        self._close(opened)

    def _next(self) -> tuple[int, Mapping[str, Any]] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._rows or self._ending is not None)
            return self._rows.popleft() if self._rows else None

    def _close(self, opened: Any) -> None:  # noqa: ANN401 - the tracker's own
        assert self._ending is not None
        ending = {
            "status": self._ending.status,
            "summary": deepcopy(self._ending.summary),
            "error": self._ending.error,
        }
        try:
            self.tracker.call("end_run", opened=opened, run=self._run, **ending)
        except BaseException as error:
            self._say(self._words(error))
        if self._failed > 1:
            self._say(f"tracker {self.tracker.name}: {self._failed} rounds were not written down")
        if self._lost:
            words = f"tracker {self.tracker.name} is slow: {self._lost} rounds were left out"
            self._say(f"{words}; {AGAIN}")

    def _words(self, error: BaseException) -> str:
        return f"tracker {self.tracker.name}: {' '.join(in_words(error).split())[:300]}"
