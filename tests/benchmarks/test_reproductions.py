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


(QUICK,) = (file for file in REPRODUCTIONS if file.stem == "virtual-time")


def test_there_are_some():
    assert len(REPRODUCTIONS) >= 3


@pytest.mark.parametrize("file", quick(REPRODUCTIONS, QUICK), ids=lambda file: file.stem)
def test_every_run_can_be_planned(file, tmp_path):
    reproduction = reproduction_of_file(file)
    paths = {}
    if "digits" in reproduction.files:
        paths["digits"] = str(tmp_path / "digits.npz")
        x = np.zeros((400, 64), np.float32)
        x[:, 0] = np.arange(400) // 2
        np.savez(paths["digits"], x_train=x, y_train=np.arange(400) % 10)
    plan = plan_reproduction(
        reproduction, Change(files=paths, trials=1), runs=tmp_path / "runs", measure=False
    )
    assert plan.runs
