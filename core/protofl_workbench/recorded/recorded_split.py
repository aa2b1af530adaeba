"""The split of a recorded run: counts from its folder, samples from the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protofl.errors import UsageError, unknown

if TYPE_CHECKING:
    from protofl.data.split import Split


@dataclass(frozen=True)
class RecordedSplit:
    """The samples of each client in a trial of a recorded run.

    Attributes:
        classes: The names of the C classes.
        train_counts: Training samples [M, C] of each client and class, int64.
        test_counts: Test samples [M, C], int64.
        validation_counts: Validation samples [M, C], int64, which ``train_counts`` are without.
        public_samples: Public samples held out.
        global_test_samples: Samples of the server's test set.
        hash: SHA-256 of the split: two runs with one hash have the same.
        file: The ``partition.json`` that says so.
        client_names: The names that the data give the M clients (hospitals); empty if they give
            none.
    """

    classes: tuple[str, ...]
    train_counts: np.ndarray
    test_counts: np.ndarray
    validation_counts: np.ndarray
    public_samples: int
    global_test_samples: int
    hash: str
    file: Path
    _again: Callable[[], Split]
    client_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, file: Path, fields: Mapping[str, Any], again: Callable[[], Split]) -> RecordedSplit:
        """Return the split of a trial.

        Args:
            file: The ``partition.json``.
            fields: The record of the trial in the file (`Reading.split_record`).
            again: Makes the split again, from the data.
        """
        tests = np.array(fields["test_counts"], dtype=np.int64)
        return cls(
            classes=tuple(fields["classes"]),
            train_counts=np.array(fields["train_counts"], dtype=np.int64),
            test_counts=tests,
            validation_counts=np.array(fields.get("validation_counts", 0 * tests), dtype=np.int64),
            public_samples=fields.get("public_samples", 0),
            global_test_samples=fields.get("global_test_samples", 0),
            hash=fields["hash"],
            file=file,
            _again=again,
            client_names=tuple(fields.get("client_names") or ()),
        )

    def name_of(self, client: int) -> str:
        """Return the name of a client: the one that the data give it, or ``client 3``."""
        return self.client_names[client] if self.client_names else f"client {client}"

    def client_of(self, name: str) -> int:
        """Return the number of a client: the number itself, or that of its name.

        Raises:
            UsageError: No client has this name.
        """
        if name.isdecimal():
            return int(name)
        if name not in self.client_names:
            numbers = f"0 to {len(self.train_counts) - 1}"
            raise unknown("client", name, self.client_names, f"give a number, {numbers}")
        return self.client_names.index(name)

    def train(self, client: int) -> np.ndarray:
        """Return the rows [n] of the data that a client trained on, int64.

        Raises:
            UsageError: The data aren't there, or are split in another way now.
        """
        return self._rows("train", client)

    def test(self, client: int) -> np.ndarray:
        """Return the rows [n] of the data that a client was tested on, int64.

        Raises:
            UsageError: The data aren't there, or are split in another way now.
        """
        return self._rows("test", client)

    def validation(self, client: int) -> np.ndarray:
        """Return the rows [n] of a client's validation samples, int64; possibly none.

        Raises:
            UsageError: The data aren't there, or are split in another way now.
        """
        return self._rows("held_out", client)

    @property
    def public(self) -> np.ndarray | None:
        """Rows [n] of the public samples, int64; None without public samples.

        Raises:
            UsageError: The data aren't there, or are split in another way now.
        """
        rows = self._made_again().public
        return None if rows is None else rows.numpy()

    def _rows(self, subset: str, client: int) -> np.ndarray:
        if not 0 <= client < len(self.train_counts):
            raise UsageError(
                f"there is no client {client}", f"clients are 0 to {len(self.train_counts) - 1}"
            )
        indices = getattr(self._made_again(), subset)(client)
        rows: np.ndarray = np.zeros(0, dtype=np.int64) if indices is None else indices.numpy()
        return rows

    def _made_again(self) -> Split:
        split = self._again()
        if split.hash != self.hash:
            raise UsageError(
                f"the split that is made now is not that of {self.file}",
                "the data, or the partitioner, are others than when the run was made",
            )
        return split
