"""A data set: samples, labels and classes, and checks of labels."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from protofl.data.preparation import Preparation
from protofl.data.spec import Kind, SampleSpec
from protofl.data.tasks import CLASSIFICATION, Task
from protofl.errors import UsageError

if TYPE_CHECKING:
    from protofl.data.columns import Columns

LARGEST_USUAL = 30.0
"""Normalised numbers hardly ever leave this range; 0…255 as floats does."""

_STORED: dict[int, dict[torch.dtype, Kind]] = {
    3: {torch.uint8: "image", torch.float32: "image"},
    2: {torch.float32: "series"},
    1: {torch.float32: "table", torch.int64: "tokens"},
}
"""Kinds of samples, by number of axes and type."""


@dataclass
class Dataset:
    """Decoded samples with labels, as a data set plugin returns them.

    The kind of a sample follows from ``x``: four axes are images, three are series, two are rows of
    tables (floats) or token sequences (int64).

    Attributes:
        x: Images N×channels×height×width, uint8 in 0…255, or float32 that is already normalised
            and used as it is; series N×channels×length, float32; rows of a table N×features,
            float32; token sequences N×length, int64 in 0…V-1.
        y: Labels [N], int64 in 0…C-1. With ``targets`` they only divide samples: partitioners and
            hold-outs read them, and nothing is trained with them.
        num_train: The first ``num_train`` rows are the data set's own training part, the rest
            its own test part (``num_train == N`` for none).
        classes: Names of the C classes.
        split: For data that come already split: per client its rows of training and of test
            samples, [n] int64 each (or boolean masks [N]); None for data that a partitioner splits.
        note: A deviation to print beside figures; may be empty.
        digest: SHA-256 of the content, filled in when the data are loaded.
        vocabulary: Number of token ids V; 0 for other samples than tokens.
        padding: The id at the end of short token sequences; None without padding.
        columns: {name: values [N]}, further facts about each sample, numbers or
            strings: ``--partition column:NAME`` makes a client of each value.
        elsewhere: True if samples of clients lie on other machines: clients may have no rows here.
        guesses: Of data elsewhere, per client the right and all test samples of always guessing
            its most frequent class.
        task: What models are trained for; classification by ``y`` by default.
        targets: For another task, per sample its labels as 0 and 1, [N, L], or its number in its
            own unit, [N, 1], float32. Of a language model [N, length − 1]: 1 for each token from
            the second on, and 0 for padding.
        outputs: Names of the L labels, of the number, or of the places in a text.
        preparation: What was done to raw samples before they were stored in ``x``, such as a
            standardisation; None if that is not known here. Predictions and exported clients
            apply it to raw samples.
        group: The column whose samples of one value, such as those of a patient, are in one part of
            the split: training, validation or test; empty for samples that are independent.
    """

    x: Tensor
    y: Tensor
    num_train: int
    classes: list[str]
    split: list[tuple[Tensor, Tensor]] | None = None
    note: str = ""
    digest: str = field(default="", compare=False)
    vocabulary: int = 0
    padding: int | None = None
    columns: Columns = field(default_factory=dict)
    elsewhere: bool = False
    guesses: list[tuple[int, int]] = field(default_factory=list)
    preparation: Preparation | None = field(default_factory=Preparation)
    task: Task = CLASSIFICATION
    targets: Tensor | None = None
    outputs: list[str] = field(default_factory=list)
    group: str = ""

    def __post_init__(self) -> None:
        """Take rows of the split and columns as tensors, arrays or lists."""
        if self.split is not None:
            self.split = [(_rows(train), _rows(test)) for train, test in self.split]
        if self.columns:
            from protofl.data.columns import as_column

            self.columns = {name: as_column(values) for name, values in self.columns.items()}

    def __repr__(self) -> str:
        """The sizes in one line, without the samples."""
        parts = "" if self.split is None else f", split over {len(self.split)} clients"
        about = f"{len(self.y):,} samples {tuple(self.x.shape[1:])}, {self.about_outputs()}"
        return f"Dataset({about}, {self.num_train:,} for training{parts})"

    @property
    def num_classes(self) -> int:
        """C, the classes of ``y``."""
        return len(self.classes)

    @property
    def output_names(self) -> list[str]:
        """Names of a model's outputs: the classes, the L labels, or the number."""
        return self.classes if self.task.has_classes else self.outputs

    @cached_property
    def labels(self) -> Tensor:
        """Labels that models are trained with: ``y``, or [N, L] as `Task.encoded` returns them."""
        return self.y if self.targets is None else self.task.encoded(self.targets)

    @cached_property
    def groups(self) -> np.ndarray | None:
        """The number [N] of each sample's group, int64; None without groups.

        Raises:
            UsageError: The column is missing, or it has gaps.
        """
        if not self.group:
            return None
        from protofl.data.columns import distinct

        if self.group not in self.columns:
            raise UsageError(
                f"the data set has no column {self.group!r}, which dataset.group names",
                f"columns: {', '.join(self.columns) or 'none'}",
                "correct the name, or leave it out",
            )
        values = self.columns[self.group]
        gaps = values == "" if values.dtype.kind == "U" else values != values
        if gaps.any():
            raise UsageError(
                f"no group in {int(gaps.sum()):,} of {len(values):,} rows (column {self.group!r})",
                do="name the group in each row, or leave these rows out",
            )
        return distinct(values)[1]

    def without(self, rows: Sequence[int]) -> Dataset:
        """Return the data set without some rows; not for data that come already split."""
        if not rows:
            return self
        kept = np.setdiff1d(np.arange(len(self.y)), rows)
        return replace(
            self,
            x=self.x[kept],
            y=self.y[kept],
            num_train=int((kept < self.num_train).sum()),
            columns={name: values[kept] for name, values in self.columns.items()},
            targets=None if self.targets is None else self.targets[kept],
        )

    def about_outputs(self) -> str:
        """Return the task in words: ``10 classes``, ``regression of age``, ``next tokens``."""
        if self.task.name == "language-model":
            return "next tokens"
        if self.task.name == "regression":
            return f"regression of {self.outputs[0]}"
        kind = "classes" if self.task.has_classes else "labels"
        return f"{len(self.output_names)} {kind}"

    @property
    def sample(self) -> SampleSpec:
        """The spec of a stored sample.

        Raises:
            UsageError: ``x`` holds no samples that models take.
        """
        stored, shape = _STORED.get(self.x.dim() - 1, {}), tuple(self.x.shape)
        kind = stored.get(self.x.dtype)
        if kind is None:
            raise UsageError(
                f"x is {'×'.join(map(str, shape)) or 'empty'} of {self.x.dtype}",
                "images N×channels×height×width are uint8 or float32, series N×channels×length and "
                "tables N×features float32, token sequences N×length int64",
            )
        return SampleSpec(shape[1:], kind, self.vocabulary, self.padding, self.task)

    def faults(self) -> list[str]:
        """Return the inconsistencies of the data set; empty if there are none."""
        for name, array in (("x", self.x), ("y", self.y)):
            if not isinstance(array, Tensor):
                return [f"{name} is {type(array).__name__} and no tensor: torch.as_tensor({name})"]
        y, count = self.y, len(self.y)
        rows = [indices for client in self.split or () for indices in client]
        faults = [
            (
                y.ndim != 1 or y.dtype != torch.int64 or len(self.x) != count,
                "y isn't [N] of int64",
            ),
            (count and not self.x.numel(), "its samples are empty"),
            (not 0 < self.num_train <= count, f"num_train is {self.num_train} of {count}"),
            (_leave(y, self.num_classes), f"labels leave 0…{self.num_classes - 1}"),
            (
                any(indices.is_floating_point() for indices in rows),
                "rows of the split are not integers",
            ),
            (
                any(_leave(indices, count) for indices in rows),
                f"rows of the split leave 0…{count - 1}",
            ),
        ]
        try:
            class_names(self.classes, "Dataset")
        except UsageError as error:
            faults.append((True, error.what.partition(": ")[2]))
        messages = [text for fault, text in faults if fault]
        if self.columns:
            from protofl.data.columns import column_faults

            messages += column_faults(self.columns, count)
        messages += target_faults(self.task, self.targets, self.outputs, count)
        try:
            sample = self.sample
        except UsageError as error:
            return [f"{error.what} ({error.near})", *messages]
        if sample.kind == "tokens" and _leave(self.x, sample.vocabulary):
            messages.insert(0, f"token ids leave 0…{sample.vocabulary - 1}")
        return messages + (self.preparation.faults(sample) if self.preparation else [])

    def compute_digest(self) -> str:
        """SHA-256 over samples, labels and the own split; identifies the data in a record."""
        digest = hashlib.sha256()
        split_rows = [rows for pair in self.split or [] for rows in pair]
        for tensor in (self.x, self.y, *split_rows):
            digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().reshape(-1).data)
        digest.update(str(self.num_train).encode())
        if self.vocabulary:
            digest.update(str((self.vocabulary, self.padding)).encode())
        if self.targets is not None:
            digest.update(repr((self.task, self.outputs)).encode())
            digest.update(self.targets.contiguous().numpy().reshape(-1).data)
        for name, values in sorted(self.columns.items()):
            for piece in _column_text(name, values):
                digest.update(piece.encode())
        return digest.hexdigest()


