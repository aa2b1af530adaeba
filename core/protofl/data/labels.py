"""Labels from arrays: checked, and numbered 0…C-1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protofl.errors import UsageError


def checked_labels(y: np.ndarray, count: int, source: str) -> np.ndarray:
    """Labels [count] int64 at least 0, of integers [count] or [count, 1]."""
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or len(y) != count:
        raise UsageError(
            f"{source}: {count} samples, but labels of the shape {y.shape}",
            do="give one integer for each sample",
        )
    if count and y.dtype.kind not in "iu":
        raise UsageError(
            f"{source}: labels are {y.dtype}, not integers",
            do='convert them: y.astype("int64")',
        )
    y = y.astype(np.int64)
    if count and y.min() < 0:
        raise UsageError(
            f"{source}: negative label {y.min()} at row {y.argmin()}",
            do="labels go from 0 to C-1; leave unlabelled samples out",
        )
    return y


def numbered(
    labels: list[np.ndarray], sources: list[str], classes: Sequence[str] | int | None
) -> tuple[np.ndarray, list[str]]:
    """All labels in 0…C-1, and the names of the C classes."""
    joined = np.concatenate(labels)
    names: list[str]
    if classes is None:
        values, joined = np.unique(joined, return_inverse=True)
        names = [str(value) for value in values]
    else:
        names = [str(i) for i in range(classes)] if isinstance(classes, int) else list(classes)
        for y, source in zip(labels, sources, strict=True):
            if len(y) and int(y.max()) >= len(names):
                raise UsageError(
                    f"{source}: label {y.max()} at row {y.argmax()}, but there are {len(names)} "
                    "classes",
                    f"labels go from 0 to {len(names) - 1}",
                    "correct the labels or the number of classes",
                )
    if len(names) < 2:
        raise UsageError(
            f"{sources[0]}: only one class ({names[0]})" if names else f"{sources[0]}: no class",
            do="a data set needs two classes or more",
        )
    return joined.astype(np.int64, copy=False), names


def odd_classes(labels: np.ndarray, num_train: int, names: list[str]) -> list[str]:
    """A note of classes that are only in the test part, if there are some."""
    trained = np.bincount(labels[:num_train], minlength=len(names)) > 0
    tested = np.bincount(labels[num_train:], minlength=len(names)) > 0
    only = [names[i] for i in np.flatnonzero(tested & ~trained)]
    return [f"only in the test part: class {', '.join(only)}"] if only else []
