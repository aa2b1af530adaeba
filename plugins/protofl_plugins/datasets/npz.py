"""A data set from one ``.npz`` file: ``--dataset npz:PATH``.

Keys: ``x_train``, ``y_train``, and ``x_test``, ``y_test`` for a test part; ``x_val``, ``y_val``
for a validation part; ``classes`` (names) where the classes have some. MedMNIST's names are read,
too: ``train_images``, ``train_labels`` and so on. A further array with one number or string per
sample is a column, such as ``subject`` for ``--partition column:subject``; of test samples, too,
either in the same array or in ``subject_test``. ``by=subject`` makes each of its values a client,
as that partitioner does. Pickled content is never read. What a sample is follows from ``x_train``,
and ``kind`` says it where that is not what it is:

    images           N×H×W, N×H×W×C (C 1 or 3) or N×C×H×W; uint8, or floats, used as they are
    table            N×features of floats; of integers with kind=table
    tokens           N×length of integers, ids in 0…V-1; of uint8 with kind=tokens
    series           N×length or N×channels×length of numbers, with kind=series

``task=multilabel`` takes ``y_train`` of 0 and 1, N×L, and ``classes`` as the names of the L labels;
``task=regression`` takes one number for each sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

import protofl as pf
from protofl_plugins.datasets.file_kinds import FileKind, kind_of_file

KEYS = ("x_train", "y_train", "x_test", "y_test")

_VALIDATION = ("x_val", "y_val")

MEDMNIST = {
    f"{part}_{noun}": f"{axis}_{part}"
    for part in ("train", "val", "test")
    for noun, axis in (("images", "x"), ("labels", "y"))
}
"""MedMNIST's names of arrays, and ours."""


class ArrayOptions(pf.datasets.TaskOptions):
    """Options of arrays."""

    kind: Literal["image", "series", "tokens", "table"] | None = pf.Field(
        None, description="what a sample is. None: what the arrays' shape and type suggest"
    )
    vocabulary: int | None = pf.Field(
        None, ge=2, description="number of token ids V. None: the largest that occurs, and one"
    )
    padding: int | None = pf.Field(
        None, ge=0, description="the id that fills short token sequences up. None: none does"
    )
    standardise: bool = pf.Field(
        False,
        description="bring every column of a table, every channel of a series to mean 0 and "
        "standard deviation 1 over the training part",
    )


