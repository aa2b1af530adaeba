"""What is known of the cells of a study, while it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from protofl.errors import ProtoflError, UsageError
from protofl.studies.cells import Cell, Change, cells_of
from protofl.studies.figures import READERS
from protofl.studies.study import Study


@dataclass
class Done:
    """What is known of the cells of a study.

    Attributes:
        study: The study.
        change: What the user changed.
        cells: The cells that are wanted.
        missing: {`Cell.key`: what it lacks}.
        rows: {`Cell.key`: lines of its run or its account}.
        folders: {`Cell.key`: its run's folder}.
        failed: {`Cell.key`: why its run failed}.
        parts: {`Cell.key`: how far a run is that is not whole, or why one is not reused}.
        splits: {`Cell.key`: samples of each client and class, and the classes}.
    """

    study: Study
    change: Change
    cells: list[Cell]
    missing: dict[str, UsageError] = field(default_factory=dict)
    rows: dict[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    failed: dict[str, ProtoflError] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    splits: dict[str, tuple[np.ndarray, tuple[str, ...]]] = field(default_factory=dict)

    @classmethod
    def begun(cls, study: Study, change: Change) -> Done:
        """A study of which nothing is known yet."""
        return cls(study, change, cells_of(study, change))

    def to_run(self) -> list[Cell]:
        """The cells that runs make, one for each run."""
        return self._first(trains=True)

    def to_account(self) -> list[Cell]:
        """The cells that accounts make, one for each account."""
        return self._first(trains=False)

    def _first(self, *, trains: bool) -> list[Cell]:
        chosen = [c for c in self.cells if c.options and needs_run(self.study, c) == trains]
        found = {cell.key: cell for cell in reversed(chosen) if cell.key not in self.missing}
        return [*reversed(found.values())]


def needs_run(study: Study, cell: Cell) -> bool:
    """Whether a cell is made by a run; those of accounts are not."""
    if study.draw == "partition":
        return False
    return READERS[cell.figure.read].trains or study.kind != "account"
