"""Screen of a batch: a live line for each running run, and one for all runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protofl.federation import events as of_rounds
from protofl.system.formatting import count, shortened
from protofl_cli.screens import render
from protofl_cli.screens.tables import clock, shown_path
from protofl_workbench.batch import batch_events as events

if TYPE_CHECKING:
    from protofl.records.row import Row
    from protofl_workbench.batch.batch_events import BatchRun, CheckedRun, Outcome

ALL = "all"
"""Key of the line about all runs."""

LONGEST = 44
"""Largest number of characters of a run's name."""


@dataclass
class _Going:
    """A run in progress."""

    began: float
    rounds: int = 0
    done: int = 0
    last: float | None = None
    best: float | None = None

    @property
    def share(self) -> float:
        return min(1.0, self.done / self.rounds) if self.rounds else 0.0


class BatchScreen:
    """Shows the events of a batch; a context manager.

    Args:
        total: Number of runs.
        quiet: True to print nothing.
    """

    def __init__(self, total: int = 0, *, quiet: bool = False) -> None:
        self.quiet, self.total = quiet, total
        self.failed: list[Outcome] = []
        self._bars = render.Bars()
        self._going: dict[BatchRun, _Going] = {}
        self._ended = self._there = 0
        self._began: float | None = None
        self._noted: set[str] = set()

    def __enter__(self) -> BatchScreen:
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def end(self) -> None:
        """Remove the live lines."""
        self._bars.stop()

    def say(self, text: str, style: str = "") -> None:
        """Print a line above the live lines."""
        if not self.quiet:
            self._bars.line(text, style)

    def loading(self, text: str) -> None:
        """Show a line before the first event."""
        if not self.quiet:
            self._bars.show(text, "", key=ALL)

    def __call__(self, event: events.Event) -> None:
        """Show an event of a batch."""
        match event:
            case events.RunChecked():
                self._checked(event.checked, event.done, event.of)
            case events.RunStarted():
                self._started(event.batch_run)
            case events.OfRun(batch_run, events.RunPlanned(rounds, trials, rows=rows)):
                going = self._going[batch_run]
                going.rounds = rounds * trials
                for row in rows:
                    self._row(going, row)
            case events.OfRun(batch_run, of_rounds.RoundDone(row)):
                self._row(self._going[batch_run], row)
            case events.OfRun(batch_run, of_rounds.Note(text)):
                self._note(batch_run, text)
            case events.RunEnded():
                self._ended_run(event.outcome)
            case events.BatchStopping():
                self.say(
                    f"stopping {count(event.runs, 'run')}; finished rounds are saved "
                    "(^C once more kills them)",
                    "yellow",
                )
        self._draw()

    # --- events -----------------------------------------------------------------------------------

    def _checked(self, checked: CheckedRun, number: int, of: int) -> None:
        if of >= self.total:  # a search checks the ends of its ranges alone
            self._there += checked.finished
        if self.quiet:
            return
        self._bars.show("dry runs", f"{number}/{of} runs", number / of, ALL)
        if number == of and self.total >= of:
            finished = f", {self._there} of them are finished" if self._there else ""
            self._bars.line(f"checked {count(of, 'run')}{finished}")

    def _started(self, batch_run: BatchRun) -> None:
        self._began = time.monotonic() if self._began is None else self._began
        self._going[batch_run] = _Going(time.monotonic())

    @staticmethod
    def _row(going: _Going, row: Row) -> None:
        accuracy = row.test_accuracy
        going.done += 1
        if accuracy is not None:
            going.last, going.best = accuracy, max(accuracy, going.best or 0.0)

    def _note(self, batch_run: BatchRun, text: str) -> None:
        if not self.quiet and text not in self._noted:  # most notes are equal for all runs
            self._noted.add(text)
            self._bars.line(f"note: {batch_run.name}: {text}", "yellow")

    def _ended_run(self, outcome: Outcome) -> None:
        going = self._going.pop(outcome.batch_run, None)
        self._bars.drop(str(id(outcome.batch_run)))
        self._ended += 1
        if self.total:  # the search of a benchmark may start more runs than its plan has
            self.total = max(self.total, self._done + len(self._going))
        if outcome.state == "failed":
            self.failed.append(outcome)
        if self.quiet:
            return
        count = f"{self._done}/{self.total}" if self.total else str(self._done)
        self._bars.line(
            f"{count} {outcome.batch_run.name}: {_ending(outcome, going)}", _style(outcome)
        )

    @property
    def _done(self) -> int:
        """Number of finished runs; for a search those that it started."""
        return self._ended + self._there

    # --- the lines --------------------------------------------------------------------------------

    def _draw(self) -> None:
        if self.quiet or not self._bars.live or self._began is None:
            return
        for batch_run, going in self._going.items():
            name = shortened(batch_run.name, LONGEST)
            self._bars.show(name, _status(going), going.share, str(id(batch_run)))
        left = self._time_left()
        parts = [f"{self._done}/{self.total} runs", f"{len(self.failed)} failed"]
        parts = [parts[0], *parts[1:][: bool(self.failed)], *([f"{left} left"] if left else [])]
        self._bars.show("all", ", ".join(parts), self._done / max(1, self.total), ALL)

    def _time_left(self) -> str:
        """Estimate the time left from the finished share of the runs to do."""
        assert self._began is not None
        whole = self.total - self._there
        finished = self._ended + sum(going.share for going in self._going.values())
        if not 0 < finished < whole:
            return ""
        return clock((time.monotonic() - self._began) * (whole - finished) / finished)


def _status(going: _Going) -> str:
    parts = [f"round {going.done}/{going.rounds}" if going.rounds else "starting"]
    if going.last is not None and going.best is not None:
        parts.append(f"acc {going.last:.1%}, best {going.best:.1%}")
    return "  ".join(parts)


def _ending(outcome: Outcome, going: _Going | None) -> str:
    if outcome.error is not None:
        return f"failed: {outcome.error.what}"
    text: str = "was finished before" if outcome.reused else outcome.state
    if going is not None and going.best is not None:
        text += f", best accuracy {going.best:.1%}"
        text += f", {clock(time.monotonic() - going.began, exact=True)}"
    return text


def _style(outcome: Outcome) -> str:
    return "red" if outcome.state == "failed" else ""


def show_failures(failed: Sequence[Outcome]) -> None:
    """Print which runs failed, and why."""
    for outcome in failed:
        assert outcome.error is not None
        where = f" ({shown_path(outcome.folder)})" if outcome.folder else ""
        error = outcome.error
        render.error(f"{outcome.batch_run.name}{where}: {error.what}", error.near, error.do)
