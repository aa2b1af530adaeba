"""Arrays, tensors and torch's data sets in place of a data set's name.

They are checked as a file's are, decoded into the cache under a name made of their content, and
mapped from there by every process. So a run's record names them by ``arrays:DIGEST``, and a run
that goes on finds them in the cache, or compares what it is given again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from protofl.data.arrays import dataset_from_arrays
from protofl.data.columns import Columns, from_arrays
from protofl.data.dataset import Dataset
from protofl.errors import UsageError
from protofl.hooks.hookspecs.markers import hookimpl
from protofl.system.formatting import count, shape_text
from protofl.system.options.plugin_options import Config, Field

ARRAYS = "arrays"
"""The name of the data set that arrays are."""

_KEYS = ("x_train", "y_train", "x_test", "y_test")

_FORMS = (
    "(x_train, y_train), (x_train, y_train, x_test, y_test), a mapping with these names and "
    "perhaps classes, a torch Dataset or two of them (train, test), or a protofl.datasets.Dataset"
)

_Part = tuple[np.ndarray, np.ndarray, str]

_offered: dict[str, Offer] = {}
"""The arrays of the runs that are going on, by their digests."""


@dataclass(eq=False)
class Offer:
    """Arrays that a program gave as a data set.

    Attributes:
        digest: The first digits of the SHA-256 of all of it.
        parts: Samples, labels and what they are called, of the training part and perhaps of a test
            part; None where the data are decoded already.
        classes: Names of the classes, if they have some.
        data: The data, where they are decoded already.
        columns: Columns of a mapping's further arrays, named as in an npz file.
    """

    digest: str
    parts: list[_Part] | None = None
    classes: list[str] | None = None
    data: Dataset | None = None
    columns: Columns | None = None

    @property
    def name(self) -> str:
        """``arrays:DIGEST``."""
        return f"{ARRAYS}:{self.digest}"

    @classmethod
    def of(cls, given: Any) -> Offer:  # noqa: ANN401 - whatever a program has
        """Check the data that a program gave.

        Args:
            given: ``(x_train, y_train)`` or ``(x_train, y_train, x_test, y_test)``, also as
                ``((x_train, y_train), (x_test, y_test))``, of NumPy arrays, tensors or what NumPy
                makes arrays of; a mapping with these names, and perhaps ``classes``; a torch
                Dataset of pairs ``(x, y)``, or a training and a test one; or a
                `protofl.datasets.Dataset`.

        Raises:
            UsageError: It is none of these.
        """
        if isinstance(given, Dataset):
            if faults := given.faults():
                raise UsageError(
                    f"dataset: the Dataset does not fit together: {'; '.join(faults)}",
                    do="protofl.datasets.dataset_from_arrays makes one of arrays, and checks them",
                )
            about = repr((given.classes, given.note)).encode()
            return cls(_digest([given.compute_digest().encode(), about]), data=given)
        given, further = _without_columns(given)
        parts, classes = _parts_of(given)
        names = None if classes is None else [str(name) for name in classes]
        content = [piece for part in parts for piece in _pieces(part)]
        sizes = [len(x) if x.ndim else 0 for x, *_ in parts]
        columns = from_arrays(further, sizes[0], sum(sizes[1:]), "dataset") if further else {}
        content += [repr((name, column.tolist())).encode() for name, column in columns.items()]
        return cls(_digest([*content, repr(names).encode()]), parts, names, columns=columns)

    def decoded(self, config: Arrays.Config) -> Dataset:
        """The data set, checked.

        Raises:
            UsageError: Shapes, types or values don't fit, or options are given that say otherwise.
        """
        options = config.model_dump(exclude_defaults=True, exclude={"digest"})
        if self.data is not None:
            if options:
                raise UsageError(
                    f"dataset.{next(iter(options))} is for arrays, and a Dataset was given",
                    do="leave it out, or give the option to protofl.datasets.dataset_from_arrays",
                )
            return self.data
        assert self.parts is not None
        first = len(self.parts[0][0]) if self.parts[0][0].ndim else None
        return dataset_from_arrays(self.parts, first, self.classes, columns=self.columns, **options)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Let runs decode the arrays in a block."""
        _offered[self.digest] = self
        try:
            yield
        finally:
            _offered.pop(self.digest, None)


class Arrays:
    """Arrays that a program gave (protofl.run with dataset=…), named by their content."""

    argument = "digest"

    class Config(Config):
        """Options of arrays."""

        digest: str = Field(description="what names the arrays; protofl.run makes it of them")
        kind: Literal["image", "series", "tokens", "table"] | None = Field(
            None, description="what a sample is. None: what the arrays' shape and type suggest"
        )
        vocabulary: int | None = Field(
            None, ge=2, description="number of token ids V. None: the largest that occurs, and one"
        )
        padding: int | None = Field(
            None, ge=0, description="the id that fills short token sequences up. None: none does"
        )
        standardise: bool = Field(
            False,
            description="bring every column of a table, every channel of a series to mean 0 and "
            "standard deviation 1 over the training part",
        )

    @hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """Their digest, and that of the options."""
        chosen = config.model_dump(exclude_defaults=True, exclude={"digest"})
        own = [_digest([repr(sorted(chosen.items())).encode()])[:8]] if chosen else []
        return "-".join([ARRAYS, config.digest, *own])

    @hookimpl
    def decode(self, config: Config, data_dir: Path) -> Dataset:
        """Check what the program gave."""
        found = _offered.get(config.digest)
        if found is None:
            raise UsageError(
                f"the arrays {config.digest} are not in {data_dir}",
                "a program gave them to protofl.run, and a run finds them in the cache alone",
                "give them again: protofl.run(…, dataset=…)",
            )
        return found.decoded(config)


