"""The script that compares engines runs, and adds up intervals rightly."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest


@pytest.fixture
def script():
    path = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
    spec = importlib.util.spec_from_file_location("benchmarks_gpu", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("intervals", "length"),
    [([], 0), ([(0, 2), (1, 3)], 3), ([(5, 6), (0, 4), (1, 2)], 5), ([(0, 1), (1, 2)], 2)],
    ids=["none", "overlap", "within", "touch"],
)
def test_the_union_of_intervals(script, intervals, length):
    assert script.covered(intervals) == length


def test_options_go_to_their_engine(script):
    texts = ["captured.streams=4", "vmapped.group=2"]
    assert script.engine_options("captured", texts) == {"streams": "4"}
    assert script.engine_options("eager", texts) == {}


@pytest.mark.slow
def test_it_runs_without_a_gpu(script, tmp_path, capsys):
    out = tmp_path / "rows.json"
    given = ["--data", "digits", "--device", "cpu", "--tiny", "--rounds", "1", "--case", "1"]
    given += ["--engine", "eager", "--engine", "vmapped", "--engine", "captured"]
    rows = script.main([*given, "--data-dir", str(tmp_path), "--json", str(out)])
    assert [row["engine"] for row in rows] == ["eager", "vmapped", "captured"]
    assert all(row["seconds"] > 0 and row["idle"] is None and not row["notes"] for row in rows)
    assert json.loads(out.read_text()) == rows
    printed = capsys.readouterr().out
    assert printed.count("| cnn4 | fedavg |") == 3 and "seconds a round" in printed
