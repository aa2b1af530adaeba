"""Advice of errors about arrays, mostly as lines of Python that do what they promise.

In the lines, ``x`` and ``y`` are the arrays of the error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protofl.data.columns import is_gap
from protofl.data.spec import Kind

FIELDS = (
    "give an array N×features of numbers: from numpy.lib.recfunctions import "
    'structured_to_unstructured; x = structured_to_unstructured(x, "float32")'
)
"""How a table with named columns becomes numbers."""

_SHAPES = {
    "table": "give each sample as one row: x = x.reshape(len(x), -1)",
    "tokens": "give each sample as one row: x = x.reshape(len(x), -1)",
    "series": "join the axes before the last one to channels, if the last one is time: "
    "x = x.reshape(len(x), -1, x.shape[-1])",
    "image": "give pictures N×H×W or N×C×H×W; for other samples say kind=table, tokens or series",
}


def scaled(low: float, high: float) -> str:
    """Return the line that brings numbers low…high to -1…1."""
    half = (high - low) / 2 or 1.0
    return f'x = (x.astype("float32") - {_number(low)}) / {_number(half)} - 1'


def _number(value: float) -> str:
    """Return a number without an exponent if it is whole, in brackets if it is negative."""
    text = str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)
    return f"({text})" if value < 0 else text


def samples_advice(x: np.ndarray, kind: Kind) -> str:
    """Return how to convert samples of a type that the kind does not take."""
    if x.dtype.names:
        return FIELDS
    if kind == "image" and x.dtype.kind in "biu":
        low, high = int(x.min()), int(x.max())
        if low >= 0 and 128 <= high <= 255:
            return 'convert them: x = x.astype("uint8")'
        return f"scale them, alike in all parts: {scaled(low, high)}"
    if kind == "tokens":
        return 'convert ids: x = x.astype("int64"); or say kind=table or kind=series'
    if x.dtype == object and (gaps := sum(map(is_gap, x.flat))):
        return (
            f"{gaps:,} values are missing (None, NaN, NaT or <NA>); leave out such samples: "
            "keep = ~pandas.isna(x).reshape(len(x), -1).any(1); "
            'x, y = x[keep].astype("float32"), y[keep]'
        )
    return (
        'convert numbers: x = x.astype("float32"); code texts as numbers, for example with '
        "pandas.get_dummies"
    )


def shape_advice(x: np.ndarray, kind: Kind) -> str:
    """Return how to bring samples into the axes of their kind."""
    if 0 in x.shape:
        return "leave out arrays without content"
    if x.ndim == 1:
        return "give the numbers of each sample as a row; one number each: x = x[:, None]"
    if kind == "image" and x.ndim == 4:
        return "bring the channels to the second axis: x = numpy.moveaxis(x, 3, 1)"
    return _SHAPES[kind]


def labels_advice(y: np.ndarray, parts: int) -> str:
    """Return how labels of another type become class numbers."""
    if y.dtype.kind == "f" and np.isnan(y).any():
        keep = "keep = ~numpy.isnan(y); x, y = x[keep], y[keep]"
        return f"leave out samples without a label: {keep}"
    together = " of all parts together" if parts > 1 else ""
    number = "classes, y = numpy.unique(y, return_inverse=True)"
    return (
        f"number the labels{together}, and save the names as classes: {number}; predict numbers: "
        "--set dataset.task=regression"
    )


def label_axes_advice(y: np.ndarray, count: int) -> str:
    """Return how labels with more axes become one class number each."""
    if y.ndim == 2 and len(y) == count and y.shape[1] > 1:
        return (
            "give class numbers: y = y.argmax(1); for several labels of a sample: "
            "--set dataset.task=multilabel, and 0 and 1 in y"
        )
    return "give one integer for each sample"


def finite_advice(kind: Kind) -> str:
    """Return how to leave out samples with NaN or infinity."""
    noun = "images" if kind == "image" else "samples"
    return (
        f"repair or leave out such {noun}: "
        "keep = (numpy.abs(x) < 3e38).reshape(len(x), -1).all(1); "
        "x, y = x[keep], y[keep]"
    )


def shown_numbers(values: Sequence[object], most: int = 5) -> str:
    """Return the first of some numbers, and how many more there are."""
    few = ", ".join(map(str, values[:most]))
    return few if len(values) <= most else f"{few} and {len(values) - most:,} more"
