"""Tests of the script that kills runs: a few kills, and the differences that it must find."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.always


@pytest.fixture
def script(monkeypatch):
    path = Path(__file__).parents[2] / "benchmarks" / "kills.py"
    spec = importlib.util.spec_from_file_location("benchmarks_kills", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def folder(place):
    (place / "checkpoint").mkdir(parents=True)
    rows = [{"round": n, "loss": n / 2, "seconds": {"total": 1.5}, "time": "now"} for n in (0, 1)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "checkpoint/client.safetensors").write_bytes(b"client")
    manifest = {"round": 1, "record": [2, 100, 7], "crc32": 8, "checks": {"client": [6, 9]}}
    (place / "checkpoint/manifest.json").write_text(json.dumps(manifest))
    return place


def test_times_make_no_difference(script, tmp_path):
    one, two = folder(tmp_path / "one"), folder(tmp_path / "two")
    for name, old, new in (
        ("metrics.jsonl", '"now"', '"later"'),
        ("metrics.jsonl", "1.5", "2.5"),
        ("checkpoint/manifest.json", '"crc32": 8', '"crc32": 1'),
    ):
        text = (two / name).read_text()
        assert old in text
        (two / name).write_text(text.replace(old, new))
    assert script.differences(one, two) == []


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("metrics.jsonl", "0.5", "0.6"),
        ("metrics.jsonl", '{"round": 0', '{"round": 2'),
        ("checkpoint/client.safetensors", "client", "cliens"),
        ("checkpoint/manifest.json", "[6, 9]", "[6, 8]"),
    ],
)
def test_all_else_does(script, tmp_path, name, old, new):
    one, two = folder(tmp_path / "one"), folder(tmp_path / "two")
    text = (two / name).read_text()
    assert old in text
    (two / name).write_text(text.replace(old, new))
    assert script.differences(one, two) == [f"{name} differs"]
    (two / name).unlink()
    assert script.differences(one, two) == [f"{name} differs"]
    shutil.copy(one / name, two / name)
    (two / "more").touch()
    assert script.differences(one, two) == ["more differs"]


@pytest.mark.slow
def test_killed_runs_have_the_folders_of_others(script, tmp_path, monkeypatch, capsys):
    words = ["kills.py", str(tmp_path), "--kills", "6", "--methods", "fedtgp", "--rounds", "6"]
    monkeypatch.setattr(sys, "argv", words)
    script.main()
    printed = capsys.readouterr().out
    assert "0 runs differ" in printed
    kills = int(printed.partition(" kills of 2 runs of 1 methods")[0].split("\n")[-1])
    assert kills >= 6
