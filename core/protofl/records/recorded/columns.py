"""The lines of a record as columns: an array for each figure, a row for each line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from protofl.errors import UsageError
from protofl.system.files.tables import flat

if TYPE_CHECKING:
    import pandas as pd


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Columns of a record.

    Args:
        rows: The lines of ``metrics.jsonl``.

    Returns:
        {figure: [lines]}; what stands in a table has the names of both with a dot between them
        (``seconds.train``, ``client_accuracies.3``). Columns of numbers are int64 where every line
        has one and all are whole, else float64 with NaN where a line has none; columns of truths
        that every line has are bool; everything else (texts, lists) is an object, None where a
        line has none.
    """
    lines = [flat(row) for row in rows]
    names = dict.fromkeys(name for row in lines for name in row)
    return {name: _column([row.get(name) for row in lines]) for name in names}


def frame_of(table: Any, instead: str) -> pd.DataFrame:  # noqa: ANN401 - columns, or lines
    """A table as a pandas frame.

    Args:
        table: Columns by their names, or lines.
        instead: What has the same without pandas, in words.

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