def _without_columns(given: Any) -> tuple[Any, dict[str, np.ndarray]]:  # noqa: ANN401 - anything
    """A mapping's samples, labels and classes, and its further arrays."""
    if not isinstance(given, Mapping) or not {*_KEYS[:2]} <= {*given}:
        return given, {}
    known = {key: given[key] for key in (*_KEYS, "classes") if key in given}
    return known, {str(k): _array(v, str(k)) for k, v in given.items() if k not in known}


def _parts_of(given: Any) -> tuple[list[_Part], Sequence[Any] | None]:  # noqa: ANN401 - anything
    """The parts of a data set, and its classes' names."""
    classes: Any = None
    if isinstance(given, Mapping):
        if not {*_KEYS[:2]} <= {*given}:
            raise UsageError(
                f"dataset: a mapping of {', '.join(map(str, given)) or 'nothing'}",
                f"it has {', '.join(_KEYS[:2])} and may have {', '.join(_KEYS[2:])}, classes",
            )
        classes = given.get("classes")
        given = tuple(given[key] for key in _KEYS if given.get(key) is not None)
    if isinstance(given, TorchDataset):
        given = (given,)
    if not isinstance(given, (tuple, list)):
        raise UsageError(
            f"dataset: {type(given).__name__} is no data set", f"possible: {_FORMS}", "give one"
        )
    if given and all(isinstance(item, TorchDataset) for item in given) and len(given) < 3:
        names = ("the training part", "the test part")
        parts = [_collected(item, name) for item, name in zip(given, names, strict=False)]
        return parts, getattr(given[0], "classes", None)
    if len(given) == 2 and all(isinstance(i, (tuple, list)) and len(i) == 2 for i in given):
        if all(np.ndim(_array(y, "labels")) == 1 for _, y in given):
            given = (*given[0], *given[1])
    if len(given) not in (2, 4):
        raise UsageError(f"dataset: {count(len(given), 'value')}", f"possible: {_FORMS}")
    arrays = [_array(value, name) for value, name in zip(given, _KEYS, strict=False)]
    found = [(arrays[0], arrays[1], "x_train, y_train")]
    return found + [(*arrays[2:], "x_test, y_test")] * (len(arrays) == 4), classes  # type: ignore[list-item]


def _array(value: Any, name: str) -> np.ndarray:  # noqa: ANN401 - whatever NumPy takes
    """A tensor, an array, or what NumPy makes one of."""
    try:
        if isinstance(value, Tensor):
            value = value.detach().cpu()
            value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        found: np.ndarray = np.asarray(value)
        return found
    except (TypeError, ValueError, RuntimeError) as error:
        line = str(error).splitlines()[0]
        raise UsageError(
            f"dataset: {name} can't be made an array: {line}",
            f"it is {type(value).__name__}",
            "give a NumPy array or a dense tensor in which all samples have one shape",
        ) from error


def _collected(data: TorchDataset[Any], name: str) -> _Part:
    """The samples and labels of a torch data set, all of them in memory."""
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return _array(data.tensors[0], "x"), _array(data.tensors[1], "y"), name
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise UsageError(
            f"dataset: {name} is {type(data).__name__}, which has no length",
            do="give a data set with __len__ and __getitem__, or arrays",
        )
    samples, labels = list[np.ndarray](), list[np.ndarray]()
    for row in range(len(data)):
        pair = data[row]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise UsageError(
                f"dataset: row {row} of {name} is {type(pair).__name__}, not a pair (x, y)",
                do="give a data set of pairs of a sample and its label",
            )
        x, y = _array(pair[0], f"sample {row} of {name}"), _array(pair[1], f"label {row} of {name}")
        if samples and x.shape != samples[0].shape:
            raise UsageError(
                f"dataset: sample {row} of {name} has the shape [{shape_text(x.shape)}], and the "
                f"first has [{shape_text(samples[0].shape)}]",
                do="bring all samples to one shape (a transform does it)",
            )
        samples.append(x)
        labels.append(y)
    if not samples:
        raise UsageError(f"dataset: {name} holds no samples")
    return np.stack(samples), np.stack(labels), name


def _pieces(part: _Part) -> list[bytes | memoryview]:
    """Return the bytes that identify a part."""
    found: list[bytes | memoryview] = []
    for array in part[:2]:
        if array.dtype.hasobject:  # told when it is checked
            found.append(repr((array.shape, array.dtype)).encode())
            continue
        dense = np.ascontiguousarray(array)
        found.append(repr((dense.shape, dense.dtype.str)).encode())
        found.append(dense.reshape(-1).view(np.uint8).data if dense.size else b"")
    return found


def _digest(content: Sequence[bytes | memoryview]) -> str:
    found = hashlib.sha256()
    for piece in content:
        found.update(piece)
    return found.hexdigest()[:16]
