"""Arrays as a data set: every check on shapes, values and labels, in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofl.data.dataset import (
    LARGEST_USUAL,
    Dataset,
    checked_labels,
    numbered,
    odd_classes,
)
from protofl.data.preparation import Preparation, Scaling
from protofl.data.spec import KINDS, PLURAL, Kind
from protofl.data.task_names import TaskName
from protofl.data.tasks import CLASSIFICATION, Task
from protofl.errors import UsageError
from protofl.system.formatting import shape_text

__all__ = ["dataset_from_arrays"]

_Part = tuple[np.ndarray, str]
_Layout = Callable[[np.ndarray], np.ndarray]


_DARKEST = 31  # of 255: masks of 0 and 1, class numbers, and digits of 0…16

_DECIMALS = 5
"""Decimals of standardised numbers, so that digests don't depend on the order of sums."""


def dataset_from_arrays(
    parts: Sequence[tuple[np.ndarray, np.ndarray, str]],
    num_train: int | None = None,
    classes: Sequence[str] | int | None = None,
    *,
    kind: Kind | None = None,
    vocabulary: int | None = None,
    padding: int | None = None,
    standardise: bool = False,
    preparation: Preparation | None = None,
    columns: Mapping[str, Any] | None = None,
    task: Task | TaskName = CLASSIFICATION,
) -> Dataset:
    """Check arrays and join them to one data set, in the order given.

    By default, two axes are rows of a table (floats) or token sequences (integers except uint8);
    three or four axes are images.

    Args:
        parts: Samples, labels and origin (for errors) of each part. Images are N×H×W, N×H×W×C (C 1
            or 3) or N×C×H×W, uint8 in 0…255 or normalised floats. Series are N×length or
            N×channels×length, tables N×features, of numbers that are used as they are. Token
            sequences are N×length, integers in 0…V-1. Labels are integers, [N] or [N, 1].
        num_train: Samples of the training part, which come first; None: all.
        classes: Names of the classes or their number; None: the labels that occur are numbered
            0…C-1 and are the names.
        kind: ``image``, ``series``, ``tokens`` or ``table``, if the arrays do not determine it.
        vocabulary: Number of token ids V; None: one more than the largest that occurs.
        padding: The id at the end of short token sequences, if any.
        standardise: True for mean 0 and deviation 1 of table columns and series channels.
        preparation: What to do to raw samples; the arrays are raw, and the data set stores what
            they become. (Texts are token ids already, of `Words.ids`.)
        columns: {name: values [N]}, numbers or strings in the order of the parts
            (``--partition column:NAME``).
        task: What labels are. ``multilabel``: 0 and 1 in columns, [N, L]. ``regression``, or a
            `Task` with its offset and scale: numbers in their own unit, [N] or [N, 1]. ``classes``
            are the names of the columns. ``language-model``: classes, which only divide the texts
            among clients; the next tokens are predicted.

    Raises:
        UsageError: Shapes or values don't fit; names the part.
    """
    chosen = task if isinstance(task, Task) else Task(task)
    if chosen.name == "language-model":
        texts = dataset_from_arrays(
            parts, num_train, classes, kind=kind, vocabulary=vocabulary, padding=padding,
            standardise=standardise, preparation=preparation, columns=columns,
        )  # fmt: skip
        return _language_model(texts, chosen)
    both = sum(np.ndim(x) > 0 and len(x) > 0 for x, *_ in parts)
    for x, y, source in parts:
        _check_masks(x, y, source)
    counts, sources = [len(x) if np.ndim(x) else 0 for x, *_ in parts], [s for *_, s in parts]
    labels = [
        checked_labels(y, count, source, both)
        for (_, y, source), count in zip(parts if chosen.has_classes else (), counts, strict=False)
    ]
    filled, kind = _samples_of(parts, kind)
    _check_options(kind, vocabulary, padding, standardise)
    if standardise and preparation is not None:
        raise UsageError(
            "standardise makes a preparation, and one was given", do="give one of both"
        )
    samples = joined_samples(filled, kind)
    if not samples.size:
        shape = shape_text(samples.shape)
        raise UsageError(f"{filled[0][1]}: {PLURAL[kind]} without content, {shape}")
    num_train = sum(counts) if num_train is None else num_train
    if chosen.has_classes:
        numbers, names = numbered(labels, sources, classes)
        fields: dict[str, Any] = {"y": torch.from_numpy(numbers), "classes": names}
        note = "; ".join(odd_classes(numbers, num_train, names))
    else:
        from protofl.data.targets import target_fields

        output_names = None if isinstance(classes, int) else classes
        values = [np.asarray(y) for _, y, _ in parts]
        fields = target_fields(chosen, values, sources, counts, output_names, num_train)
        note = fields.pop("note")
    if kind == "tokens":
        vocabulary = _checked_ids(samples, filled, vocabulary, padding)
    if standardise:
        preparation = Preparation(_standardisation(samples, num_train))
    preparation = preparation or Preparation()
    if preparation.scaling is not None:
        samples = preparation(torch.from_numpy(samples)).numpy()
    data = Dataset(
        x=torch.from_numpy(samples),
        num_train=num_train,
        note="; ".join(filter(None, [*_odd_values(samples, kind), note])),
        vocabulary=vocabulary or 0,
        padding=padding,
        columns=dict(columns or {}),
        preparation=preparation,
        **fields,
    )
    if data.columns:
        from protofl.data.columns import column_faults

        if faults := column_faults(data.columns, len(data.y)):
            raise UsageError("; ".join(faults))
    return data


