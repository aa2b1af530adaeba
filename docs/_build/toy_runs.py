"""Toy runs of a method for its page, in this process.

A page compares methods on one small problem. The runs are those of the method contract, so that a
method that passes ``protofl check`` can be measured.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from protofl.federation.plan.plan import Plan
from protofl.system.device import compute_threads
from protofl.testing import MethodContract, toy

PUBLIC_SAMPLES = 16
"""Public samples of a toy run, for methods that need some."""


class ToyRuns(MethodContract):
    """A method with its default options; see `toy_runs`."""

    options = {}


@contextmanager
def toy_runs(method: type | str) -> Iterator[ToyRuns]:
    """Return an object whose ``plan`` plans toy runs of a method; compute with one thread.

    Args:
        method: Name of an installed method, or a class.
    """
    runs: ToyRuns = type("Chosen", (ToyRuns,), {"plugin": method})()
    runs.folder = Path(tempfile.mkdtemp(prefix="protofl-page-"))
    runs.remarks = []
    try:
        with compute_threads(1):
            yield runs
    finally:
        shutil.rmtree(runs.folder, ignore_errors=True)


def plan_of(
    runs: ToyRuns,
    classes: int,
    samples: tuple[int, int],
    side: int,
    models: list[Any],
    **options: Any,  # noqa: ANN401 - the options of a run
) -> Plan:
    """Plan a run of two clients, each with as many samples of every class.

    Args:
        runs: The method.
        classes: Number of classes C.
        samples: Training samples of each class on each client.
        side: Side of the images in pixels.
        models: Model groups to try in order, until the method refuses none.
        **options: Further options of the run.

    Raises:
        ProtoflError: The method refuses the run.
    """
    counts = [[each] * classes for each in samples]
    images = toy.make_images(counts, [[1] * classes] * 2, side=side)
    if getattr(runs.cls, "needs_public", False):
        options["public"] = f"npz:{_public(runs.folder, side)}"
    return runs.plan(models, data=images, engine="eager", backend="local", **options)


def _public(folder: Path, side: int) -> Path:
    """Write unlabelled public samples; return the file."""
    path = folder / f"public-{side}.npz"
    x = np.random.default_rng(0).standard_normal((PUBLIC_SAMPLES, side, side), dtype=np.float32)
    np.savez(path, x_train=x, y_train=np.arange(PUBLIC_SAMPLES) % 2)
    return path
