"""Data sets from ``.npz`` files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from protofl.data.array_files import open_arrays
from protofl.data.arrays import dataset_from_arrays
from protofl.data.columns import check_class_names, from_arrays
from protofl.data.dataset import Dataset, class_names
from protofl.data.file_kinds import FileKind, kind_of_file
from protofl.data.spec import Kind
from protofl.data.task_names import TaskName
from protofl.data.tasks import CLASSIFICATION, Task
from protofl.errors import UsageError
from protofl.system.files.atomic import LARGEST_DATA, regular_file
from protofl.system.files.home import expand_user, missing_path

__all__ = ["read_npz"]

_KEYS = ("x_train", "y_train", "x_test", "y_test")

_VALIDATION = ("x_val", "y_val")

MEDMNIST = {
    f"{part}_{noun}": f"{axis}_{part}"
    for part in ("train", "val", "test")
    for noun, axis in (("images", "x"), ("labels", "y"))
}
"""MedMNIST's names of arrays, and ours."""


def read_npz(
    path: str | Path,
    *,
    kind: Kind | None = None,
    vocabulary: int | None = None,
    padding: int | None = None,
    standardise: bool = False,
    task: Task | TaskName = CLASSIFICATION,
    validation: Literal["out", "train", "test"] = "out",
) -> Dataset:
    """Read a data set from one ``.npz`` file; pickled content is never read.

    Keys: ``x_train`` and ``y_train``; ``x_test`` and ``y_test``, if there is a test part;
    ``classes`` (names), if the classes have some. Labels are integers (of another task see
    `dataset_from_arrays`); without ``classes`` those
    that occur are numbered 0…C-1 and keep their value as name. A further array with one number or
    string per sample is a column of the data set (see `protofl.data.columns.from_arrays`).
    ``x_val`` and ``y_val`` are a validation part. MedMNIST's names are read, too: ``train_images``,
    ``train_labels`` and those of ``val`` and ``test``.

    Args:
        path: The file.
        kind: See `dataset_from_arrays`, as the others.
        vocabulary: Number of token ids.
        padding: The id that fills token sequences up.
        standardise: True to standardise series and tables.
        task: What labels are.
        validation: Where samples of a validation part go. ``out`` leaves them out; in a file
            without a test part they are the test part.

    Raises:
        UsageError: The file is missing or damaged, an array is unknown, or shapes or values don't
            fit.
    """
    path = expand_user(path)
    arrays, held = read_arrays(path)
    missing = [key for key in _KEYS[:2] if key not in arrays]
    for pair in (_KEYS[2:], _VALIDATION):
        if (pair[0] in arrays) != (pair[1] in arrays):
            missing += [key for key in pair if key not in arrays]
    if missing:
        raise UsageError(
            f"{path} has no {' and no '.join(missing)}",
            f"it holds: {', '.join(held) or 'nothing'}",
            "save x_train, y_train and, for a test part, x_test, y_test (numpy.savez_compressed)",
        )
    if len(arrays["x_train"].shape) == 0 or len(arrays["x_train"]) == 0:
        raise UsageError(f"{path}: x_train holds no samples")
    names = class_names(arrays["classes"], str(path)) if "classes" in arrays else None
    check_class_names(names or [], f"{path}: classes")
    train, test, note = _parts(arrays, validation)
    parts = [
        (arrays[x], arrays[y], f"{path} ({_held(x, held)}, {_held(y, held)})")
        for x, y in (*train, *test)
    ]
    num_train, num_test = (sum(len(arrays[x]) for x, _ in pairs) for pairs in (train, test))
    known = (*_KEYS, *_VALIDATION, "classes")
    further = {key: array for key, array in arrays.items() if key not in known}
    columns = from_arrays(further, num_train, num_test, str(path))
    data = dataset_from_arrays(
        parts,
        num_train=num_train,
        classes=names,
        kind=kind,
        vocabulary=vocabulary,
        padding=padding,
        standardise=standardise,
        task=task,
        columns=columns,
    )
    data.note = "; ".join(filter(None, (note, data.note)))
    return data


def _parts(
    arrays: Mapping[str, np.ndarray], validation: Literal["out", "train", "test"]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], str]:
    """Return the keys of samples and labels of the training and of the test part, and a note."""
    train, test = [(_KEYS[0], _KEYS[1])], [(_KEYS[2], _KEYS[3])] * ("x_test" in arrays)
    tested = "x_test" in arrays and arrays["x_test"].size > 0
    if "x_val" not in arrays:
        return train, test, ""
    if validation == "train":
        return [*train, _VALIDATION], test, ""
    if validation == "test" or not tested:
        note = (
            "" if tested else "the file has no test part, so the validation part is the test part"
        )
        return train, [_VALIDATION, *test], note
    note = (
        f"the validation part, {len(arrays['x_val']):,} samples, is left out "
        "(--set dataset.validation=train adds it to the training samples)"
    )
    return train, test, note


def _held(key: str, held: Sequence[str]) -> str:
    """Return the name of an array in the file."""
    return key if key in held else next(k for k, own in MEDMNIST.items() if own == key)


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return all arrays of a file, with our names for those of MedMNIST, and their names in it.

    Raises:
        UsageError: The file is missing or damaged, holds pickled objects, or is not .npz.
    """
    if not path.is_file():
        raise missing_path(path, "give the path of an .npz file")
    try:
        source = regular_file(path, LARGEST_DATA)
        if kind := _other_kind(path):
            do = kind.do.replace("FILE", str(path))
            raise UsageError(
                f"{path} is not an .npz file: it is {kind.name}", do=do or "give an .npz file"
            )
        # Opened here because NumPy would leave a damaged file open.
        with source.open("rb") as file:
            content = open_arrays(file, path)
            if isinstance(content, np.ndarray):
                raise UsageError(
                    f"{path} is a single array (.npy)",
                    do="save x_train and y_train together with numpy.savez_compressed",
                )
            held = sorted(content.files)
            own = {} if "x_train" in held else MEDMNIST
            return {own.get(key, key): _member(content, key, path) for key in held}, held
    except UsageError:
        raise
    except Exception as error:  # zip, zlib, numpy and the OS each have their own
        if "allow_pickle" in str(error):  # NumPy's words for all that has no known start
            raise UsageError(
                f"{path} is not an .npz file, and of no other known kind",
                do="save x_train and y_train with numpy.savez_compressed",
            ) from None
        raise UsageError(
            f"{path} cannot be read as .npz: {type(error).__name__}: {error}",
            do="the file is damaged or of another kind; save or copy it again",
        ) from error


def _other_kind(path: Path) -> FileKind | None:
    """Return what a file is that is not .npz; None for .npz, and for an unknown kind."""
    kind = kind_of_file(path)
    if kind is None or kind.name == "a zip archive":
        return None
    if kind.name == "a single array (.npy)":
        return FileKind(kind.name, "save x_train and y_train together: numpy.savez_compressed")
    return kind


def _member(content: Any, key: str, path: Path) -> np.ndarray:  # noqa: ANN401 - NumPy's NpzFile
    """Read one array.

    Raises:
        UsageError: It holds pickled objects.
    """
    try:
        result: np.ndarray = content[key]
        return result
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        convert = {"x": 'astype("float32")', "y": "astype(str)"}.get(key[0], "astype(str)")
        raise UsageError(
            f"{path}: the array {key} holds pickled objects, which can run code and are never read "
            "here",
            do=f"save plain arrays, for example {key}.{convert}: images as uint8 or float32, other "
            "samples as float32 or int64, labels as integers, classes as strings",
        ) from None
