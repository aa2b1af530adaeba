"""Data sets in memory: arrays, tensors and torch data sets that a program gives to a run.

They are checked like files, decoded into the cache under a name made of their content, and mapped
from there by every process. The record of a run names them ``arrays:DIGEST``, and a resumed run
finds them in the cache or compares the arrays that it is given again.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

import protofl as pf
from protofl_plugins.datasets.image_files import to_rgb
from protofl_plugins.datasets.npz import KEYS, ArrayOptions, check_class_names

ARRAYS = "arrays"
"""The name of the data set that arrays are."""

_COLOURS = ("P", "PA", "HSV", "LAB", "YCbCr", "CMYK")
"""Modes of Pillow whose numbers are not those of grey or RGB pictures."""

_FORMS = (
    "(x_train, y_train), (x_train, y_train, x_test, y_test), a mapping with these names and "
    "perhaps classes, a torch Dataset or two of them (train, test), or a protofl.datasets.Dataset"
)

_Part = tuple[np.ndarray, np.ndarray, str]

opened: dict[str, ArrayData] = {}
"""The arrays of the runs that are going on, by their digests."""


@dataclass(eq=False)
class ArrayData:
    """Arrays that a program gives as a data set.

    Attributes:
        digest: The first digits of the SHA-256 of the content.
        parts: Samples, labels and name of the training part, and of the test part if any; None
            for a `Dataset`.
        classes: Names of the classes, if given.
        data: The data set, if the program gives a `Dataset`.
        columns: Columns of a mapping's further arrays, named as in an npz file.
    """

    digest: str
    parts: list[_Part] | None = None
    classes: list[str] | None = None
    data: pf.datasets.Dataset | None = None
    columns: dict[str, np.ndarray] | None = None

    @property
    def name(self) -> str:
        """``arrays:DIGEST``."""
        return f"{ARRAYS}:{self.digest}"

    @classmethod
    def of(cls, dataset: Any) -> ArrayData:  # noqa: ANN401 - whatever a program has
        """Check the data that a program gave.

        Args:
            dataset: ``(x_train, y_train)`` or ``(x_train, y_train, x_test, y_test)``, also as
                ``((x_train, y_train), (x_test, y_test))``, of NumPy arrays, tensors or what NumPy
                makes arrays of; a mapping with these names, and perhaps ``classes``; a torch
                Dataset of pairs ``(x, y)``, or a training and a test one; or a
                `protofl.datasets.Dataset`.

        Raises:
            UsageError: It is none of these.
        """
        if isinstance(dataset, pf.datasets.Dataset):
            if faults := dataset.faults():
                raise pf.UsageError(
                    f"dataset: the Dataset does not fit together: {'; '.join(faults)}",
                    do="protofl.datasets.dataset_from_arrays makes one of arrays, and checks them",
                )
            about = repr((dataset.classes, dataset.note)).encode()
            if dataset.preparation != pf.datasets.Preparation():
                about += repr(dataset.preparation).encode()
            return cls(_digest([dataset.compute_digest().encode(), about]), data=dataset)
        dataset, further = _without_columns(dataset)
        parts, classes = _parts_of(dataset)
        names = None if classes is None else pf.datasets.class_names(classes, "dataset")
        check_class_names(names or [], "dataset")
        content = [piece for arrays in parts for piece in _pieces(arrays)]
        sizes = [len(x) if x.ndim else 0 for x, *_ in parts]
        columns = (
            pf.datasets.columns_of_arrays(further, sizes[0], sum(sizes[1:]), "dataset")
            if further
            else {}
        )
        content += [repr((name, column.tolist())).encode() for name, column in columns.items()]
        return cls(_digest([*content, repr(names).encode()]), parts, names, columns=columns)

    def decoded(self, options: Mapping[str, Any]) -> pf.datasets.Dataset:
        """Return the data set, checked.

        Args:
            options: Arguments of `protofl.datasets.dataset_from_arrays`.

        Raises:
            UsageError: Shapes, types or values don't fit, or a `Dataset` has options.
        """
        if self.data is not None:
            if options:
                raise pf.UsageError(
                    f"dataset.{next(iter(options))} is for arrays, and a Dataset was given",
                    do="leave it out, or give the option to protofl.datasets.dataset_from_arrays",
                )
            return self.data
        assert self.parts is not None
        first = len(self.parts[0][0]) if self.parts[0][0].ndim else None
        return pf.datasets.dataset_from_arrays(
            self.parts, first, self.classes, columns=self.columns, **options
        )

    @contextmanager
    def open(self) -> Iterator[None]:
        """Let runs decode the arrays during a block."""
        opened[self.digest] = self
        try:
            yield
        finally:
            opened.pop(self.digest, None)


class Arrays:
    """Arrays that a program gave (protofl.run with dataset=…), named by their content."""

    argument = "digest"

    class Config(ArrayOptions):
        """Options of arrays."""

        digest: str = pf.Field(description="digest of the arrays; protofl.run computes it")

    @staticmethod
    def given(data: Any, data_dir: Path) -> ArrayData | str:  # noqa: ANN401 - whatever a program has
        """Check the data that a program gave in place of the name of a data set.

        Args:
            data: Arrays, tensors or data sets, see `ArrayData.of`; or a DataFrame of pandas or
                polars, or a table of pyarrow.
            data_dir: The folder of decoded data.

        Returns:
            The arrays, or the data set of the file that holds a table.

        Raises:
            UsageError: The data are none of these, or cannot be written.
        """
        kinds = {("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table")}
        if (type(data).__module__.partition(".")[0], type(data).__name__) in kinds:
            return frame_file(data, data_dir)
        return ArrayData.of(data)

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """Return the digest, followed by a digest of the options if any is set."""
        chosen = repr(sorted(_options(config).items())).encode()
        suffix = [hashlib.sha256(chosen).hexdigest()[:8]] if _options(config) else []
        return "-".join([ARRAYS, config.digest, *suffix])

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Check the arrays that the program gave."""
        if config.digest not in opened:
            raise pf.UsageError(
                f"the arrays {config.digest} are not in {data_dir}",
                "a program gave them to protofl.run, and only the cache holds them now",
                "give them again: protofl.run(…, dataset=…)",
            )
        options = _options(config)
        options.pop("group", None)  # filled in when the data are loaded
        if task := {*pf.datasets.TaskOptions.model_fields} & {*options}:
            options = {key: value for key, value in options.items() if key not in task}
            options["task"] = pf.datasets.Task.of(config)
        return opened[config.digest].decoded(options)


