"""Checks of a column that names each sample's client, for data sets and partitioners."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import numpy as np

import protofl as pf


def check_clients(columns: Mapping[str, np.ndarray], name: str, source: str) -> None:
    """Check that a column names a client for every sample, and two samples or more of each.

    Args:
        columns: {name: values [N]}.
        name: The column.
        source: Where it is named, for errors.

    Raises:
        UsageError: The column is missing, has gaps (see `check_gaps`), or a client has one
            sample.
    """
    values = client_column(columns, name, source)
    clients, owners = pf.datasets.distinct(values)
    sizes = np.bincount(owners)
    if (sizes < 2).any():
        raise pf.UsageError(
            f"{source}: one sample only of {listed(clients[sizes < 2])}",
            "a client needs at least 1 training and 1 test sample",
            "leave these samples out, join small clients, or name another column",
        )


def client_column(columns: Mapping[str, np.ndarray], name: str, source: str = "") -> np.ndarray:
    """Return a column [N] without gaps.

    Args:
        columns: {name: values [N]}.
        name: The column.
        source: Where it is named, for errors; empty for the data set.

    Raises:
        UsageError: The column is missing, or has gaps, see `check_gaps`.
    """
    if name not in columns:
        near = difflib.get_close_matches(name, columns, n=1)
        asked = f"; did you mean {near[0]}?" if near else ""
        raise pf.UsageError(
            f"{source or 'the data set'} has no column {name!r}",
            f"columns: {', '.join(columns) or 'none'}{asked}",
            "add an array with one value per sample to the npz file, or choose another partitioner",
        )
    check_gaps(columns[name], source or f"column {name!r}", "client")
    return columns[name]


_GAPS = ("", "nan", "none", "nat", "<na>", "n/a", "#n/a", "null", "-nan")
"""Words, in small letters, that pandas, NumPy and databases write where a value is missing."""


def check_gaps(values: np.ndarray, source: str, noun: str) -> None:
    """Check that a column names something in every sample.

    Args:
        values: The column [N].
        source: Where it is named, for errors.
        noun: The thing that it names: client, domain.

    Raises:
        UsageError: It has gaps: NaN, empty strings, or words for missing values, such as ``nan``,
            ``None``, ``NaT``, ``<NA>``, ``null`` and ``NA``.
    """
    placeholders: list[str] = []
    if values.dtype.kind == "U":
        words, places = pf.datasets.distinct(values)
        is_gap = np.array([w == "NA" or w.strip().lower() in _GAPS for w in words], bool)
        placeholders, gaps = words[is_gap].tolist(), is_gap[places]
    else:
        gaps = np.isnan(values)
    if gaps.any():
        shown = ", ".join(repr(str(w)) for w in placeholders if w.strip())
        raise pf.UsageError(
            f"{source}: no {noun} in {gaps.sum()} of {len(values)} samples, "
            f"the first in row {gaps.argmax()}"
            + (f" ({shown}: words for a missing value)" if shown else ""),
            do=f"give every sample a number or a name, or leave these samples out; a {noun} with "
            "such a name needs another one",
        )


def numbered(names: np.ndarray | Sequence[str]) -> str:
    """Return ``clients 0…2 are a, b, c``, or ``client 0 is a``."""
    first = f"clients 0…{len(names) - 1} are" if len(names) > 1 else "client 0 is"
    return f"{first} {listed(names)}"


def listed(values: np.ndarray | Sequence[str]) -> str:
    """Return the first values of a list as a phrase."""
    more = [f"and {len(values) - 8} more"] if len(values) > 8 else []
    return ", ".join([*map(str, values[:8]), *more])