def _column_text(name: str, values: np.ndarray) -> Iterator[str]:
    """Yield ``repr((name, values.tolist()))`` in pieces, so that memory stays small."""
    yield f"({name!r}, ["
    for start in range(0, len(values), _BLOCK):
        yield ", " * (start > 0) + repr(values[start : start + _BLOCK].tolist())[1:-1]
    yield "])"


_BLOCK = 65_536
"""Rows of a column that are read at once."""


def _rows(rows: Any) -> Tensor:  # noqa: ANN401 - whatever NumPy makes an array of
    """Row numbers [n] int64 of row numbers or of a boolean mask."""
    index = rows if isinstance(rows, Tensor) else torch.as_tensor(np.asarray(rows))
    if index.dtype == torch.bool:
        return index.nonzero().flatten()
    return index if index.is_floating_point() and index.numel() else index.long()


def _leave(numbers: Tensor, limit: int) -> bool:
    """Return True if a number is outside 0…limit-1."""
    return bool(numbers.numel()) and not 0 <= int(numbers.min()) <= int(numbers.max()) < limit


def target_faults(
    task: Task, targets: Tensor | None, outputs: Sequence[str], count: int
) -> list[str]:
    """Return what does not fit in targets of ``count`` samples; empty if nothing."""
    if task.has_classes:
        return ["targets are given, and the task is classification"] if targets is not None else []
    if targets is None:
        return [f"the task is {task.name}, and there are no targets"]
    shape = (count, 1 if task.name == "regression" else len(outputs))
    if targets.dtype != torch.float32 or targets.shape != shape or len(outputs) != shape[1]:
        has = f"{targets.dtype} {list(targets.shape)} of {len(outputs)} outputs"
        return [f"targets are {has}, expected torch.float32 {list(shape)}"]
    if not targets.isfinite().all():
        return ["targets hold NaN or infinity"]
    if task.name != "regression" and not ((targets == 0) | (targets == 1)).all():
        return ["targets of labels are not 0 or 1"]
    return []