def _options(config: Arrays.Config) -> dict[str, Any]:
    return config.model_dump(exclude_defaults=True, exclude={"digest"})


def frame_file(frame: Any, data_dir: Path) -> str:  # noqa: ANN401 - of pandas, polars or pyarrow
    """Write a table to a Parquet file that is named by its content; return its data set.

    Args:
        frame: A DataFrame of pandas or polars, or a table of pyarrow.
        data_dir: The folder of decoded data.

    Raises:
        UsageError: pyarrow is missing, or a column holds values of several types.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise pf.UsageError(
            "data frames need the package pyarrow", do="pip install 'protofl[tables]'"
        ) from None
    try:
        if hasattr(frame, "iloc"):
            frame = pyarrow.Table.from_pandas(frame, preserve_index=False)
        table = frame.to_arrow() if hasattr(frame, "to_arrow") else frame
        content = io.BytesIO()
        parquet.write_table(table.replace_schema_metadata(None), content)
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise pf.UsageError(
            f"dataset: the table cannot be converted: {str(error).splitlines()[0]}",
            do="give each column values of one type",
        ) from None
    digest = hashlib.sha256(content.getbuffer()).hexdigest()[:16]
    path = data_dir.absolute() / f"frame-{digest}.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(content.getvalue())
        part.replace(path)
    return f"parquet:{path}"


def _without_columns(dataset: Any) -> tuple[Any, dict[str, np.ndarray]]:  # noqa: ANN401 - anything
    """Return a mapping's samples, labels and classes, and its further arrays."""
    if not isinstance(dataset, Mapping) or not {*KEYS[:2]} <= {*dataset}:
        return dataset, {}
    known = {key: dataset[key] for key in (*KEYS, "classes") if key in dataset}
    return known, {
        str(k): v if isinstance(v, np.ma.MaskedArray) else _array(v, str(k))
        for k, v in dataset.items()
        if k not in known
    }


