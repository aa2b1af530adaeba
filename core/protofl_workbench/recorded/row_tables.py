"""Records as tables: rows with names of clients, columns, and pandas frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protofl.errors import UsageError
from protofl.records.row import Row
from protofl.system.files.tables import flat

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

BY_CLIENT = frozenset(
    {
        *("client_accuracies", "client_unseen_accuracies", "client_fine_tuned_accuracies"),
        *("client_losses", "absent", "unfollowed", "unscored", "failures"),
    }
)
"""Figures of a line that are mappings of clients."""


def with_names(row: Row, clients: Sequence[str]) -> Row:
    """Return a row with names of clients in place of their numbers.

    Args:
        row: The row.
        clients: The name of each client; empty to change nothing.
    """
    if not clients:
        return row
    renamed = {key: _by_name(row[key], clients) for key in BY_CLIENT & row.keys()}
    metrics = {
        name: {**values, "clients": _by_name(values["clients"], clients)}
        if "clients" in values
        else values
        for name, values in row.metrics.items()
    }
    return row.changed(**renamed, **({"metrics": metrics} if metrics else {}))


def _by_name(values: Mapping[str, Any], clients: Sequence[str]) -> dict[str, Any]:
    return {clients[int(client)]: value for client, value in values.items()}


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return a record as columns.

    Args:
        rows: The lines of ``metrics.jsonl``.

    Returns:
        {figure: [lines]}; nested figures have a dot in their names (``seconds.train``,
        ``client_accuracies.3``). The dtype is int64 or bool if all values have that type, float64
        with NaN for missing numbers, else object with None for missing values.
    """
    lines = [flat(row) for row in rows]
    names = dict.fromkeys(name for row in lines for name in row)
    return {name: _column([row.get(name) for row in lines]) for name in names}


def frame_of(table: Any, instead: str) -> pd.DataFrame:  # noqa: ANN401 - columns, or lines
    """Return a table as a pandas frame.

    Args:
        table: Columns by their names, or lines.
        instead: An alternative without pandas, for the error.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise UsageError(
            "a frame needs pandas, which is not installed", instead, "pip install 'protofl[pandas]'"
        ) from None
    return pd.DataFrame(table)


def _column(values: list[Any]) -> np.ndarray:
    import numpy as np  # readers without columns start faster

    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return np.array(values)
    if kinds == {int}:
        return np.array(values, dtype=np.int64)
    if kinds <= {int, float, type(None)}:
        return np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
