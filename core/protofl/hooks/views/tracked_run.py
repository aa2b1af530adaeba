"""A run as trackers see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protofl.system.files.tables import flat

_PLACES = ("trial", "round")
"""What of a line says which round it is."""


@dataclass(frozen=True)
class TrackedRun:
    """A run that is tracked.

    Attributes:
        key: Names it for ever: a run that is resumed has the key that it had. Letters and digits.
        name: What to show: the name of its folder.
        group: What several runs have in common (``--track-group``, a sweep's name); may be empty.
        folder: Its folder, absolute.
        config: What ``config.json`` holds: every option but the trackers' own, versions, the data.
        trials: Its trials; those of several have figures of their own.
        rounds: Rounds of a trial.
        rows: The lines that its record has already, in order; empty for a run that begins.
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
        """The step of a line: its round, counted from 1 in each trial."""
        return int(row["round"]) + 1

    def trial(self, row: Mapping[str, Any]) -> str:
        """``trial-0`` and so on; empty where the run has one."""
        return f"trial-{row['trial']}" if self.trials > 1 else ""

    def figures(self, row: Mapping[str, Any]) -> dict[str, float]:
        """The figures of a line.

        Args:
            row: A line of ``metrics.jsonl``.

        Returns:
            {name: number} of all single numbers that are no client's own, tables with a slash:
            ``test_accuracy``, ``loss_terms/ce``, ``seconds/train``, ``metrics/macro-f1/all``,
            ``participants``. What a round does not have (null) is left out.
        """
        return {
            name: float(value)
            for name, value in flat({k: v for k, v in row.items() if k not in _PLACES}, "/").items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
            if math.isfinite(value) and not name.rpartition("/")[2].isdecimal()  # a client's
        }

    def parameters(self) -> dict[str, str | int | float | bool]:
        """``config`` as flat names and plain values, of tables with dots.

        ``options.fedproto.lambda`` is one. Lists are texts; what is empty or null is left out.
        """
        return {
            name: ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            for name, value in flat(self.config).items()
            if value not in (None, "", [], ())
        }
