"""A run as trackers see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protofl.system.files.tables import flat

_PLACES = ("trial", "round")
"""The keys of a row that identify its round."""


@dataclass(frozen=True)
class TrackedRun:
    """A run that is tracked.

    Attributes:
        key: Its permanent key, which a resumed run keeps. Letters and digits.
        name: Its name to show, that of its folder.
        group: The name of a group of runs (a sweep's name); may be empty.
        folder: Its folder, absolute.
        config: The content of ``config.json``: all options but the trackers', versions, the data.
        trials: Number of trials.
        rounds: Rounds of a trial.
        rows: The recorded rows in order; empty for a new run.
    """

    key: str
    name: str
    group: str
    folder: Path
    config: Mapping[str, Any]
    trials: int
    rounds: int
    rows: Sequence[Mapping[str, Any]] = ()

    def step(self, row: Mapping[str, Any]) -> int:
        """Return the step of a row: its round, counted from 1 in each trial."""
        return int(row["round"]) + 1

    def trial(self, row: Mapping[str, Any]) -> str:
        """Return ``trial-0`` and so on; empty for a run with one trial."""
        return f"trial-{row['trial']}" if self.trials > 1 else ""

    def figures(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Return the figures of a row.

        Args:
            row: A row of ``metrics.jsonl``.

        Returns:
            {name: number} of all numbers except those of single clients, with nested names:
            ``test_accuracy``, ``loss_terms/ce``, ``seconds/train``, ``metrics/macro-f1/all``,
            ``participants``. Null values are left out.
        """
        return {
            name: float(value)
            for name, value in flat({k: v for k, v in row.items() if k not in _PLACES}, "/").items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
            if math.isfinite(value) and not name.rpartition("/")[2].isdecimal()  # a client's
        }

    def parameters(self) -> dict[str, str | int | float | bool]:
        """Return ``config`` as {name: plain value}, such as ``options.fedproto.lambda``.

        Lists become strings. Empty and null values are left out.
        """
        return {
            name: ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            for name, value in flat(self.config).items()
            if value not in (None, "", [], ())
        }