class Npz:
    """A data set from one .npz file with x_train, y_train and perhaps x_test, y_test."""

    argument = "path"
    defaults: ClassVar[dict[str, Any]] = {}

    class Config(ArrayOptions):
        """Options of npz."""

        path: str = pf.Field(description="the .npz file")
        by: str | None = pf.Field(
            None,
            description="the array that names each sample's client (user, hospital); the same as "
            "--partition column:BY. None: the partitioner divides",
        )
        validation: Literal["out", "train", "test"] = pf.Field(
            "out",
            description="where samples of a validation part go: nowhere (but to the test part if "
            "there is no other), to the training or to the test samples",
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The file's path, size and time."""
        path = pf.expand_user(config.path)
        if not path.exists():
            raise pf.missing_path(path, "give it as --dataset npz:PATH")
        chosen = config.model_dump(exclude_defaults=True, exclude={"path"})
        return pf.datasets.files_key("npz", path, [path], "columns 2", *chosen.items())

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Read and check the file.

        Raises:
            UsageError: The file is missing or damaged, an array is unknown, or shapes or values
                don't fit.
        """
        path = pf.expand_user(config.path)
        arrays, held = self.read_arrays(path)
        missing = [key for key in KEYS[:2] if key not in arrays]
        for pair in (KEYS[2:], _VALIDATION):
            if (pair[0] in arrays) != (pair[1] in arrays):
                missing += [key for key in pair if key not in arrays]
        if missing:
            raise pf.UsageError(
                f"{path} has no {' and no '.join(missing)}",
                f"it holds: {', '.join(held) or 'nothing'}",
                "save x_train, y_train and, for a test part, x_test, y_test "
                "(numpy.savez_compressed)",
            )
        if len(arrays["x_train"].shape) == 0 or len(arrays["x_train"]) == 0:
            raise pf.UsageError(f"{path}: x_train holds no samples")
        names = (
            pf.datasets.class_names(arrays["classes"], str(path)) if "classes" in arrays else None
        )
        check_class_names(names or [], f"{path}: classes")
        train, test, note = _parts(arrays, config.validation)
        parts = [
            (arrays[x], arrays[y], f"{path} ({_held(x, held)}, {_held(y, held)})")
            for x, y in (*train, *test)
        ]
        num_train, num_test = (sum(len(arrays[x]) for x, _ in pairs) for pairs in (train, test))
        known = (*KEYS, *_VALIDATION, "classes")
        further = {key: array for key, array in arrays.items() if key not in known}
        columns = pf.datasets.columns_of_arrays(further, num_train, num_test, str(path))
        data = pf.datasets.dataset_from_arrays(
            parts,
            num_train=num_train,
            classes=names,
            kind=config.kind,
            vocabulary=config.vocabulary,
            padding=config.padding,
            standardise=config.standardise,
            task=pf.datasets.Task.of(config),
            columns=columns,
        )
        data.note = "; ".join(filter(None, (note, data.note)))
        return data

    @staticmethod
    def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
        """Return all arrays of a file, with our names for those of MedMNIST, and their names in it.

        Raises:
            UsageError: The file is missing or damaged, holds pickled objects, or is not .npz.
        """
        if not path.is_file():
            raise pf.missing_path(path, "give the path of an .npz file")
        try:
            if kind := _other_kind(path):
                do = kind.do.replace("FILE", str(path))
                raise pf.UsageError(
                    f"{path} is not an .npz file: it is {kind.name}", do=do or "give an .npz file"
                )
            # Opened here because NumPy would leave a damaged file open.
            with path.open("rb") as file:
                content = pf.datasets.open_arrays(file, path)
                if isinstance(content, np.ndarray):
                    raise pf.UsageError(
                        f"{path} is a single array (.npy)",
                        do="save x_train and y_train together with numpy.savez_compressed",
                    )
                held = sorted(content.files)
                own = {} if "x_train" in held else MEDMNIST
                return {own.get(key, key): _member(content, key, path) for key in held}, held
        except pf.UsageError:
            raise
        except Exception as error:  # zip, zlib, numpy and the OS each have their own
            if "allow_pickle" in str(error):  # NumPy's words for all that has no known start
                raise pf.UsageError(
                    f"{path} is not an .npz file, and of no other known kind",
                    do="save x_train and y_train with numpy.savez_compressed",
                ) from None
            raise pf.UsageError(
                f"{path} cannot be read as .npz: {type(error).__name__}: {error}",
                do="the file is damaged or of another kind; save or copy it again",
            ) from error


def _parts(
    arrays: Mapping[str, np.ndarray], validation: Literal["out", "train", "test"]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], str]:
    """Return the keys of samples and labels of the training and of the test part, and a note."""
    train, test = [(KEYS[0], KEYS[1])], [(KEYS[2], KEYS[3])] * ("x_test" in arrays)
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


def check_class_names(names: Sequence[str], source: str) -> None:
    """Check that every class has a name.

    Args:
        names: The names.
        source: The file or array, for the error.

    Raises:
        UsageError: A name is a word that programs write for a gap.
    """
    for number, name in enumerate(names):
        if name in ("", "nan", "NaN", "NaT", "<NA>", "None"):
            raise pf.UsageError(
                f"{source}: class {number} of {len(names)} has no name, but {name!r}",
                do="give each class a name, or leave `classes` out to name classes by their labels",
            )


def _held(key: str, held: Sequence[str]) -> str:
    """Return the name of an array in the file."""
    return key if key in held else next(k for k, own in MEDMNIST.items() if own == key)


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
        raise pf.UsageError(
            f"{path}: the array {key} holds pickled objects, which can run code and are never read "
            "here",
            do=f"save plain arrays, for example {key}.{convert}: images as uint8 or float32, other "
            "samples as float32 or int64, labels as integers, classes as strings",
        ) from None
