"""Cases of ``benchmarks/bench.py`` and their data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np

import protofl as pf
from protofl.errors import UsageError, unknown
from protofl.federation.plan.run_data import load_data
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.members import choose as choose_plugin

Part = Literal["round", "evaluate", "server"]


@dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
        name: DATA-METHOD or DATA-PART.
        method: The method.
        models: The model group.
        data: The name of a data set; the folder ``--data`` may hold its file.
        clients: Number of clients M. All take part in every round, unless options say otherwise.
        samples: Training samples of each client.
        part: A whole round, only the evaluation of all clients, or only the server's step on the
            uploads of round 0.
        options: Other options of the run.
        check: Options for the float64 comparison, if the case's own amplify rounding errors.
        target: Target for the ratio of the naive loop's time to protofl's, or None.
    """

    name: str
    method: str
    models: str
    data: str
    clients: int
    samples: int
    part: Part = "round"
    options: dict[str, Any] = field(default_factory=dict)
    check: dict[str, Any] = field(default_factory=dict)
    target: float | None = None


def _digits(method: str) -> Case:
    options = _auxiliary(method)
    return Case(
        f"digits-{method}", method, "htcnn8", "digits", clients=8, samples=120, options=options
    )


def _mnist(method: str, target: float | None = None) -> Case:
    options = _auxiliary(method)
    return Case(
        f"mnist-{method}", method, "htcnn8", "mnist", 20, 300, options=options, target=target
    )


def _many(method: str, clients: int, participants: int, store: str) -> Case:
    """Many clients with six images each, few of which take part in a round."""
    options = {
        "participation": participants / clients,
        "eval_clients": "participants",
        "client_store": store,
        "backend": "process",
        "workers": 2,
    }
    name = f"many-{method}-{clients}-{participants}-{store}"
    return Case(name, method, "cnn4", "fashion-mnist", clients, 4, options=options)


def _auxiliary(method: str) -> dict[str, Any]:
    """The auxiliary model of ``fml`` and ``fedkd``: the smallest one of htcnn8."""
    shared = method in ("fml", "fedkd")
    return {"options": {method: {"auxiliary": "htcnn8-2"}}} if shared else {}


WELL_CONDITIONED = {"batch_size": 40, "lr": 1e-6}
"""One small step per round.

At 32 px the last feature maps are single pixels, and BatchNorm over ten of them turns a difference
of 1e-15 in the weights into 0.2 within four steps of 0.01.
"""

CASES = (
    _digits("local"),
    _digits("fedproto"),
    _digits("fedtgp"),
    _digits("fedsa"),
    _digits("fml"),
    _digits("fedkd"),
    _mnist("local"),
    _mnist("fedproto", 2.4),
    _mnist("fedtgp", 3.0),
    _mnist("fedsa", 3.0),
    _mnist("fml", 3.0),
    _mnist("fedkd", 3.0),
    Case("mnist-fedavg", "fedavg", "cnn4", "mnist", 20, 300),
    Case("mnist-evaluation", "fedproto", "htcnn8", "mnist", 20, 300, "evaluate", target=8.0),
    Case("mnist-server", "fedtgp", "htcnn8", "mnist", 20, 300, "server", target=3.0),
    Case(
        "cifar10-fedproto",
        "fedproto",
        "htfe8",
        "cifar10",
        20,
        40,
        check=WELL_CONDITIONED,
        target=1.6,
    ),
    Case(
        "cifar10-fedproto-bf16",
        "fedproto",
        "htfe8",
        "cifar10",
        20,
        40,
        options={"precision": "bf16"},
        target=2.0,
    ),
    *(
        _many("fedproto", clients, 10, store)
        for clients in (100, 1_000, 10_000)
        for store in ("memory", "disk")
    ),
    *(_many(method, 10_000, 100, "memory") for method in ("fedproto", "fedavg")),
)
"""All cases. 20 × 300 training images in batches of 10 are 600 steps per round."""

QUICK = ("digits-fedproto", "digits-fedtgp", "digits-fml", "digits-fedkd")
"""The default cases: about a minute on two cores, without any file."""


def choose(names: Iterable[str]) -> list[Case]:
    """Return the cases that match names or patterns (``mnist-*``), in the order of the table.

    Raises:
        UsageError: A name or pattern matches no case.
    """
    chosen: set[str] = set()
    for name in list(names) or QUICK:
        matches = {case.name for case in CASES if fnmatchcase(case.name, name)}
        if not matches:
            raise unknown("case", name, [case.name for case in CASES], "see: bench.py --help")
        chosen |= matches
    return [case for case in CASES if case.name in chosen]


def load(kind: str, folder: Path | None, cache: Path) -> pf.datasets.Dataset:
    """Load a case's data set from ``KIND*.npz`` in the folder, or by its name.

    Raises:
        UsageError: The folder does not hold exactly one such file.
    """
    source = kind
    if folder is not None and kind != "digits":
        files = sorted(
            p for p in folder.glob(f"{kind}*.npz") if not p.stem[len(kind) :][:1].isdigit()
        )
        if len(files) != 1:
            held = ", ".join(p.name for p in files) or "none"
            raise UsageError(f"--data {folder}: expected one file {kind}*.npz, found {held}")
        source = f"npz:{files[0].absolute()}"
    return load_data(choose_plugin(Registry(()), "dataset", source), cache, lambda line: None)


def write_subset(data: pf.datasets.Dataset, clients: int, samples: int, path: Path) -> None:
    """Write a class-balanced part of a data set: the first samples of each class.

    The partitioner ``iid`` then gives every client the same number of samples, and 75 % of them are
    ``samples`` training samples.

    Raises:
        UsageError: The data set has too few samples.
    """
    count, labels = clients * math.ceil(samples / 0.75), data.y.numpy()
    if count > len(labels):
        raise UsageError(f"{clients} clients need {count:,} samples, got {len(labels):,}")
    order = np.argsort(labels, kind="stable")
    rank = np.empty_like(labels)  # rank of a sample within its class
    rank[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    rows = np.sort(np.lexsort((labels, rank))[:count])
    np.savez(path, x_train=data.x[rows].numpy(), y_train=labels[rows], classes=data.classes)
