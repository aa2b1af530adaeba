"""Labels of another task than classification: several of a sample, or a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofl.data.dataset import LARGEST_USUAL, class_names
from protofl.data.tasks import Task, strata
from protofl.errors import UsageError


def target_fields(
    task: Task,
    values: Sequence[np.ndarray],
    sources: Sequence[str],
    counts: Sequence[int],
    names: Sequence[str] | None = None,
    num_train: int | None = None,
) -> dict[str, Any]:
    """Check the labels of a task other than classification, and divide samples by them.

    Args:
        task: Multi-label or regression.
        values: Per part its labels [n, L] of 0 and 1, or its numbers, [n] or [n, 1].
        sources: Their origin, for errors.
        counts: The samples of each part.
        names: Names of the L labels, or of the number; None for ``label 0`` and so on, ``target``.
        num_train: The first rows that are training rows; None for all.

    Returns:
        The arguments of `Dataset` that depend on the task: ``task``, ``targets``, ``outputs``, and
        ``y`` and ``classes`` as `protofl.data.tasks.strata` returns them. ``note`` says if numbers
        are large or small for a net.

    Raises:
        UsageError: Their form is another, a value is missing or is not 0 or 1, or all are equal.
    """
    parts = list[np.ndarray]()
    for array, source, count in zip(values, sources, counts, strict=True):
        rows = checked_targets(task, array, source, count)
        if parts and rows.shape[1] != parts[0].shape[1]:
            raise UsageError(
                f"{source}: labels of {rows.shape[1]} columns",
                f"{sources[0]} has {parts[0].shape[1]}",
                "give both parts the same labels in the same order",
            )
        parts.append(rows)
    targets = torch.from_numpy(np.concatenate(parts))
    width = targets.shape[1]
    if names is None:
        names = ["target"] if task.name == "regression" else [f"label {n}" for n in range(width)]
    outputs = class_names(list(names), sources[0])
    if len(outputs) != width:
        raise UsageError(
            f"{sources[0]}: {len(outputs)} names for {width} columns of labels",
            do="give one name for each column, or none",
        )
    y, classes = strata(task, targets, outputs)
    if len(classes) < 2:
        raise UsageError(
            f"{sources[0]}: all {len(targets):,} samples have the same "
            + ("number" if task.name == "regression" else "rarest label"),
            do="nothing can be learned of it; give another target",
        )
    return {
        "task": task,
        "targets": targets,
        "outputs": outputs,
        "y": y,
        "classes": classes,
        "note": far_from_one(task, targets, targets[:num_train]),
    }


def far_from_one(task: Task, targets: Tensor, train: Tensor) -> str:
    """Return a note with options if the numbers of a regression are hard for a net; else empty.

    Args:
        task: The task.
        targets: All numbers, [N, 1].
        train: Those of the training rows.
    """
    if task.name != "regression":
        return ""
    low, high = (float(bound) for bound in task.encoded(targets).aminmax())
    scale, offset = (float(moment) for moment in torch.std_mean(train.double(), correction=0))
    if not scale:
        return ""
    if max(-low, high) > LARGEST_USUAL:
        what = "is much for a net"
    elif scale < task.scale / LARGEST_USUAL:
        what = "is little for a net"
    elif abs(offset - task.offset) > 3 * scale:
        what = "varies little, far from 0"
    else:
        return ""
    decimals = 1 - math.floor(math.log10(scale))  # an offset is as exact as a deviation needs it
    return (
        f"the target goes from {low:g} to {high:g}, which {what}; its mean and deviation over the "
        "training rows bring it to about -3…3: "
        f"--set dataset.offset={round(offset, decimals):.10g} --set dataset.scale={scale:.3g}"
    )


def checked_targets(task: Task, array: np.ndarray, source: str, count: int) -> np.ndarray:
    """Return labels of a part as [n, L] float32.

    Args:
        task: Multi-label or regression.
        array: Labels [n, L] of 0 and 1, or numbers, [n] or [n, 1].
        source: Their origin, for errors.
        count: The samples of the part.

    Raises:
        UsageError: Their form is another, a value is missing or is not 0 or 1.
    """
    array = np.asarray(array)
    array = array[:, None] if array.ndim == 1 and task.name == "regression" else array
    form = "N×L columns of 0 and 1" if task.name == "multilabel" else "one number for each sample"
    wrong = array.ndim != 2 or len(array) != count
    if wrong or (task.name == "regression" and array.shape[1] != 1):
        raise UsageError(
            f"{source}: {count} samples, but labels of the shape {array.shape}",
            f"{task.name} takes {form}",
        )
    if array.dtype.kind not in "biuf":
        raise UsageError(
            f"{source}: labels are {array.dtype}", f"{task.name} takes {form}", "convert them"
        )
    with np.errstate(over="ignore"):
        rows = array.astype(np.float32)
    odd = ~np.isfinite(rows)
    if task.name == "multilabel":
        odd |= (rows != 0) & (rows != 1)
    if odd.any():
        row, column = (int(place) for place in np.argwhere(odd)[0])
        raise UsageError(
            f"{source}: label {array[row, column]} in row {row}, column {column}",
            f"{task.name} takes {form}; {int(odd.any(1).sum()):,} of {count:,} rows have others",
            "correct these rows, or leave them out",
        )
    return rows
