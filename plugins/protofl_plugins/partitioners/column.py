"""Data that come divided: every value of a column is a client (``--partition column:subject``).

A column holds one value for every sample beside its label: its user, hospital or device. An
``npz:`` file has columns as further arrays of length N, ``folder:`` with ``dataset.layout=clients``
has the column ``client``, and `protofl.datasets.Dataset` has them in ``columns``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

import protofl as pf


class Column:
    """One client per value of a column, such as each sample's user (column:NAME)."""

    argument = "name"
    check_argument = "client"
    deterministic = True

    class Config(pf.Config):
        """Options of column."""

        name: str = pf.Field(description="the column that names each sample's client")
        test: Literal["own", "pooled", "unseen"] = pf.Field(
            "own",
            description="own: a client is tested on its samples in the data set's test part, if "
            "there is one; without training samples it is unseen (--unseen). pooled: both parts "
            "together are split 75/25, as without a test part. unseen: clients of the test part "
            "alone are unseen, and the samples of each other client are split 75/25",
        )

    @pf.hookimpl
    def count_clients(self, columns: Mapping[str, np.ndarray], config: Config) -> int:
        """One client per value."""
        return len(pf.datasets.distinct(_clients(columns, config.name))[0])

    @pf.hookimpl
    def partition(
        self,
        labels: np.ndarray,
        num_clients: int,
        min_samples: int,
        num_train: int,
        columns: Mapping[str, np.ndarray],
        generator: np.random.Generator,
        config: Config,
        notes: list[str],
    ) -> list[np.ndarray] | list[tuple[np.ndarray, np.ndarray]]:
        """Group the samples by value, in ascending order of the values."""
        values, owner = pf.datasets.distinct(_clients(columns, config.name))
        if len(values) != num_clients:
            raise pf.UsageError(
                f"column {config.name!r} has {len(values)} values among the samples to divide, for "
                f"{num_clients} clients",
                do="hold out fewer public samples: lower --public",
            )
        keeps_test = config.test != "pooled" and num_train < len(labels)
        rows = np.argsort(owner, kind="stable")
        parts = np.split(rows, np.cumsum(np.bincount(owner, minlength=num_clients))[:-1])
        small = [
            str(v)
            for v, client_rows in zip(values, parts, strict=True)
            if len(client_rows) < 2 and not (keeps_test and client_rows[0] >= num_train)
        ]
        if small:
            raise pf.UsageError(
                f"column {config.name!r}: one sample only of {_listed(small)}",
                "a client needs at least 1 training and 1 test sample",
                "leave these samples out, or join small clients",
            )
        few = sum(len(client_rows) < min_samples for client_rows in parts)
        names = f"column {config.name}: {_numbered(values)}"
        notes.append(f"{names}; {few} have fewer than {min_samples} samples" if few else names)
        if not keeps_test:
            return parts
        pairs = [
            (client_rows[client_rows < num_train], client_rows[client_rows >= num_train])
            for client_rows in parts
        ]
        if config.test == "unseen":
            return [
                _cut(np.concatenate(pair), generator) if len(pair[0]) else pair for pair in pairs
            ]
        if lack := [str(v) for v, (_, test) in zip(values, pairs, strict=True) if not len(test)]:
            raise pf.UsageError(
                f"column {config.name!r}: no test sample of {_listed(lack)}",
                "clients are tested on their own samples of the test part",
                "--set partition.test=pooled splits both parts together 75/25; "
                "--set partition.test=unseen splits clients of the training part, and tests others "
                "as unseen clients",
            )
        return pairs


def _cut(rows: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Split a client's rows [n] 75/25, n at least 2, into training and test rows."""
    shuffled = generator.permutation(rows)
    train = max(1, int(0.75 * len(rows)))
    return shuffled[:train], shuffled[train:]


def _clients(columns: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a column [N] without gaps.

    Raises:
        UsageError: The column is missing, or has gaps, see `check_gaps`.
    """
    if name not in columns:
        near = difflib.get_close_matches(name, columns, n=1)
        asked = f"; did you mean {near[0]}?" if near else ""
        raise pf.UsageError(
            f"the data set has no column {name!r}",
            f"columns: {', '.join(columns) or 'none'}{asked}",
            "add an array with one value per sample to the npz file, or choose another partitioner",
        )
    check_gaps(columns[name], name, "client")
    return columns[name]


_GAPS = ("", "nan", "none", "nat", "<na>", "n/a", "#n/a", "null", "-nan")
"""Words, in small letters, that pandas, NumPy and databases write where a value is missing."""


def check_gaps(values: np.ndarray, name: str, noun: str) -> None:
    """Check that a column names something in every sample.

    Args:
        values: The column [N].
        name: Its name.
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
            f"column {name!r}: no {noun} in {gaps.sum()} of {len(values)} samples, "
            f"the first in row {gaps.argmax()}"
            + (f" ({shown}: words for a missing value)" if shown else ""),
            do=f"give every sample a number or a name, or leave these samples out; a {noun} with "
            "such a name needs another one",
        )


def _numbered(names: np.ndarray | Sequence[str]) -> str:
    """Return ``clients 0…2 are a, b, c``, or ``client 0 is a``."""
    first = f"clients 0…{len(names) - 1} are" if len(names) > 1 else "client 0 is"
    return f"{first} {_listed(names)}"


def _listed(values: np.ndarray | Sequence[str]) -> str:
    """Return the first values of a list as a phrase."""
    more = [f"and {len(values) - 8} more"] if len(values) > 8 else []
    return ", ".join([*map(str, values[:8]), *more])
