"""A balanced part of a data set, so that every client has exactly as many samples as asked for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from protofl.data.dataset import Dataset
from protofl.discovery.registry import Registry
from protofl.errors import UsageError
from protofl.plan.inputs import load_data
from protofl.plugin.choice import choose


def share_of(samples: int) -> int:
    """A client's samples n so that 75 % of them, rounded down, are ``samples`` to train on."""
    return math.ceil(samples / 0.75)


def find_data(kind: str, folder: Path | None, given: dict[str, str]) -> str:
    """Where a case's data come from: ``--dataset KIND=…``, a file of ``--data``, or by name.

    Raises:
        UsageError: The folder holds no such file, or several.
    """
    if kind in given:
        return given[kind]
    if folder is None or kind == "digits":
        return kind
    if not folder.is_dir():
        raise UsageError(f"--data {folder} is no folder", do="give the folder of the .npz files")
    files = sorted(p for p in folder.glob(f"{kind}*.npz") if not p.stem[len(kind) :][:1].isalnum())
    if len(files) == 1:
        return f"npz:{files[0].absolute()}"
    if not files:
        held = ", ".join(p.name for p in sorted(folder.glob("*.npz"))) or "no .npz file"
        raise UsageError(
            f"no file of {kind} in {folder}",
            f"it holds: {held}",
            f"name it {kind}.npz or {kind}-….npz, or give --dataset {kind}=NAME[:PATH]",
        )
    raise UsageError(
        f"several files of {kind} in {folder}: {', '.join(p.name for p in files)}",
        do=f"say which: --dataset {kind}=npz:{files[0]}",
    )


def load(dataset: str, data_dir: Path, report: Any) -> Dataset:  # noqa: ANN401 - a callable
    """A data set by NAME or NAME:PATH, from the cache where it is there."""
    return load_data(choose(Registry(()), "dataset", dataset), data_dir, report)


def write_subset(data: Dataset, clients: int, samples: int, path: Path, name: str) -> None:
    """Write the first samples of every class, as many of each as the number allows.

    The partitioner ``iid`` then gives every client the same number, of which 75 % are its
    training samples.

    Args:
        data: The whole data set, its test part too.
        clients: M.
        samples: Training samples of each.
        path: The .npz file.
        name: The data set's, for the error.

    Raises:
        UsageError: There are too few samples.
    """
    wanted, labels = clients * share_of(samples), data.y.numpy()
    if wanted > len(labels):
        most = int(0.75 * (len(labels) // clients))
        raise UsageError(
            f"{wanted:,} images are needed for {clients} clients with {samples} training samples "
            f"each, and {name} has {len(labels):,}",
            "a client trains on 75 % of its images",
            f"use --samples {most}, or fewer --clients" if most else "use fewer --clients",
        )
    rows = _balanced(labels, wanted)
    x = data.x[rows].numpy()
    np.savez(path, x_train=x, y_train=labels[rows], classes=np.array(data.classes))


def _balanced(labels: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """The first rows of every class in turn, in the order of the data."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], labels[order], side="left")
    rank = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels)) - starts
    return np.sort(np.lexsort((labels, rank))[:count])
