"""Columns: facts about every sample besides its label (its user, hospital, device, hour)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofl.errors import UsageError

Columns = dict[str, np.ndarray]
"""{name: values [N], int64, float64 or strings}."""


def as_column(values: Any) -> np.ndarray:  # noqa: ANN401 - whatever NumPy makes an array of
    """Return values as int64, float64 or strings; other types stay unchanged."""
    found = values.numpy() if isinstance(values, Tensor) else np.asarray(values)
    kind = found.dtype.kind
    if kind in "biu":
        return found.astype(np.int64)
    if kind == "S":
        try:
            return np.char.decode(found, "utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"a column holds bytes that are not UTF-8: {error.object!r}",
                "names that can't be read would become one client",
                'decode the column: values = numpy.char.decode(values, "latin-1")',
            ) from None
    return found.astype(np.float64) if kind == "f" else found.astype(str) if kind == "M" else found


def column_faults(columns: Mapping[str, np.ndarray], count: int) -> list[str]:
    """Return what does not fit in columns of ``count`` samples; empty if nothing."""
    faults = []
    for name, values in columns.items():
        if values.shape != (count,):
            faults.append(f"column {name!r} has the shape {values.shape}, expected ({count},)")
        elif values.dtype.kind not in "ifU":
            faults.append(f"column {name!r} is {values.dtype}, expected numbers or strings")
    return faults


def from_arrays(arrays: Mapping[str, np.ndarray], train: int, test: int, source: str) -> Columns:
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
    found: Columns = {}
    rest = dict(arrays)
    for key in arrays:
        name = key.removesuffix("_train").removesuffix("_test")
        first = [k for k in (name, f"{name}_train") if k in rest]
        parts = [first[0], f"{name}_test"] if first and f"{name}_test" in rest else first[:1]
        lengths = [train, test] if len(parts) == 2 else [train + test]
        if parts and [rest[k].shape for k in parts] == [(n,) for n in lengths]:
            whole = np.concatenate([as_column(rest.pop(k)) for k in parts])
            if not column_faults({name: whole}, train + test):
                found[name] = whole
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
    return found


def packed(columns: Columns) -> tuple[dict[str, Tensor], dict[str, list[str] | None]]:
    """Return columns as tensors, and for strings the values that the numbers stand for."""
    tensors: dict[str, Tensor] = {}
    names: dict[str, list[str] | None] = {}
    for name, values in columns.items():
        names[name] = None
        if values.dtype.kind == "U":
            texts, values = np.unique(values, return_inverse=True)
            names[name] = texts.tolist()
        tensors[f"column/{name}"] = torch.from_numpy(values)
    return tensors, names


def unpacked(tensors: Mapping[str, Tensor], names: Mapping[str, list[str] | None]) -> Columns:
    """Return the columns that `packed` packed."""
    found = {name: tensors[f"column/{name}"].numpy() for name in names}
    texts = {name: np.array(text)[found[name]] for name, text in names.items() if text is not None}
    return found | texts
