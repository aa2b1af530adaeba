"""Columns: facts about every sample besides its label (its user, hospital, device, hour)."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofl.data.mapped import mapped_array
from protofl.errors import UsageError

Columns = dict[str, np.ndarray]
"""{name: values [N], int64, float64 or strings}."""

_BLOCK = 65_536
"""Rows of a column that are read at once."""


def as_column(values: Any) -> np.ndarray:  # noqa: ANN401 - whatever NumPy makes an array of
    """Return values as int64, float64 or strings; what is none of these stays unchanged.

    Objects, which pandas has for strings, are read if all are strings, numbers or dates. A gap
    (None, NaN, NaT, pandas' NA, a masked value) becomes NaN or the empty string.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        mask, values = np.ma.getmaskarray(values), np.array(values.data, object)
        values[mask] = None
    array = values.numpy() if isinstance(values, Tensor) else np.asarray(values)
    kind = array.dtype.kind
    if kind in "bi" or (kind == "u" and (not array.size or array.max() <= _LARGEST)):
        return array.astype(np.int64)
    if kind == "f":
        return array.astype(np.float64)
    if kind == "u":  # numbers of 64 bits, such as hashes, would become negative
        return array.astype(str)
    if kind == "M":
        return np.where(np.isnat(array), "", array.astype(str))
    return _of_objects(array.astype(object)) if kind in "OST" else array


_LARGEST = np.iinfo(np.int64).max


def _of_objects(objects: np.ndarray) -> np.ndarray:
    """Return objects of one kind as a column; others, and bytes that are not UTF-8, unchanged."""
    if objects.ndim != 1:
        return objects
    items, kinds = list[Any](), set[str]()
    for value in objects.tolist():
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError:
                return objects
        gap = is_gap(value)
        items.append(None if gap else value)
        kinds |= set() if gap else {_kind_of(value)}
    if kinds <= {"text"} or kinds == {"date"}:
        return np.array(["" if item is None else str(item) for item in items], dtype=str)
    if kinds == {"integer"} and None not in items:
        inside = all(-_LARGEST <= int(item) <= _LARGEST for item in items)
        return np.array(items, np.int64) if inside else np.array([*map(str, items)])
    if kinds <= {"integer", "float"}:
        return np.array([np.nan if item is None else float(item) for item in items], np.float64)
    return objects


def is_gap(value: object) -> bool:
    """Return True for None, NaN, NaT, pandas' NA and a masked value."""
    if value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def _kind_of(value: object) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, (int, np.integer, np.bool_)):
        return "integer"
    if isinstance(value, (float, np.floating)):
        return "float"
    if isinstance(value, (datetime.date, np.datetime64)):
        return "date"
    return type(value).__name__


def column_faults(columns: Mapping[str, np.ndarray], count: int) -> list[str]:
    """Return what does not fit in columns of ``count`` samples; empty if nothing."""
    faults = []
    for name, values in columns.items():
        if values.shape != (count,):
            faults.append(f"column {name!r} has the shape {values.shape}, expected ({count},)")
        elif values.dtype.kind not in "ifU":
            faults.append(f"column {name!r} {_odd(values)}, expected numbers, strings or dates")
    return faults


def _odd(values: np.ndarray) -> str:
    """Return what a column holds that is none."""
    if values.dtype.kind != "O":
        return f"is {values.dtype}"
    for row, value in enumerate(values):
        if isinstance(value, bytes):
            try:
                value.decode()
            except UnicodeDecodeError:
                return f"holds bytes that are not UTF-8 ({value!r} in row {row})"
    kinds = sorted({_kind_of(value) for value in values if not is_gap(value)})
    return f"holds objects of the kind {' and '.join(kinds)}"