def checked_labels(y: np.ndarray, count: int, source: str, parts: int = 1) -> np.ndarray:
    """Labels [count] int64 at least 0, of integers [count] or [count, 1].

    Args:
        y: The labels.
        count: Number of samples.
        source: Their origin, for errors.
        parts: Number of parts of the data set, for the advice of errors.

    Raises:
        UsageError: They have another shape or type, or one is negative.
    """
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or len(y) != count:
        from protofl.data import advice

        raise UsageError(
            f"{source}: {count} samples, but labels of the shape {y.shape}",
            do=advice.label_axes_advice(y, count),
        )
    if count and y.dtype.kind not in "iu":
        from protofl.data import advice

        raise UsageError(
            f"{source}: labels are {y.dtype}, not integers",
            "a class is a number from 0 to C-1",
            advice.labels_advice(y, parts),
        )
    y = y.astype(np.int64)
    if count and y.min() < 0:
        bad = np.flatnonzero(y < 0)
        raise UsageError(
            f"{source}: negative label {y[bad[0]]} at row {bad[0]}",
            f"{len(bad):,} of {count:,} labels are negative; labels go from 0 to C-1",
            "leave unlabelled samples out: keep = y >= 0; x, y = x[keep], y[keep]",
        )
    return y


def class_names(classes: Any, source: str) -> list[str]:  # noqa: ANN401 - whatever a program has
    """Return the names of classes in the order of their labels.

    Args:
        classes: A list, tuple or array [C] of names (texts, bytes in UTF-8, numbers), or a mapping
            {label: name} of the labels 0…C-1.
        source: What has them, for errors.

    Raises:
        UsageError: It has no order or another one, or two classes have one name.
    """
    if isinstance(classes, Tensor):
        classes = classes.numpy()
    if isinstance(classes, Mapping):
        keys = [*classes]
        whole = all(isinstance(k, (int, np.integer)) and not isinstance(k, bool) for k in keys)
        if not whole or sorted(keys) != [*range(len(keys))]:
            from protofl.data import advice

            turned = all(isinstance(v, (int, np.integer)) for v in classes.values())
            raise UsageError(
                f"{source}: classes is a mapping with the keys {advice.shown_numbers(keys)}",
                f"expected the labels 0…{max(0, len(keys) - 1)} as keys, and names as values",
                "turn it round: classes = {label: name for name, label in classes.items()}"
                if turned and not whole
                else "give a list of names in the order of the labels",
            )
        classes = [classes[key] for key in sorted(keys)]
    if hasattr(classes, "tolist") and not isinstance(classes, (list, tuple)):  # arrays, pandas
        array = np.asarray(classes)
        if array.ndim != 1:
            raise UsageError(
                f"{source}: classes has the shape {array.shape}", do="give one name for each class"
            )
        classes = array.tolist()
    if not isinstance(classes, (list, tuple)):
        raise UsageError(
            f"{source}: classes is {type(classes).__name__}, which has no order of its own"
            if isinstance(classes, (set, frozenset))
            else f"{source}: classes is {type(classes).__name__}",
            "the first name is that of label 0",
            "give a list, tuple or array of names, or {label: name}",
        )
    names = [_class_name(name, source) for name in classes]
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        places = [i for i, name in enumerate(names) if name == repeated[0]]
        raise UsageError(
            f"{source}: classes {places[0]} and {places[1]} have the same name {repeated[0]!r}",
            do="give each class a name of its own",
        )
    return names


def _class_name(name: object, source: str) -> str:
    if isinstance(name, bytes):
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise UsageError(
                f"{source}: the class name {name!r} is not UTF-8",
                do='decode the names: classes = numpy.char.decode(classes, "latin-1")',
            ) from None
    if isinstance(name, (str, int, float, bool, np.generic)):
        return str(name)
    raise UsageError(
        f"{source}: the class name {name!r} is {type(name).__name__}", do="give texts or numbers"
    )


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
        names = (
            [str(i) for i in range(classes)]
            if isinstance(classes, int)
            else class_names(classes, sources[0])
        )
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