def _language_model(data: Dataset, task: Task) -> Dataset:
    """Return token sequences whose task is to predict each token from those before it.

    Raises:
        UsageError: The samples are not texts of two tokens or more.
    """
    if data.sample.kind != "tokens" or data.x.shape[1] < 2:
        raise UsageError(
            f"task=language-model needs texts of two tokens or more, got {data.sample}",
            do="leave it out, or choose texts",
        )
    places = [f"token {place}" for place in range(2, data.x.shape[1] + 1)]
    return replace(data, task=task, targets=next_tokens(data.x, data.padding), outputs=places)


def next_tokens(x: Tensor, padding: int | None) -> Tensor:
    """Return 1 for each token of texts [N, L] from the second on, 0 for padding: [N, L − 1]."""
    tokens = x[:, 1:]
    return (torch.ones_like(tokens) if padding is None else tokens != padding).float()


# --- contents of arrays ------------------------------------------------------------------------


def _samples_of(
    parts: Sequence[tuple[np.ndarray, np.ndarray, str]], kind: Kind | None
) -> tuple[list[_Part], Kind]:
    """Return the parts that have samples, and the kind of their samples."""
    arrays = [(np.asarray(x), source) for x, _, source in parts]
    filled = [(x, source) for x, source in arrays if x.ndim and len(x)]
    if not filled:
        noun = PLURAL[kind or "image"]
        raise UsageError(f"{arrays[0][1] if arrays else 'data'}: no {noun}")
    kind = kind or _kind_of(*filled[0])
    if kind not in KINDS:
        raise UsageError(f"{kind!r} is not a kind of sample", f"kinds: {', '.join(KINDS)}")
    return filled, kind


def _check_masks(x: np.ndarray, y: np.ndarray, source: str) -> None:
    """Refuse masked values: NumPy would drop the mask, and keep what is below it."""
    for name, array in (("x", x), ("y", y)):
        if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
            hidden = int(np.ma.getmaskarray(array).sum())
            noun = "samples" if name == "x" else "labels"
            raise UsageError(
                f"{source}: {hidden:,} values of {noun} are masked",
                do="leave out such rows (numpy.ma.getmaskarray says which), or fill them: "
                "x = x.filled(x.mean())"
                if name == "x"
                else "leave out such rows: keep = ~numpy.ma.getmaskarray(y); "
                "x, y = x[keep], y[keep].data",
            )


def _kind_of(x: np.ndarray, source: str) -> Kind:
    """Guess the kind of samples in an array."""
    if x.dtype.names:
        from protofl.data import advice

        raise UsageError(
            f"{source}: a table with named columns ({advice.shown_numbers(x.dtype.names)})",
            "a table is an array N×features",
            advice.FIELDS,
        )
    if x.ndim == 1:
        noun = "text" if x.dtype.kind in "SUT" else "number"
        raise UsageError(
            f"{source}: the shape {shape_text(x.shape)}, one {noun} for each sample",
            "texts are given as token ids N×length"
            if noun == "text"
            else "a table is an array N×features",
            "number their words: ids from 0 on, rows of one length"
            if noun == "text"
            else 'for a table with one column: x = x[:, None].astype("float32")',
        )
    if x.ndim == 2 and x.dtype.kind not in "iu":
        return "table"
    if x.ndim == 2 and x.dtype.kind in "iu" and x.dtype != np.uint8:
        if int(x.min()) < 0:
            raise UsageError(
                f"{source}: integers from {x.min()}, in rows of {x.shape[1]}",
                "token ids start at 0; the numbers of a table may be any",
                "say which they are: kind=table, or floats",
            )
        return "tokens"
    return "image"


