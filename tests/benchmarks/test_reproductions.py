"""Tests of the reproduction files in ``benchmarks``: valid, and each cell's run can be planned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from slowness import quick

from protofl.system.files.tables import parse_toml
from protofl_workbench.reproductions.cells import Change
from protofl_workbench.reproductions.finding import reproduction_of_file
from protofl_workbench.reproductions.reproduction_plan import plan_reproduction

FILES = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.toml"))
REPRODUCTIONS = [file for file in FILES if "title" in parse_toml(file.read_text("utf-8"))]


(CIFAR,) = (file for file in REPRODUCTIONS if file.stem == "methods-cifar10")
"""A file of few runs: a run takes a twentieth of a second to plan."""


def test_there_are_some():
    assert len(REPRODUCTIONS) >= 7


@pytest.mark.parametrize("file", quick(REPRODUCTIONS, CIFAR), ids=lambda file: file.stem)
def test_every_run_can_be_planned(file, tmp_path):
    reproduction = reproduction_of_file(file)
    y = np.arange(400) % 10
    tables, images = np.zeros((400, 64), np.float32), np.zeros((400, 28, 28), np.uint8)
    tables[:, 0] = images[:, 0, 0] = np.arange(400) // 2
    paths = {}
    for name, x in (("digits", tables), ("images", images)):
        if name in reproduction.files:
            paths[name] = str(tmp_path / f"{name}.npz")
            np.savez(paths[name], x_train=x, y_train=y)
    plan = plan_reproduction(
        reproduction, Change(files=paths, trials=1), runs=tmp_path / "runs", measure=False
    )
    assert plan.runs
