"""``protofl bench``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from slowness import quick

NAIVE = Path(__file__).parents[2] / "benchmarks/naive.py"
SPREAD = {"min", "median", "max"}
SPREAD_OF_NOTHING = dict.fromkeys(("min", "median", "max"), 0.0)


@pytest.fixture
def small(data_dir):
    """Options of a benchmark that takes seconds."""
    words = "--clients 2 --samples 24 --repeats 2 --backend local"
    return [*words.split(), "--data-dir", str(data_dir)]


def ordered(spread):
    return set(spread) == SPREAD and 0 <= spread["min"] <= spread["median"] <= spread["max"]


@pytest.mark.slow
def test_against_the_naive_loop(cli, small, tmp_path):
    words = ("--against", NAIVE, "--json", "b.json", "--chart", "b.png")
    result = cli("bench", "digits-fedproto", *small, *words)
    assert result.exit_code == 0, result.output
    for text in (
        "digits-fedproto",
        "naive.py",
        "ratio",
        "equal",
        "yes ",
        "Seconds by stage",
        "evaluate",
    ):
        assert text in result.output
    assert max(map(len, result.output.splitlines())) <= 100
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")

    found = json.loads((tmp_path / "b.json").read_text())
    assert {"protofl", "torch", "python", "system", "processor", "cores", "time"} <= found.keys()
    assert (found["repeats"], found["rounds"], found["against"]) == (2, 1, "naive.py")
    (case,) = found["cases"]
    assert (case["name"], case["method"], case["models"]) == (
        "digits-fedproto", "fedproto", "htcnn8",
    )  # fmt: skip
    assert (case["clients"], case["train_samples"], case["test_samples"]) == (2, 48, 16)
    assert case["steps"] == 6 and case["target"] is None
    for side in ("protofl", "against"):
        measured = case[side]
        assert ordered(measured["seconds"]["total"]) and ordered(measured["start"]["launch"])
        assert {"setup", "train", "prototypes", "payload", "server", "evaluate", "cpu"} <= set(
            measured["seconds"]
        )
        assert len(measured["repeats"]) == 2
        assert measured["memory"]["host"] > 50_000_000
    assert ordered(case["ratio"])
    equality = case["equality"]
    assert equality["equal"] is True and equality["float64"]["largest"] <= found["tolerance"]
    assert equality["float32"]["largest"] < 1e-3 and equality["float64"]["tensors"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [["--fresh"], []])
def test_alone(cli, small, tmp_path, fresh):
    result = cli("bench", "digits-local", *small, "--rounds", 2, *fresh, "--json", "b.json")
    assert result.exit_code == 0, result.output
    assert "ratio" not in result.output and "digits-local" in result.output
    (case,) = json.loads((tmp_path / "b.json").read_text())["cases"]
    assert case["against"] is None and case["ratio"] is None and case["equality"] is None
    assert len(case["protofl"]["repeats"]) == 2


@pytest.mark.slow
def test_the_server_s_step_alone(cli, small, tmp_path):
    words = ("--dataset", "mnist=digits", "--json", "b.json", "--against", NAIVE)
    result = cli("bench", "mnist-server", *small, *words)
    assert result.exit_code == 0, result.output
    (case,) = json.loads((tmp_path / "b.json").read_text())["cases"]
    assert case["part"] == "server" and case["equality"]["equal"]
    assert case["protofl"]["seconds"]["server"]["min"] > 0
    assert case["protofl"]["seconds"].get("train", SPREAD_OF_NOTHING) == SPREAD_OF_NOTHING


OTHER = """
class Loop:
    def round(self, number): return {"train": 0.0}
    def accuracies(self): return {0: 0.0, 1: 0.0}
    def knowledge(self): return {}
    def weights(self): return iter(())
    def close(self): pass

def open_loop(plan, folder):
    return Loop()
