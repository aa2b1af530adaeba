"""Statistics of tables: what each client's numbers are prepared with, from training rows alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

import protofl as pf

DECIMALS = 5
"""Decimals of standardised numbers."""


def scalings(
    x: Tensor, rows: Sequence[Tensor], numbers: Sequence[int], *, standardise: bool
) -> list[pf.datasets.Scaling]:
    """Return what is done to samples, for each of several sets of rows.

    Missing numbers become the median of the known ones. Mean and (population) standard
    deviation are those after that, as in scikit-learn's SimpleImputer and StandardScaler in a
    row, but a column whose numbers are all equal in the rows becomes 0: rows to come would enter
    with numbers of any size. Other features stay 0 and 1.

    Args:
        x: Samples [N, F]; NaN where a number is missing.
        rows: The rows [n] of each set.
        numbers: The features that are numbers.
        standardise: True for mean 0 and deviation 1; False to fill in missing numbers only.
    """
    shift, fill = np.zeros((2, len(rows), x.shape[1]))
    scale = np.ones((len(rows), x.shape[1]))
    for feature in numbers:
        column = x[:, feature].contiguous().numpy()  # one pass over samples that lie in a file
        for place, own in enumerate(rows):
            values = column[own.numpy()].astype(np.float64)
            found = _statistics(values, standardise)
            shift[place, feature], scale[place, feature], fill[place, feature] = found
    decimals = DECIMALS if standardise else None
    return [
        pf.datasets.Scaling(tuple(a.tolist()), tuple(b.tolist()), decimals, tuple(c.tolist()))
        for a, b, c in zip(shift, scale, fill, strict=True)
    ]


def _statistics(values: np.ndarray, standardise: bool) -> tuple[float, float, float]:
    """Return shift, scale and median of numbers [n], of which NaN are missing."""
    gaps = np.isnan(values)
    if gaps.all():
        return 0.0, pf.datasets.Scaling.SILENT, 0.0
    median = float(np.median(values[~gaps]))
    if not standardise:
        return 0.0, 1.0, median
    values[gaps] = median
    mean, deviation = float(values.mean()), float(values.std())
    varies = deviation > 1e-9 * max(1.0, abs(mean))
    return mean, deviation if varies else pf.datasets.Scaling.SILENT, median
