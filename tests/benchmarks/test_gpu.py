"""Tests of ``benchmarks/gpu.py``: all of it in a size for a CPU, and what its table says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gpu
import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks/gpu.py"


def test_images_are_the_same_again_and_have_all_classes():
    case = gpu.ROUND[0].tiny()
    x, y, x_test, y_test = gpu.images(case)
    assert x.dtype == torch.uint8 and x.shape == (case.clients * case.train, *case.shape)
    assert len(x_test) == len(y_test) == case.clients * case.test
    assert sorted(set(y.tolist())) == list(range(case.classes))
    again = gpu.images.__wrapped__(case)
    assert all(torch.equal(a, b) for a, b in zip(gpu.images(case), again, strict=True))


def test_a_table_counts_what_is_equal_and_lists_what_is_not():
    rows = {
        "a": [
            {"case": "fedproto", "engine": "vmapped", "equal": True, "loss": 0.0},
            {"case": "fedsa", "engine": "cuda-graphs, 2 streams", "equal": False, "loss": 1e35},
        ],
        "b": [{"case": "FedProto, htfe8", "engine": "auto", "round": 1.234, "first": 5.0}],
        "c": [{"case": "part c", "error": "ended after its limit of 40 s"}],
    }
    lines = gpu.table(rows).splitlines()[2:]
    assert lines[0].startswith("| a | 1 of 2 comparisons equal |")
    assert "**not equal** loss: 1e+35" in lines[1]
    assert lines[2] == "| b | FedProto, htfe8 | auto | 1.23 | 5 |  |"
    assert "ended after its limit" in lines[3]


def test_wrong_parts_and_a_missing_gpu_are_one_sentence(tmp_path, monkeypatch, capsys):
    def says(*words):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path), *words])
        with pytest.raises(SystemExit) as ended:
            gpu.main()
        assert ended.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    assert "there is no part z, use abcdefg" in says("--parts", "az")
    assert "--tiny tries all parts on the CPU" in says()


def test_a_part_that_fails_is_a_row(tmp_path, monkeypatch):
    def fails(self):
        yield {"case": "first"}
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(gpu.Parts, "d", fails)
    gpu.run_part("d", tmp_path, "cpu", tiny=True, against=None)
    rows = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert [row["case"] for row in rows] == ["first", "part d"]
    assert "illegal memory access" in rows[1]["error"]


@pytest.mark.slow
def test_all_of_it_on_a_cpu(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, "--tiny"], capture_output=True, text=True, check=False
    )
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert {*found["rows"]} == {*gpu.LIMITS} and all(found["rows"].values())
    assert found["card"] == "CPU" and found["torch"] == torch.__version__
    assert (tmp_path / "gpu.md").read_text().count("|") > 50
    timed = [row for row in found["rows"]["b"] if "round" in row]
    engines = {"auto", "eager", "cuda-graphs, 8 streams", "cuda-graphs, chains"}
    assert {row["engine"] for row in timed} == engines
    assert all(row["round"] > 0 for row in timed)
