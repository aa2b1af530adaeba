"""Statistics of tables: what each client's numbers are prepared with, from training rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from protofl.data.preparation import Scaling, scaled
from protofl.data.split import Split
from protofl.data.table_form import TableForm, numbers_for

DECIMALS = 5
"""Decimals of standardised numbers."""

SILENT = 1e30
"""Scale of a column of which a client knows no value: all its numbers become 0."""

_ROWS = 65_536


@dataclass(frozen=True)
class Fitted:
    """A table as the clients of a split prepare it.

    Attributes:
        form: The form of the table.
        raw: Samples [N, F] of `TableForm.encoded`.
        split: Whose rows they are.
        folder: Where large results lie while they are used.
    """

    form: TableForm
    raw: Tensor
    split: Split
    folder: Path

    @cached_property
    def scalings(self) -> Sequence[Scaling]:
        """The scaling of each client; a single one for all."""
        return fit(self.form, self.raw, self.split)

    @cached_property
    def x(self) -> Tensor:
        """Samples [N, F] as models get them."""
        return apply(self.raw, self.split, self.scalings, self.folder)


def fit(form: TableForm, x: Tensor, split: Split) -> list[Scaling]:
    """Return what is done to the samples of each client, from training rows alone.

    Missing numbers become the median of the known ones. Mean and (population) standard
    deviation are those after that, as in scikit-learn's SimpleImputer and StandardScaler in a
    row. Other features stay 0 and 1.

    Args:
        form: The form of the table.
        x: Samples [N, F] of `TableForm.encoded`.
        split: Whose rows they are.

    Returns:
        A scaling for each client; a single one for ``global``.
    """
    sizes = split.train_sizes.numpy()
    rows = torch.cat([split.train(client) for client in range(split.num_clients)])
    rows, order = rows.sort()  # large samples are read in the order of their file
    owners = np.repeat(np.arange(len(sizes)), sizes)[order.numpy()]
    if form.statistics == "global":
        owners, sizes = np.zeros_like(owners), np.array([len(rows)])
    shift, fill = np.zeros((2, len(sizes), form.width))
    scale = np.ones((len(sizes), form.width))
    for j in form.numbers:
        values = x[:, j][rows].numpy().astype(np.float64)
        shift[:, j], scale[:, j], fill[:, j] = _statistics(values, owners, sizes, form.standardise)
    decimals = DECIMALS if form.standardise else None
    return [
        Scaling(tuple(a.tolist()), tuple(b.tolist()), decimals, tuple(c.tolist()))
        for a, b, c in zip(shift, scale, fill, strict=True)
    ]


def _statistics(
    values: np.ndarray, owners: np.ndarray, sizes: np.ndarray, standardise: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return shift, scale and median [M] of a column.

    Args:
        values: Numbers [n].
        owners: Whose number each is, [n] in 0…M-1.
        sizes: Numbers of each owner [M].
        standardise: True for mean and deviation; False for 0 and 1.
    """
    gaps, clients = np.isnan(values), len(sizes)
    known = sizes - np.bincount(owners[gaps], minlength=clients)
    ordered = values[np.lexsort((values, owners))]  # gaps come last
    starts, has = np.cumsum(sizes) - sizes, known > 0
    median = np.zeros(clients)
    lower, upper = (starts + (known - 1) // 2)[has], (starts + known // 2)[has]
    median[has] = (ordered[lower] + ordered[upper]) / 2
    shift, scale = np.zeros(clients), np.where(has, 1.0, SILENT)
    if standardise:
        filled = np.where(gaps, median[owners], values)
        count = np.maximum(sizes, 1)
        shift = np.bincount(owners, filled, minlength=clients) / count
        squares = (filled - shift[owners]) ** 2
        deviation = np.sqrt(np.bincount(owners, squares, minlength=clients) / count)
        varies = has & (deviation > 1e-9 * np.maximum(1, np.abs(shift)))
        scale[varies] = deviation[varies]
    return shift, scale, median


def apply(x: Tensor, split: Split, scalings: Sequence[Scaling], folder: Path) -> Tensor:
    """Return the samples as models see them, each prepared by the client whose row it is.

    Args:
        x: Samples [N, F] of `TableForm.encoded`.
        split: Whose rows they are; rows of no client become 0 if each client has a scaling.
        scalings: A scaling for each client, or a single one for all rows.
        folder: Where large results lie while they are used.

    Returns:
        Samples [N, F] float32.
    """
    owners = torch.zeros(len(x), dtype=torch.int64)
    if len(scalings) > 1:
        owners -= 1
        for client in range(split.num_clients):
            held = split.held_out(client)
            for rows in (split.train(client), split.test(client), held):
                if rows is not None:
                    owners[rows] = client
    shift, scale, fill = (
        torch.tensor([getattr(s, name) for s in scalings], dtype=torch.float64)
        for name in ("shift", "scale", "fill")
    )
    result = numbers_for((len(x), x.shape[1]), folder)
    for start in range(0, len(x), _ROWS):
        block = slice(start, start + _ROWS)
        who = owners[block]
        prepared = scaled(x[block], shift[who], scale[who], fill[who], scalings[0].decimals)
        result[block] = torch.where(who[:, None] < 0, 0.0, prepared)
    return result
