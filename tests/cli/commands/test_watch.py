"""Tests of ``protofl watch``: what it shows, and when it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from written_records import CONFIG, LINE, seal

from protofl.system.files.atomic import atomic_replacement, write_json
from protofl.system.files.lock import LOCK, folder_lock, is_held
from protofl_cli.commands import watch
from protofl_cli.screens.run_lines import BLOCKS, curve
from protofl_workbench.recorded.monitor import Monitor


def row(trial, round, accuracy, **more):
    own = {"trial": trial, "round": round, "test_accuracy": accuracy}
    own |= {"upload_bytes": 1_500_000, "download_bytes": 500_000, "seconds": {"total": 30.0}}
    return LINE | own | more


def write(folder: Path, rows, rounds=10, trials=1, finished=False):
    """Write the parts of a run folder that `watch` reads."""
    (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", CONFIG | {"rounds": rounds, "trials": trials})
    with atomic_replacement(folder / "metrics.jsonl") as part:
        part.write_text("".join(json.dumps(r) + "\n" for r in rows))
    seal(folder, finished=finished)
    return folder


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(watch, "GRACE", 0.2)


@pytest.fixture
def after_each_look(monkeypatch):
    """Return ``after_each_look(do)``, which calls ``do`` after each look at the runs."""
    look = Monitor.look

    def follow(do):
        def look_and_do(self):
            found = look(self)
            do()
            return found

        monkeypatch.setattr(Monitor, "look", look_and_do)

    return follow


def test_once(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    going = write(tmp_path / "runs/going", [row(0, n, 0.5 + n / 20) for n in range(4)])
    write(tmp_path / "runs/done", [row(0, n, 0.9) for n in range(10)], finished=True)
    write(tmp_path / "runs/two", [row(t, 0, None) for t in (0, 1)], trials=2)
    write(tmp_path / "runs/bad", []).joinpath("metrics.jsonl").write_text("[\n")
    with folder_lock(going, "--out"):
        output = cli("watch", "--once").output
    lines = {line.split()[0]: " ".join(line.split()) for line in output.splitlines()[2:]}
    assert [*lines][:2] == ["going", "bad"]  # running first, then damaged
    assert re.fullmatch(r"going going on 4/10 \S{4} 65.0% 65.0% [23]:\d\d 8 MB", lines["going"])
    assert lines["done"] == f"done finished 10/10 {BLOCKS[0] * 10} 90.0% 90.0% 20 MB"
    assert lines["two"].startswith("two unfinished trial 2/2 1/10")
    assert "1 going on, 1 finished, 1 unfinished, 1 damaged in runs" in output


def test_seconds_left_and_absent(tmp_path):
    rows = [row(0, n, 0.5, absent={"1": "failed", "2": "skipped"}) for n in range(4)]
    folder = write(tmp_path / "run", rows)
    with folder_lock(folder, "--out"):
        (seen,) = Monitor(tmp_path).look()
    assert seen.absent == 8 and seen.megabytes == 8
    assert 6 * 30 - 60 < seen.left <= 6 * 30  # six rounds of 30 s, less the time since


def test_a_run_that_ends_after_its_last_file_was_read(tmp_path):
    """A run releases its lock last, and then none of its files changes."""
    folder = write(tmp_path / "run", [row(0, 0, 0.5)], rounds=1, finished=True)
    following = Monitor(tmp_path)
    with folder_lock(folder, "--out"):
        assert [run.state for run in following.look()] == ["going on"]
    assert [run.state for run in following.look()] == ["finished"]


def test_it_follows_a_run_to_its_end(cli, tmp_path, quick, after_each_look):
    folder = write(tmp_path / "runs/a", [row(0, 0, 0.5)], rounds=5)
    lock, rounds = folder_lock(folder, "--out"), iter(range(2, 6))

    def goes_on():
        n = next(rounds, None)
        if n is None:
            lock.__exit__(None, None, None)
        else:
            write(folder, [row(0, r, 0.5) for r in range(n)], rounds=5, finished=n == 5)

    after_each_look(goes_on)
    lock.__enter__()
    result = cli("watch", "runs", "--every", "0.1")
    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert [line[: line.index("/")] for line in lines] == [
        "a: going on, round 1",
        *(f"a: going on, round {n}" for n in range(2, 6)),
        "a: finished, round 5",
    ]


def test_it_stays_while_a_sweep_is_between_two_runs(cli, tmp_path, quick, after_each_look):
    sweep = tmp_path / "sweep"
    write(sweep / "a", [row(0, 0, 0.5)], rounds=1, finished=True)
    lock, looks = folder_lock(sweep, "--out"), iter(range(7))

    def goes_on():  # three times as long as it would wait
        if next(looks, None) is None:
            lock.__exit__(None, None, None)

    after_each_look(goes_on)
    lock.__enter__()
    cli("watch", "sweep", "--every", "0.1")
    assert next(looks, None) is None
    assert not is_held(sweep / LOCK)


def test_the_folder_of_a_sweep_shows_the_runs_that_lie_elsewhere(cli, tmp_path):
    write(tmp_path / "runs/a", [row(0, 0, 0.5)])
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/sweep.toml").write_text(f'[sweep]\nruns = "{tmp_path / "runs"}"\n')
    output = cli("watch", "sweep", "--once").output
    assert "a     unfinished" in output
    words = f"1 unfinished in {tmp_path / 'runs'}"
    assert "".join(words.split()) in "".join(output.split())  # long paths wrap


def test_a_run_that_nobody_is_at_work_on(cli, tmp_path, quick):
    write(tmp_path / "run", [row(0, 0, 0.5)])
    output = cli("watch", "run", "--every", "0.1").output
    assert "run: unfinished, round 1/10" in output
    assert "protofl run --resume --out run" in output


def test_one_that_diverges_as_soon_as_it_goes_on(tmp_path):
    folder = write(tmp_path / "run", [row(0, 0, 0.5)])
    following = Monitor(folder)

    def state():
        (seen,) = following.look()
        return seen.state

    assert state() == "unfinished"
    with folder_lock(folder, "--out"):
        assert state() == "going on"
        write_json(folder / "failure.json", {"what": "NaN", "done": 1})
    assert state() == "diverged"


def test_mistakes_and_emptiness(cli, tmp_path):
    result = cli("watch", "nowhere")
    assert result.exit_code == 2 and "there is no folder nowhere" in result.output
    (tmp_path / "runs").mkdir()
    assert "no runs in runs yet" in cli("watch", "--once").output


def test_a_curve():
    assert curve([]) == "" and curve([0.5]) == BLOCKS[0]
    assert curve([n / 7 for n in range(8)], 8) == BLOCKS
    assert curve([0.80, 0.81], 8) == BLOCKS[0] + BLOCKS[-1]  # a small rise is visible
    long = curve([n / 999 for n in range(1000)], 24)
    assert len(long) == 24 and [*long] == sorted(long)
