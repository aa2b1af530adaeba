"""Arrays as an image data set: every check on shapes, values and labels, in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from protofl.data.dataset import Dataset
from protofl.errors import UsageError

__all__ = ["images_from_arrays", "read_npz"]

_Layout = Callable[[np.ndarray], np.ndarray]
_KEYS = ("x_train", "y_train", "x_test", "y_test")
_LARGEST_USUAL = 30.0  # normalised images hardly ever leave this range; 0…255 as floats does


def read_npz(path: str | Path) -> Dataset:
    """Read a data set from one ``.npz`` file; pickled content is never read.

    Keys: ``x_train`` and ``y_train``; ``x_test`` and ``y_test``, if there is a test part;
    ``classes`` (names), if the classes have some. Images are N×H×W, N×H×W×C (C 1 or 3) or
    N×C×H×W, uint8 in 0…255 or floats that are used as they are. Labels are integers; without
    ``classes`` those that occur are numbered 0…C-1 and keep their value as name.

    Raises:
        UsageError: The file is missing or damaged, or its keys, shapes or values don't fit.
    """
    path = Path(path).expanduser()
    arrays, held = _read_arrays(path)
    missing = [key for key in _KEYS[:2] if key not in arrays]
    if ("x_test" in arrays) != ("y_test" in arrays):
        missing += [key for key in _KEYS[2:] if key not in arrays]
    if missing:
        raise UsageError(
            f"{path} has no {' and no '.join(missing)}",
            f"it holds: {', '.join(held) or 'nothing'}",
            "save x_train, y_train and, for a test part, x_test, y_test (numpy.savez_compressed)",
        )
    if len(arrays["x_train"].shape) == 0 or len(arrays["x_train"]) == 0:
        raise UsageError(f"{path}: x_train holds no images")
    parts = [(arrays["x_train"], arrays["y_train"], f"{path} (x_train, y_train)")]
    if "x_test" in arrays:
        parts.append((arrays["x_test"], arrays["y_test"], f"{path} (x_test, y_test)"))
    names = _class_names(arrays["classes"], path) if "classes" in arrays else None
    return images_from_arrays(parts, num_train=len(arrays["x_train"]), classes=names)


def images_from_arrays(
    parts: Sequence[tuple[np.ndarray, np.ndarray, str]],
    num_train: int | None = None,
    classes: Sequence[str] | int | None = None,
) -> Dataset:
    """Check arrays and join them to one data set, in the order given.

    Args:
        parts: Of each part its images, its labels and where they come from (for errors). Images
            are N×H×W, N×H×W×C (C 1 or 3) or N×C×H×W; uint8 in 0…255, or floats that are already
            normalised and used as they are. Labels are integers, [N] or [N, 1].
        num_train: Samples of the training part, which come first; None: all.
        classes: Names of the classes or their number; None: the labels that occur, in ascending
            order, are numbered 0…C-1 and keep their value as name.

    Raises:
        UsageError: Shapes or values don't fit; names the part.
    """
    labels = [_checked_labels(y, len(x) if np.ndim(x) else 0, source) for x, y, source in parts]
    images = _joined_images([(x, source) for x, _, source in parts])
    joined = np.concatenate(labels) if labels else np.empty(0, np.int64)
    names: list[str]
    if classes is None:
        values, joined = np.unique(joined, return_inverse=True)
        names = [str(value) for value in values]
    else:
        names = [str(i) for i in range(classes)] if isinstance(classes, int) else list(classes)
        for y, (_, _, source) in zip(labels, parts, strict=True):
            if len(y) and int(y.max()) >= len(names):
                raise UsageError(
                    f"{source}: label {y.max()} at row {y.argmax()}, but there are {len(names)} "
                    "classes",
                    f"labels go from 0 to {len(names) - 1}",
                    "correct the labels or the number of classes",
                )
    if len(names) < 2:
        raise UsageError(
            f"{parts[0][2]}: only one class ({names[0]})" if names else f"{parts[0][2]}: no class",
            do="a data set needs two classes or more",
        )
    num_train = len(joined) if num_train is None else num_train
    return Dataset(
        x=torch.from_numpy(images),
        y=torch.from_numpy(joined.astype(np.int64, copy=False)),
        num_train=num_train,
        classes=names,
        note="; ".join([*_odd_values(images), *_odd_classes(joined, num_train, names)]),
    )


def _read_arrays(path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays of a data set, and the names of all that the file holds."""
    if not path.is_file():
        raise UsageError(f"no file {path}", do="give the path of an .npz file")
    try:
        with path.open("rb") as file:  # NumPy would leave a damaged file open
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                raise UsageError(
                    f"{path} is a single array (.npy)",
                    do="save x_train and y_train together with numpy.savez_compressed",
                )
            held = sorted(content.files)
            return {key: content[key] for key in (*_KEYS, "classes") if key in held}, held
    except UsageError:
        raise
    except Exception as error:  # zip, zlib, numpy and the OS each have their own
        if "allow_pickle" in str(error):
            raise UsageError(
                f"{path} holds pickled objects, which can run code and are never read here",
                do="save plain arrays: images as uint8 or float32, labels as integers, "
                "classes as strings",
            ) from None
        raise UsageError(
            f"{path} can't be read as .npz: {type(error).__name__}: {error}",
            do="the file is damaged or of another kind; save or copy it again",
        ) from error