def _check_options(
    kind: Kind, vocabulary: int | None, padding: int | None, standardise: bool
) -> None:
    if kind != "tokens":
        for name, value in (("vocabulary", vocabulary), ("padding", padding)):
            if value is not None:
                raise UsageError(
                    f"{name}={value}, but the samples are {PLURAL[kind]}",
                    "only token sequences have one",
                    "leave it out, or say kind=tokens",
                )
    if standardise and kind not in ("series", "table"):
        raise UsageError(f"standardise is for series and tables, not for {PLURAL[kind]}")


def joined_samples(filled: Sequence[_Part], kind: Kind) -> np.ndarray:
    """All samples as one contiguous array of the kind's shape and type."""
    first, first_source = filled[0]
    layout = _layout(first, first_source, kind)
    for x, source in filled:
        _check_type(x, source, kind)
        if x.shape[1:] != first.shape[1:] or (x.dtype == np.uint8) != (first.dtype == np.uint8):
            raise UsageError(
                f"{source}: {PLURAL[kind]} are {shape_text(x.shape[1:])} {x.dtype}",
                f"{first_source}: {shape_text(first.shape[1:])} {first.dtype}",
                f"bring all {PLURAL[kind]} to one shape and one type",
            )
    dtype: type[np.generic] = np.int64 if kind == "tokens" else np.float32
    if kind == "image" and first.dtype == np.uint8:
        dtype = np.uint8
    with np.errstate(over="ignore", invalid="ignore"):  # what float32 doesn't hold is found below
        if len(filled) == 1:  # not copied if it fits
            joined = np.require(layout(first), dtype, ["C", "W"])
        else:
            count = sum(len(x) for x, _ in filled)
            joined = np.empty((count, *layout(first[:1]).shape[1:]), dtype)
            np.concatenate([layout(x) for x, _ in filled], out=joined, casting="unsafe")
    if dtype == np.float32:
        _check_finite(joined, filled, kind)
    return joined


_TYPES = {
    "image": ("uf", "uint8 in 0…255, or floats that are already normalised"),
    "series": ("iuf", "floats or integers"),
    "table": ("iuf", "floats or integers"),
    "tokens": ("iu", "token ids are integers"),
}


def _check_type(x: np.ndarray, source: str, kind: Kind) -> None:
    letters, near = _TYPES[kind]
    fits = x.dtype.kind in letters and not (
        kind == "image" and x.dtype.kind == "u" and x.dtype != np.uint8
    )
    if not fits:
        from protofl.data import advice

        raise UsageError(
            f"{source}: {PLURAL[kind]} are {x.dtype}", near, advice.samples_advice(x, kind)
        )


def _check_finite(joined: np.ndarray, filled: Sequence[_Part], kind: Kind) -> None:
    at = 0
    for x, source in filled:
        rows = joined[at : at + len(x)]
        at += len(x)
        if not np.isfinite(rows).all():
            from protofl.data import advice

            wrong = ~np.isfinite(rows).reshape(len(rows), -1)
            bad = np.flatnonzero(wrong.any(axis=1))
            noun = "image" if kind == "image" else "sample"
            near = f"{len(bad):,} of {len(rows):,} {noun}s hold such numbers"
            if kind == "table":
                columns = np.flatnonzero(wrong.any(axis=0)).tolist()
                near += f", in column {advice.shown_numbers(columns)} (from 0)"
            raise UsageError(
                f"{source}: the {noun} in row {bad[0]} holds NaN, infinity or more than float32 "
                "holds",
                near,
                advice.finite_advice(kind),
            )


def _layout(x: np.ndarray, source: str, kind: Kind) -> _Layout:
    """Return a function that views arrays in the kind's shape."""
    if kind == "image":
        return _image_layout(x, source)
    if 0 not in x.shape:
        if kind == "series" and x.ndim == 2:
            return lambda a: a[:, None]
        if x.ndim == (3 if kind == "series" else 2):
            return lambda a: a
    from protofl.data import advice

    possible = {
        "series": "N×length or N×channels×length",
        "table": "N×features",
        "tokens": "N×length",
    }
    raise UsageError(
        f"{source}: {PLURAL[kind]} of the shape {shape_text(x.shape) or '()'}",
        f"possible: {possible[kind]}",
        advice.shape_advice(x, kind),
    )