def columns_of_arrays(
    arrays: Mapping[str, np.ndarray], train: int, test: int, source: str
) -> dict[str, np.ndarray]:
    """Return the columns among the further arrays of a file.

    The column ``subject`` is the array ``subject`` of length N, training samples first. It may also
    be two arrays, ``subject`` or ``subject_train`` and ``subject_test``.

    Args:
        arrays: All arrays but samples, labels and names of classes.
        train: Number of training samples.
        test: Number of test samples.
        source: The file, for errors.

    Raises:
        UsageError: An array is not a column; the error names all such arrays.
    """
    result: Columns = {}
    rest = dict(arrays)
    for key in arrays:
        name = key.removesuffix("_train").removesuffix("_test")
        first = [k for k in (name, f"{name}_train") if k in rest]
        parts = [first[0], f"{name}_test"] if first and f"{name}_test" in rest else first[:1]
        lengths = [train, test] if len(parts) == 2 else [train + test]
        if parts and [rest[k].shape for k in parts] == [(n,) for n in lengths]:
            columns = [as_column(rest.pop(k)) for k in parts]
            if faults := [
                f for column in columns for f in column_faults({name: column}, len(column))
            ]:
                raise UsageError(
                    f"{source}: {'; '.join(faults)}",
                    "a column holds numbers or strings, for example the user of each sample; names "
                    "that cannot be read would become one client",
                    f"convert {name!r}, or leave it out; bytes of another encoding: "
                    'values = numpy.char.decode(values, "latin-1")',
                )
            result[name] = np.concatenate(columns)
    if rest:
        shapes = ", ".join(f"{k} {list(v.shape)}" for k, v in rest.items())
        both = f", or NAME_train [{train}] and NAME_test [{test}]" if test else ""
        raise UsageError(
            f"{source}: unknown arrays: {shapes}",
            "a data set has x_train, y_train, x_test, y_test and classes; a further array with one "
            f"number or string per sample, [{train + test}]{both}, is a column, for example the "
            "user of each sample (--partition column:NAME)",
            "bring the arrays to this form, or leave them out of the file",
        )
    return result


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different values of a column in order, and the place of each value among them.

    The result is that of ``numpy.unique(values, return_inverse=True)``. Memory beside the places is
    bounded, because the column is read in blocks and not sorted.

    Args:
        values: The column [N].

    Returns:
        The different values [n], and their places [N] int64.
    """
    blocks = [values[start : start + _BLOCK] for start in range(0, len(values), _BLOCK)]
    if values.dtype.kind == "U":
        names = sorted({name for block in blocks for name in {*block.tolist()}})
        number = {name: place for place, name in enumerate(names)}
        places = (number[name] for block in blocks for name in block.tolist())
        return np.array(names, values.dtype), np.fromiter(places, np.int64, len(values))
    found = np.unique(np.concatenate([values[:0], *map(np.unique, blocks)]))
    result = np.empty(len(values), np.int64)
    for number_of_block, block in enumerate(blocks):
        start = number_of_block * _BLOCK
        result[start : start + len(block)] = np.searchsorted(found, block)
    return found, result


def mapped_column(names: np.ndarray, places: np.ndarray, folder: Path) -> np.ndarray:
    """Return ``names[places]``, in a temporary file if the texts are many.

    Args:
        names: The different values [n].
        places: Places among them [N].
        folder: The folder of the file.
    """
    result = mapped_array(places.shape, names.dtype, folder)
    for start in range(0, len(places), _BLOCK):
        result[start : start + _BLOCK] = names[places[start : start + _BLOCK]]
    return result


def packed(columns: Columns) -> tuple[dict[str, Tensor], dict[str, list[str] | None]]:
    """Return columns as tensors, and for strings the values that the numbers stand for."""
    tensors: dict[str, Tensor] = {}
    names: dict[str, list[str] | None] = {}
    for name, values in columns.items():
        names[name] = None
        if values.dtype.kind == "U":
            texts, values = distinct(values)
            names[name] = texts.tolist()
        tensors[f"column/{name}"] = torch.from_numpy(values)
    return tensors, names


def unpacked(
    tensors: Mapping[str, Tensor], names: Mapping[str, list[str] | None], folder: Path
) -> Columns:
    """Return the columns that `packed` packed; many texts lie in a file in the folder."""
    columns = {name: tensors[f"column/{name}"].numpy() for name in names}
    texts = {
        name: mapped_column(np.array(text), columns[name], folder)
        for name, text in names.items()
        if text is not None
    }
    return columns | texts