def _class_names(array: np.ndarray, path: Path) -> list[str]:
    if array.ndim != 1:
        raise UsageError(
            f"{path}: classes has the shape {array.shape}", do="give one name for each class"
        )
    return [v.decode() if isinstance(v, bytes) else str(v) for v in array.tolist()]


def _checked_labels(y: np.ndarray, count: int, source: str) -> np.ndarray:
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or len(y) != count:
        raise UsageError(
            f"{source}: {count} images, but labels of the shape {y.shape}",
            do="give one integer for each image",
        )
    if count and y.dtype.kind not in "iu":
        raise UsageError(
            f"{source}: labels are {y.dtype}, not integers",
            do='convert them before saving: y.astype("int64")',
        )
    y = y.astype(np.int64)
    if count and y.min() < 0:
        raise UsageError(
            f"{source}: negative label {y.min()} at row {y.argmin()}",
            do="labels go from 0 to C-1; leave unlabelled samples out",
        )
    return y


def _joined_images(arrays: Sequence[tuple[np.ndarray, str]]) -> np.ndarray:
    """All images as one contiguous N×C×H×W array, uint8 or float32."""
    arrays = [(np.asarray(x), source) for x, source in arrays]
    filled = [(x, source) for x, source in arrays if x.ndim and len(x)]
    if not filled:
        raise UsageError(f"{arrays[0][1] if arrays else 'data'}: no images")
    first, first_source = filled[0]
    layout = _layout(first, first_source)
    for x, source in filled:
        if x.dtype != np.uint8 and x.dtype.kind != "f":
            raise UsageError(
                f"{source}: images are {x.dtype}",
                "uint8 in 0…255, or floats that are already normalised",
                'convert them before saving: x.astype("uint8")',
            )
        if x.shape[1:] != first.shape[1:] or (x.dtype == np.uint8) != (first.dtype == np.uint8):
            raise UsageError(
                f"{source}: images are {_size(x)} {x.dtype}",
                f"{first_source}: {_size(first)} {first.dtype}",
                "bring all images to one shape and one type",
            )
    dtype = np.uint8 if first.dtype == np.uint8 else np.float32
    with np.errstate(over="ignore", invalid="ignore"):  # what float32 doesn't hold is found below
        if len(filled) == 1:  # not copied where it fits
            joined = np.require(layout(first), dtype, ["C", "W"])
        else:
            count = sum(len(x) for x, _ in filled)
            joined = np.empty((count, *layout(first[:1]).shape[1:]), dtype)
            np.concatenate([layout(x) for x, _ in filled], out=joined, casting="unsafe")
    at = 0
    for x, source in filled:
        rows = joined[at : at + len(x)]
        at += len(x)
        if rows.dtype == np.float32 and not np.isfinite(rows).all():
            bad = int(np.argmin(np.isfinite(rows).all(axis=(1, 2, 3))))
            raise UsageError(
                f"{source}: the image in row {bad} holds NaN, infinity or more than float32 holds",
                do="repair or leave out such images",
            )
    return joined


def _layout(x: np.ndarray, source: str) -> _Layout:
    """How to view ``x`` as N×C×H×W."""
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
    raise UsageError(
        f"{source}: images of the shape {'×'.join(map(str, x.shape)) or '()'}",
        "possible: N×H×W, N×H×W×C with C 1 or 3, or N×C×H×W",
        "reshape them before saving",
    )


def _size(x: np.ndarray) -> str:
    return "×".join(map(str, x.shape[1:]))


def _odd_values(images: np.ndarray) -> list[str]:
    if images.dtype != np.float32:
        return []
    low, high = float(images.min()), float(images.max())
    if max(-low, high) <= _LARGEST_USUAL:
        return []
    return [
        f"images are floats from {low:g} to {high:g} and are used as they are, not normalised "
        "(save uint8 to have 0…255 normalised)"
    ]


def _odd_classes(labels: np.ndarray, num_train: int, names: list[str]) -> list[str]:
    trained = np.bincount(labels[:num_train], minlength=len(names)) > 0
    tested = np.bincount(labels[num_train:], minlength=len(names)) > 0
    only = [names[i] for i in np.flatnonzero(tested & ~trained)]
    return [f"only in the test part: class {', '.join(only)}"] if only else []