def _image_layout(x: np.ndarray, source: str) -> _Layout:
    if x.ndim == 3:
        return lambda a: a[:, None]
    if x.ndim == 4 and 0 not in x.shape:
        channels, height, width = x.shape[1:]
        if channels in (1, 3):
            return lambda a: a
        if width in (1, 3):
            return lambda a: np.moveaxis(a, 3, 1)
        if channels < min(height, width):
            return lambda a: a
    from protofl.data import advice

    raise UsageError(
        f"{source}: images of the shape {shape_text(x.shape) or '()'}",
        "possible: N×H×W, N×H×W×C with C 1 or 3, or N×C×H×W",
        advice.shape_advice(x, "image"),
    )


# --- values -------------------------------------------------------------------------------------


def _checked_ids(
    ids: np.ndarray, filled: Sequence[_Part], vocabulary: int | None, padding: int | None
) -> int:
    """V, if all token ids are in 0…V-1."""
    largest = max(int(ids.max()), padding or 0)
    size = max(2, largest + 1) if vocabulary is None else vocabulary
    at = 0
    for x, source in filled:
        rows = ids[at : at + len(x)]
        at += len(x)
        wrong = (rows < 0) | (rows >= size)
        if wrong.any():
            bad = np.flatnonzero(wrong.any(axis=1))
            row = int(bad[0])
            more = f"; {len(bad):,} of {len(rows):,} rows have such ids" if len(bad) > 1 else ""
            raise UsageError(
                f"{source}: token id {rows[row][wrong[row]][0]} in row {row}",
                f"ids go from 0 to {size - 1}{more}",
                "correct the ids, or the vocabulary's size with vocabulary=",
            )
    if padding is not None and not 0 <= padding < size:
        raise UsageError(
            f"the padding id {padding} is not an id of the vocabulary",
            f"ids go from 0 to {size - 1}",
        )
    return size


def _standardisation(x: np.ndarray, num_train: int) -> Scaling:
    """Columns of a table, channels of a series, by mean and deviation of the first rows."""
    axes = (0, *range(2, x.ndim))
    train = x[:num_train].astype(np.float64)
    mean, deviation = train.mean(axes), train.std(axes)
    varies = deviation > 1e-9 * np.maximum(1, np.abs(mean))
    scale = np.where(varies, deviation, Scaling.SILENT)
    return Scaling(tuple(mean.tolist()), tuple(scale.tolist()), _DECIMALS)


def _odd_values(samples: np.ndarray, kind: Kind) -> list[str]:
    """Notes of samples that are hardly what was meant."""
    if len(samples) > 1 and all(np.array_equal(samples[0], row) for row in samples[1:]):
        return [f"all {len(samples):,} {PLURAL[kind] if kind != 'table' else 'rows'} are equal"]
    result = []
    if kind == "series" and samples.shape[1] > samples.shape[2]:
        channels, length = samples.shape[1:]
        result.append(
            f"series have {channels:,} channels and {length:,} readings; if it is the other way "
            "round: numpy.moveaxis(x, 2, 1)"
        )
    if samples.dtype == np.uint8 and (high := int(samples.max())) <= _DARKEST:
        result.append(
            f"images are uint8 from {samples.min()} to {high}, and 255 is white: they are nearly "
            f"black (x * {255 // max(1, high)} uses the whole range)"
        )
    if samples.dtype != np.float32:
        return result
    low, high_ = float(samples.min()), float(samples.max())
    if max(-low, high_) <= LARGEST_USUAL:
        return result
    if kind == "image":
        from protofl.data import advice

        result.append(
            f"images are floats from {low:g} to {high_:g} and are used as they are, not normalised "
            "(save uint8 to have 0…255 normalised)"
            if 0 <= low and 128 <= high_ <= 255
            else f"images are floats from {low:g} to {high_:g} and are used as they are, not "
            f"normalised ({advice.scaled(low, high_)} brings them to -1…1)"
        )
    else:
        result.append(
            f"numbers go from {low:g} to {high_:g} and are used as they are "
            "(standardise=true brings them to mean 0 and standard deviation 1)"
        )
    return result
