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

from pathlib import Path
from typing import Any, ClassVar, Literal

import protofl as pf


class Npz:
    """A data set from one .npz file with x_train, y_train and perhaps x_test, y_test."""

    argument = "path"
    defaults: ClassVar[dict[str, Any]] = {}

    class Config(pf.datasets.TaskOptions):
        """Options of npz."""

        path: str = pf.Field(description="the .npz file")
        kind: Literal["image", "series", "tokens", "table"] | None = pf.Field(
            None, description="what a sample is. None: what the arrays' shape and type suggest"
        )
        vocabulary: int | None = pf.Field(
            None, ge=2, description="number of token ids V. None: the largest that occurs, and one"
        )
        padding: int | None = pf.Field(
            None, ge=0, description="the id that fills short token sequences up. None: none does"
        )
        by: str | None = pf.Field(
            None,
            description="the array that names each sample's client (user, hospital); the same as "
            "--partition column:BY. None: the partitioner divides",
        )
        standardise: bool = pf.Field(
            False,
            description="bring every column of a table, every channel of a series to mean 0 and "
            "standard deviation 1 over x_train",
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
            UsageError: The file can't be read.
        """
        return pf.datasets.read_npz(
            config.path,
            kind=config.kind,
            vocabulary=config.vocabulary,
            padding=config.padding,
            standardise=config.standardise,
            task=pf.datasets.Task.of(config),
            validation=config.validation,
        )
