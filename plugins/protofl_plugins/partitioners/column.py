"""Data that come divided: every value of a column is a client (``--partition column:subject``).

A column holds one value for every sample beside its label: its user, hospital or device. An
``npz:`` file has columns as further arrays of length N, ``folder:`` with ``dataset.layout=clients``
has the column ``client``, and `protofl.datasets.Dataset` has them in ``columns``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

import protofl as pf
from protofl_plugins.datasets.client_columns import client_column, listed, numbered


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
        return len(pf.datasets.distinct(client_column(columns, config.name))[0])

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
        values, owner = pf.datasets.distinct(client_column(columns, config.name))
        if len(values) != num_clients:
            raise pf.UsageError(
                f"column {config.name!r} has {len(values)} values among the samples to divide, for "
                f"{num_clients} clients",
                do="leave --clients out, and hold out fewer public samples",
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
                f"column {config.name!r}: one sample only of {listed(small)}",
                "a client needs at least 1 training and 1 test sample",
                "leave these samples out, or join small clients",
            )
        few = sum(len(client_rows) < min_samples for client_rows in parts)
        names = f"column {config.name}: {numbered(values)}"
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
                f"column {config.name!r}: no test sample of {listed(lack)}",
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