def _parts_of(dataset: Any) -> tuple[list[_Part], Any]:  # noqa: ANN401 - anything
    """Return the parts of a data set, and the names of its classes."""
    classes: Any = None
    if isinstance(dataset, Mapping):
        if not {*KEYS[:2]} <= {*dataset}:
            raise pf.UsageError(
                f"dataset: a mapping of {', '.join(map(str, dataset)) or 'nothing'}",
                f"it has {', '.join(KEYS[:2])} and may have {', '.join(KEYS[2:])}, classes",
            )
        classes = dataset.get("classes")
        dataset = tuple(dataset[key] for key in KEYS if dataset.get(key) is not None)
    if isinstance(dataset, TorchDataset):
        dataset = (dataset,)
    if hasattr(dataset, "columns") or hasattr(dataset, "column_names"):
        raise pf.UsageError(
            f"dataset: {type(dataset).__name__} is a table with named columns, not arrays",
            "tables are read from files, with their categories and missing values",
            "save it: frame.to_parquet('FILE') of pandas, frame.write_parquet('FILE') of polars, "
            "pyarrow.parquet.write_table(table, 'FILE'); then dataset='parquet:FILE' and "
            "options={'dataset': {'label': COLUMN}}",
        )
    if not isinstance(dataset, (tuple, list)):
        raise pf.UsageError(
            f"dataset: {type(dataset).__name__} is not a data set", f"possible: {_FORMS}"
        )
    if dataset and all(isinstance(item, TorchDataset) for item in dataset) and len(dataset) < 3:
        names = ("the training part", "the test part")
        parts = [_collected(item, name) for item, name in zip(dataset, names, strict=False)]
        return parts, getattr(dataset[0], "classes", None)
    if len(dataset) == 2 and all(isinstance(i, (tuple, list)) and len(i) == 2 for i in dataset):
        if all(np.ndim(_array(y, "labels")) == 1 for _, y in dataset):
            dataset = (*dataset[0], *dataset[1])
    if len(dataset) not in (2, 4):
        raise pf.UsageError(
            f"dataset: {len(dataset)} value{'s' * (len(dataset) != 1)}", f"possible: {_FORMS}"
        )
    arrays = [_array(value, name) for value, name in zip(dataset, KEYS, strict=False)]
    train_part = [(arrays[0], arrays[1], "x_train, y_train")]
    return train_part + [(*arrays[2:], "x_test, y_test")] * (len(arrays) == 4), classes  # type: ignore[list-item]


def _array(value: Any, name: str) -> np.ndarray:  # noqa: ANN401 - whatever NumPy takes
    """Return a tensor, an array, or anything that NumPy can convert, as an array."""
    if hasattr(value, "toarray"):
        size = int(np.prod(value.shape)) * value.dtype.itemsize
        raise pf.UsageError(
            f"dataset: {name} is a sparse matrix ({type(value).__name__})",
            f"samples are dense arrays; its numbers would take {size:,} bytes",
            "give x.toarray(), or fewer columns",
        )
    try:
        if isinstance(value, Tensor):
            value = value.detach().cpu()
            value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        if getattr(value, "mode", None) in _COLOURS:  # a picture of Pillow
            value = to_rgb(value, f"dataset: {name}", pf.datasets.ImageFiles())
        result: np.ndarray = value if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
        return result
    except (TypeError, ValueError, RuntimeError) as error:
        line = str(error).splitlines()[0]
        raise pf.UsageError(
            f"dataset: {name} cannot be converted to an array: {line}",
            f"it is {type(value).__name__}",
            "give a NumPy array or a dense tensor in which all samples have one shape",
        ) from error


def _collected(data: TorchDataset[Any], name: str) -> _Part:
    """Load all samples and labels of a torch data set into memory."""
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return _array(data.tensors[0], "x"), _array(data.tensors[1], "y"), name
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise pf.UsageError(
            f"dataset: {name} is {type(data).__name__}, which has no length",
            do="give a data set with __len__ and __getitem__, or arrays",
        )
    samples, labels = list[np.ndarray](), list[np.ndarray]()
    for row in range(len(data)):
        pair = data[row]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise pf.UsageError(
                f"dataset: row {row} of {name} is {type(pair).__name__}, not a pair (x, y)",
                do="give a data set of pairs of a sample and its label",
            )
        x, y = _array(pair[0], f"sample {row} of {name}"), _array(pair[1], f"label {row} of {name}")
        if samples and x.shape != samples[0].shape:
            has, first = ("×".join(map(str, each.shape)) for each in (x, samples[0]))
            raise pf.UsageError(
                f"dataset: sample {row} of {name} has the shape [{has}], and the first has "
                f"[{first}]",
                do="bring all samples to one shape (a transform does it)",
            )
        samples.append(x)
        labels.append(y)
    if not samples:
        raise pf.UsageError(f"dataset: {name} holds no samples")
    return np.stack(samples), np.stack(labels), name


def _pieces(arrays: _Part) -> list[bytes | memoryview]:
    """Return the bytes that identify a part."""
    result: list[bytes | memoryview] = []
    for array in arrays[:2]:
        if array.dtype.hasobject:  # refused when the array is checked
            result.append(repr((array.shape, array.dtype)).encode())
            continue
        dense = np.ascontiguousarray(array)
        result.append(repr((dense.shape, dense.dtype.str)).encode())
        result.append(dense.reshape(-1).view(np.uint8).data if dense.size else b"")
    return result


def _digest(content: Sequence[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in content:
        digest.update(piece)
    return digest.hexdigest()[:16]
