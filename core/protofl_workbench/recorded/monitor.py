"""Progress of running experiments, read from their files by any process or machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protofl.errors import UsageError
from protofl.records.layout import METRICS, runs_below
from protofl.records.reading import DAMAGED, DIVERGED, FINISHED, GOING_ON, UNFINISHED, Reading
from protofl.records.row import Row
from protofl.records.run_index import IndexEntry, runs_in
from protofl.system.files.lock import LOCK, is_held
from protofl.system.files.tables import read_table

RECENT = 5
"""Number of recent rounds from which the remaining time is estimated."""

ORDER = {GOING_ON: 0, DAMAGED: 1, DIVERGED: 2, UNFINISHED: 3, FINISHED: 4}


@dataclass(frozen=True)
class RunStatus:
    """The progress of a run.

    Attributes:
        path: Its folder.
        told: What its files say.
        state: ``finished``, ``going on``, ``unfinished``, ``diverged`` or ``damaged``.
        trial: The trial of its last round.
        round: Rounds done of that trial.
        curve: The accuracies [rounds that were evaluated] of that trial.
        megabytes: What its clients have sent and received so far, of all trials.
        absent: How often clients that were asked were absent, likewise.
        left: Seconds to its end, as far as its last rounds tell.
    """

    path: Path
    entry: IndexEntry
    state: str
    trial: int = 0
    round: int = 0
    curve: Sequence[float] = field(default_factory=list)
    megabytes: float = 0.0
    absent: int = 0
    left: float | None = None


class Monitor:
    """All runs in a folder, a single run, or the folder in which a sweep has its runs.

    Args:
        folder: The folder; of a sweep its own, which holds no runs.

    Attributes:
        runs: The folder in which the runs are.

    Raises:
        UsageError: The file that says what the sweep is can't be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.runs = folder, _runs_of(folder)
        self._ended: dict[Path, tuple[IndexEntry, RunStatus]] = {}

    def look(self) -> list[RunStatus]:
        """Return all runs: active ones first, then by the time of the last round."""
        runs = runs_in(self.runs)
        seen = [self._seen(path, entry) for path, entry in runs.items()]
        return sorted(seen, key=lambda run: (ORDER[run.state], -run.entry.time, run.path))

    def is_at_work(self, seen: Sequence[RunStatus]) -> bool:
        """Return True if a process runs one of the runs, or a sweep is between two runs.

        Args:
            seen: The runs.
        """
        return any(run.state == GOING_ON for run in seen) or is_held(self._folder / LOCK)

    def _seen(self, path: Path, entry: IndexEntry) -> RunStatus:
        """Return the status of a run; the record of an ended run is read once."""
        if entry.problem:
            return RunStatus(path, entry, DAMAGED)
        reading = Reading(path)
        held, old = reading.going_on, self._ended.get(path)
        if old is not None and old[0] == entry and not held:
            return old[1]
        if held:
            self._ended.pop(path, None)  # it may end otherwise this time, with no round more
        broken = DIVERGED if reading.failure else UNFINISHED
        state = GOING_ON if held else FINISHED if entry.finished else broken
        try:
            result = _follow(reading, entry, state)
        except UsageError:  # damaged since the index has read it
            return RunStatus(path, entry, DAMAGED)
        if not held:
            self._ended[path] = (entry, result)
        return result


def _runs_of(folder: Path) -> Path:
    """Return the folder of the runs, which the file of a sweep may name."""
    file = folder / "sweep.toml"
    if not file.is_file() or any(runs_below(folder)):
        return folder
    about = read_table(file, "DIR", "a sweep").get("sweep")
    return Path(str(about.get("runs", folder))) if isinstance(about, dict) else folder


def _follow(reading: Reading, entry: IndexEntry, state: str) -> RunStatus:
    rows = reading.rows
    if not rows:
        return RunStatus(reading.folder, entry, state)
    trial = rows[-1].trial
    trial_rows = [row for row in rows if row.trial == trial]
    return RunStatus(
        path=reading.folder,
        entry=entry,
        state=state,
        trial=trial,
        round=len(trial_rows),
        curve=[a for row in trial_rows if (a := row.test_accuracy) is not None],
        megabytes=sum(row.traffic for row in rows) / 1e6,
        absent=sum(len(row.absent) for row in rows),
        left=_left(reading, rows, entry) if state == GOING_ON else None,
    )


def _left(reading: Reading, rows: Sequence[Row], entry: IndexEntry) -> float:
    """Estimate the seconds left from the last rounds and the time since the last one ended."""
    recent: list[float] = [row.seconds["total"] for row in rows[-RECENT:]]
    to_go = (entry.rounds * entry.trials - len(rows)) * sum(recent) / len(recent)
    since = time.time() - (reading.folder / METRICS).stat().st_mtime
    return max(0.0, to_go - max(0.0, since))