"""


@pytest.mark.slow
def test_beside_another_loop_without_comparing(cli, small, tmp_path):
    (tmp_path / "other.py").write_text(OTHER)
    words = ("--against", "other.py", "--check-rounds", 0, "--json", "b.json")
    result = cli("bench", "digits-local", *small, *words)
    assert result.exit_code == 0, result.output
    assert "ratio" in result.output and "other.py" in result.output
    (case,) = json.loads((tmp_path / "b.json").read_text())["cases"]
    assert ordered(case["ratio"]) and case["ratio"]["max"] < 1
    assert (case["equality"]["equal"], case["equality"]["unchecked"]) == (None, "not asked for")


@pytest.mark.slow
def test_a_loop_that_does_other_work_is_not_equal(cli, small, tmp_path):
    (tmp_path / "other.py").write_text(OTHER)
    words = ("--against", "other.py", "--json", "b.json")
    result = cli("bench", "digits-local", *small, *words)
    assert result.exit_code == 0, result.output
    assert "NO " in result.output and "no common tensors" in result.output
    (case,) = json.loads((tmp_path / "b.json").read_text())["cases"]
    assert case["equality"]["equal"] is False and case["equality"]["float64"]["largest"] is None


def test_list(cli):
    result = cli("bench", "--list")
    assert result.exit_code == 0
    for text in ("mnist-fedproto", "20 × 300", "2.4×", "digits-fedkd", "precision=bf16"):
        assert text in result.output
    assert "mnist" not in cli("bench", "digits-*", "--list").output


BAD = {
    "unknown case": ("bench mnist-fedprot", "did you mean 'mnist-fedproto'"),
    "no such loop": ("bench --against nowhere.py", "nowhere.py"),
    "not a loop": ("bench digits-local --against empty.py", "has no open_loop"),
    "a broken loop": ("bench digits-local --against broken.py", "ZeroDivisionError"),
    "too many samples": ("bench digits-local --samples 5000", "images are needed"),
    "no folder": ("bench mnist-local --data nowhere", "is no folder"),
    "no file in it": ("bench mnist-local --data .", "no file of mnist"),
    "data of no case": ("bench digits-local --dataset mnist=digits", "none of these cases"),
    "data without a name": ("bench digits-local --dataset mnist", "WORD=NAME"),
    "several methods": ("bench digits-* --set lambda=1", "several methods"),
    "unknown option": ("bench digits-fedproto --set lamda=1", "did you mean 'lambda'"),
    "unknown engine": ("bench digits-local --engine egaer", "did you mean 'eager'"),
    "json nowhere": ("bench digits-local --json no/where.json", "--json"),
    "chart is a folder": ("bench digits-local --chart .", "--chart"),
    "no repeats": ("bench digits-local --repeats 0", "--repeats"),
}
STARTED = {"not a loop", "a broken loop", "unknown engine", "unknown option"}
"""What a process finds that is started for a side."""


@pytest.mark.parametrize("case", quick(BAD, *(BAD.keys() - STARTED)))
def test_found_before_measuring(cli, data_dir, tmp_path, case):
    (tmp_path / "empty.py").touch()
    (tmp_path / "broken.py").write_text("1 / 0")
    command, message = BAD[case]
    result = cli(*command.split(" "), "--clients", 2, "--data-dir", data_dir)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert len(result.stderr.strip().splitlines()) <= 3


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_ctrl_c_ends_every_process(subprocess_of, data_dir, tmp_path):
    words = "--repeats 5000 --clients 2 --samples 24 --workers 1 --backend process"
    process = subprocess_of("bench", "digits-local", *words.split(), "--data-dir", data_dir)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for _ in range(1200):
        sides = children.read_text().split() if children.exists() else []
        if sides and Path(f"/proc/{sides[0]}/task/{sides[0]}/children").read_text().strip():
            break
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors and "Traceback" not in errors
    assert not Path(f"/proc/{sides[0]}").exists()
