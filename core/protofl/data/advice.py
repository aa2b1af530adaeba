"""Advice of errors about arrays, as lines of Python that do what they promise.

``x`` stands for the samples, ``y`` for the labels. A test runs every line.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protofl.data.spec import Kind

_CODES = "code them as numbers, for example with pandas.get_dummies"


def scaled(low: float, high: float) -> str:
    """Return the line that brings numbers low…high to -1…1."""
    half = (high - low) / 2 or 1.0
    return f'x = (x.astype("float32") - {_number(low)}) / {_number(half)} - 1'


def _number(value: float) -> str:
    """Return a number without an exponent if it is whole, in brackets if it is negative."""
    text = str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)
    return f"({text})" if value < 0 else text


def samples_advice(x: np.ndarray, kind: Kind) -> str:
    """Return how to convert samples of a type that the kind does not take.

    Args:
        x: The samples.
        kind: The kind that they should be.
    """
    letter = x.dtype.kind
    if x.dtype.names:
        return fields_advice(x)
    if letter == "c":
        return "give their magnitude: x = numpy.abs(x); or x.real and x.imag as channels"
    if letter == "M":
        return 'give days since the first: x = (x - x.min()) / numpy.timedelta64(1, "D")'
    if letter == "m":
        return 'give seconds: x = x / numpy.timedelta64(1, "s")'
    if letter in "SUOTV":
        return _text_advice(x)
    if kind == "image" and letter == "b":
        return 'convert them: x = x.astype("uint8") * 255'
    if kind == "image":
        low, high = int(x.min()), int(x.max())
        if low >= 0 and 128 <= high <= 255:
            return 'convert them: x = x.astype("uint8")'
        return f"scale them, alike in all parts: {scaled(low, high)}"
    if kind == "tokens":
        if letter == "b" or bool((x == np.floor(x)).all()):
            return 'convert them: x = x.astype("int64")'
        return "say kind=table for rows of numbers, or kind=series"
    return 'convert them: x = x.astype("float32")'


def _text_advice(x: np.ndarray) -> str:
    """Say how texts and objects become numbers, if they do."""
    try:
        x.astype("float32")
    except (TypeError, ValueError):
        pass
    else:
        return 'convert them: x = x.astype("float32")'
    for row, value in enumerate(x.reshape(len(x), -1)):
        for column, cell in enumerate(value):
            try:
                float(cell)
            except (TypeError, ValueError):
                shown = cell if isinstance(cell, (str, bytes)) else type(cell).__name__
                return f"{shown!r} in row {row}, column {column} is not a number: {_CODES}"
    return _CODES


def fields_advice(x: np.ndarray) -> str:
    """Return how a table with named columns becomes numbers."""
    fields = x.dtype.names or ()
    texts = [name for name in fields if x.dtype[name].kind not in "biuf"]
    if texts:
        return f"{_CODES}: column {', '.join(texts)}; then give N×features"
    return (
        "give an array N×features: from numpy.lib.recfunctions import structured_to_unstructured; "
        'x = structured_to_unstructured(x, "float32")'
    )


def shape_advice(x: np.ndarray, kind: Kind) -> str:
    """Return how to bring samples into the axes of their kind."""
    if 0 in x.shape:
        return "leave out arrays without content"
    if kind == "image":
        return _image_advice(x)
    if x.ndim == 1:
        if kind == "table":
            return "give one column: x = x[:, None]"
        return "give the numbers of each sample as a row"
    if kind in ("table", "tokens"):
        return "give each sample as one row: x = x.reshape(len(x), -1)"
    return (
        "join the axes before the last one to channels, if the last one is time: "
        "x = x.reshape(len(x), -1, x.shape[-1])"
    )


def _image_advice(x: np.ndarray) -> str:
    if x.ndim == 2:
        return (
            "say what they are: kind=table, kind=tokens (ids) or kind=series; flattened images "
            "get their height and width back: x.reshape(len(x), HEIGHT, WIDTH)"
        )
    if x.ndim == 4:
        return "bring the channels to the second axis: x = numpy.moveaxis(x, 3, 1)"
    if x.ndim > 4:
        return "give one picture of each sample, for example the first: x = x[:, 0]"
    return "give an array of pictures"


def labels_advice(y: np.ndarray, parts: int) -> str:
    """Return how labels of another type become class numbers.

    Args:
        y: Labels [N] of one part.
        parts: Number of parts with samples.
    """
    if y.dtype.kind == "b":
        return 'convert them: y = y.astype("int64")'
    if y.dtype.kind == "f" and np.isnan(y).any():
        keep = "keep = ~numpy.isnan(y); x, y = x[keep], y[keep]"
        return f"leave out samples without a label: {keep}"
    if y.dtype.kind == "f" and bool((y == np.floor(y)).all()):
        return (
            'convert classes: y = y.astype("int64"); predict numbers: --set dataset.task=regression'
        )
    every = "numpy.concatenate([y_train, y_test])" if parts > 1 else "y"
    if y.dtype.kind in "UST":
        text = "number them, and save the names as classes: "
        pair = "y_train, y_test = ({} for y in (y_train, y_test))"
        form = pair if parts > 1 else "y = {}"
        if y.dtype.kind == "S":
            text += form.format('numpy.char.decode(y, "utf-8")') + "; "
        number = form.format("numpy.searchsorted(classes, y)")
        return f"{text}classes = numpy.unique({every}); {number}"
    names, number = "values", "numpy.searchsorted(values, {})"
    give = (
        f"y_train, y_test = {number.format('y_train')}, {number.format('y_test')}"
        if parts > 1
        else f"y = {number.format('y')}"
    )
    return (
        "if each value is a class, number them, and save the names as classes: "
        f"{names} = numpy.unique({every}); {give}; classes = values.astype(str); measurements are "
        "cut into classes with numpy.digitize, or predicted as numbers: "
        "--set dataset.task=regression"
    )


def label_axes_advice(y: np.ndarray, count: int) -> str:
    """Return how labels with more axes become one class number each."""
    if y.ndim == 2 and len(y) == count and y.shape[1] > 1 and y.dtype.kind in "biuf":
        one_hot = bool(((y != 0).sum(1) == 1).all())
        if one_hot:
            return "give class numbers: y = y.argmax(1)"
        return "for several labels of a sample: --set dataset.task=multilabel, and 0 and 1 in y"
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
