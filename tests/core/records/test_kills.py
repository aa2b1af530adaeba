"""Tests of runs of all methods that are killed at random moments, and resumed.

``pytest -m slow tests/core/records/test_kills.py --kills 6`` kills about two hundred times.
"""

from __future__ import annotations

import json
import random
import shutil
import sys

import killed_runs
import pytest
from killed_runs import Place, differences, killed, started

from protofl.hooks.discovery.registry import Registry

FULL = ("fedtgp",)
"""Methods whose runs are killed more often, and in every part of the slow tests."""


def methods():
    """Return all methods that can run alone."""
    registry = Registry()
    names = sorted(plugin.name for plugin in registry.plugins("method"))
    return [name for name in names if not getattr(registry.load("method", name), "donates", ())]


def folder(place):
    (place / "checkpoint").mkdir(parents=True)
    rows = [{"round": n, "loss": n / 2, "seconds": {"total": 1.5}, "time": "now"} for n in (0, 1)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "checkpoint/client.safetensors").write_bytes(b"client")
    manifest = {"round": 1, "record": [2, 100, 7], "crc32": 8, "checks": {"client": [6, 9]}}
    (place / "checkpoint/manifest.json").write_text(json.dumps(manifest))
    return place


@pytest.mark.always
def test_times_make_no_difference(tmp_path):
    one, two = folder(tmp_path / "one"), folder(tmp_path / "two")
    for name, old, new in (
        ("metrics.jsonl", '"now"', '"later"'),
        ("metrics.jsonl", "1.5", "2.5"),
        ("checkpoint/manifest.json", '"crc32": 8', '"crc32": 1'),
    ):
        text = (two / name).read_text()
        assert old in text
        (two / name).write_text(text.replace(old, new))
    assert differences(one, two) == []


@pytest.mark.always
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("metrics.jsonl", "0.5", "0.6"),
        ("metrics.jsonl", '{"round": 0', '{"round": 2'),
        ("checkpoint/client.safetensors", "client", "cliens"),
        ("checkpoint/manifest.json", "[6, 9]", "[6, 8]"),
    ],
)
def test_all_else_does(tmp_path, name, old, new):
    one, two = folder(tmp_path / "one"), folder(tmp_path / "two")
    text = (two / name).read_text()
    assert old in text
    (two / name).write_text(text.replace(old, new))
    assert differences(one, two) == [f"{name} differs"]
    (two / name).unlink()
    assert differences(one, two) == [f"{name} differs"]
    shutil.copy(one / name, two / name)
    (two / "more").touch()
    assert differences(one, two) == ["more differs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=[pytest.mark.always] * (name in FULL)) for name in methods()],
)
def test_killed_runs_have_the_folders_of_others(tmp_path, method, pytestconfig):
    """Kill a run with its clients in its own process, and one with two worker processes."""
    total = max(pytestconfig.getoption("--kills"), 6 if method in FULL else 0)
    for backend, kills in (("local", total - total // 2), ("process", total // 2)):
        place = Place(tmp_path, method, backend, rounds=6)
        chain = killed(place, kills, random.Random(f"0 {method} {backend}"))
        assert not chain.wrong
        assert sum(chain.kills.values()) >= kills


WRITES_IN_A_THREAD = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the command line answers it
import protofl.federation.round.federation, protofl.runs.lifecycle.lifecycle as lifecycle
from protofl_cli.start import main
protofl.federation.round.federation.has_streams = lambda device: True
write = lifecycle.write_tensors
def slow(*file):
    open(os.environ["MARK"], "w").close()
    time.sleep(0.1)
    write(*file)
lifecycle.write_tensors = slow
try:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
except KeyboardInterrupt:
    sys.exit(130)
main()
"""
"""``protofl`` that takes the CPU for a device with streams; writing a client takes 0.1 s more."""


@pytest.mark.slow
def test_runs_whose_thread_writes_are_killed(tmp_path, monkeypatch):
    place = Place(tmp_path, "fedtgp", "local", rounds=6)
    with started(place.command(place.whole, "local"), tmp_path / "log") as run:
        assert run.wait() == 0
    monkeypatch.setattr(killed_runs, "COMMAND", (sys.executable, "-c", WRITES_IN_A_THREAD))
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    chain = killed(place, 8, random.Random(3))
    assert (tmp_path / "mark").exists()
    assert not chain.wrong
    assert sum(chain.kills.values()) >= 8
