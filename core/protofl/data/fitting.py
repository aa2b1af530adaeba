"""Preparations that a run fits to the training rows of its clients, such as a standardisation.

The statistics of such a preparation depend on the split, so the data set cannot apply them before
it stores its samples. The work is divided:

- `protofl.data.preparation.Fitted` is recorded. It names the data set and describes raw samples.
- `Fitting` is a class of the data set's plugin. It computes the statistics, and reads new samples.
- `FittedSamples` applies the statistics. It needs no plugin, and neither do exported clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from protofl.data.mapped import mapped_zeros
from protofl.data.preparation import Scaling
from protofl.data.split import Split

__all__ = ["FittedSamples", "Fitting"]

BLOCK = 16_384
"""Rows that are prepared at once."""


class Fitting(Protocol):
    """Computes the statistics of a preparation, and reads raw samples.

    The plugin of a data set names its class in the attribute ``fitting``. An instance is made of
    `Fitted.form`, as keyword arguments. It may also have ``notes(scalings)``, which returns lines
    for the user about what `fit` returned.
    """

    def fit(self, x: Tensor, rows: Sequence[Tensor]) -> Sequence[Scaling]:
        """Return what is done to the samples of each client.

        Args:
            x: All stored samples [N, …], in a memory-mapped file; NaN where numbers are missing.
            rows: The training rows [n] of each client, which may be none. Nothing else of ``x`` may
                have an influence on the result.

        Returns:
            A scaling for each client, or a single one for all (`Fitted.per_client` is False).
        """
        ...

    def read(
        self,
        source: Any,  # noqa: ANN401 - a data frame has no type here
        further: Sequence[str] = (),
    ) -> tuple[Tensor, dict[str, np.ndarray]]:
        """Read new samples as the data set stores them, before statistics are applied.

        Args:
            source: The path of a file, or a data frame or mapping {column: values}.
            further: Columns that are read besides; those that are missing are left out.

        Returns:
            Samples [N, …], and the further columns [N] as texts.

        Raises:
            UsageError: The source cannot be read, or does not fit the form.
        """
        ...


@dataclass(frozen=True)
class FittedSamples:
    """Samples as the clients of a split prepare them.

    Attributes:
        fitting: Computes the statistics.
        raw: Stored samples [N, …].
        split: The rows of each client.
        folder: The folder in which large results lie while they are used.
    """

    fitting: Fitting
    raw: Tensor
    split: Split
    folder: Path

    @cached_property
    def scalings(self) -> Sequence[Scaling]:
        """The scaling of each client; a single one for all."""
        clients = range(self.split.num_clients)
        return self.fitting.fit(self.raw, [self.split.train(client) for client in clients])

    @property
    def notes(self) -> list[str]:
        """Lines of the plugin about the scalings."""
        notes: Callable[[Sequence[Scaling]], list[str]] | None
        notes = getattr(self.fitting, "notes", None)
        return notes(self.scalings) if notes else []

    @cached_property
    def x(self) -> Tensor:
        """Samples [N, …] as models get them, each prepared by the client that has the row.

        If each client has a scaling, rows of no client are 0.
        """
        owners, result = self._owners(), mapped_zeros(self.raw.shape, self.folder)
        for start in range(0, len(result), BLOCK):
            block = slice(start, start + BLOCK)
            raw, prepared, who = self.raw[block], result[block], owners[block]
            for place in torch.unique(who).tolist():
                if place >= 0:
                    rows = who == place
                    prepared[rows] = self.scalings[place](raw[rows])
        return result

    def _owners(self) -> Tensor:
        """Return the place of each row's scaling [N] int32, or -1 for none."""
        if len(self.scalings) == 1:
            return torch.zeros(len(self.raw), dtype=torch.int32)
        owners = torch.full((len(self.raw),), -1, dtype=torch.int32)
        for client in range(self.split.num_clients):
            held = self.split.held_out(client)
            for rows in (self.split.train(client), self.split.test(client), held):
                if rows is not None:
                    owners[rows] = client
        return owners
