"""Tests of ``protofl sweep``: options, output, and what remains after a kill."""

from __future__ import annotations

import csv
import json
import signal
import time
from pathlib import Path

import pytest

GRID = ("--grid", "lambda=0.1,1")

FAILING = """
import protofl as pf
from torch.nn.functional import cross_entropy

class Failing:
    "It fails where it is told to."

    class Config(pf.Config):
        fails: bool = pf.Field(False, description="whether it fails")

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def local_loss(self, batch, output):
        return {"ce": cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        if server.config.fails and server.round == 1:
            raise ValueError("as it was told to")
        return {}
"""


def rows_in(folder):
    return list(csv.DictReader(Path(folder, "results.csv").read_text().splitlines()))


def test_a_grid_and_its_table(cli, tiny):
    done = cli("sweep", "fedproto", *tiny, *GRID, "--trials", 2, "--at-once", 0, "--out", "s")
    assert done.exit_code == 0, done.output
    assert "2 points, seeds 0 to 1: 4 runs" in done.output
    shown = " ".join(done.output.split())  # a long path wraps the title
    assert "chosen on test samples" in shown and "mean ± std" in shown
    assert "4/4 lambda=1 · seed 1: finished" in done.output
    rows = rows_in("s")
    assert [(r["lambda"], r["seed"]) for r in rows if r["state"] == "finished"] != []
    assert len(rows) == 4 and all(Path("s", r["folder"], "config.json").exists() for r in rows)
    best = json.loads(Path("s/results.json").read_text())["best"]["lambda"]
    line = next(line for line in done.output.splitlines() if line.endswith("best"))
    assert line.startswith(best)
    again = cli("sweep", "--resume", "s", "--at-once", 0)
    assert "checked 4 runs, 4 of them are finished" in again.output
    assert again.output.split("chosen on")[1] == done.output.split("chosen on")[1]
    used = cli("sweep", "fedproto", *tiny, *GRID, "--trials", 2, "--out", "s")
    assert used.exit_code == 2 and "the folder of this sweep" in used.output


@pytest.mark.slow
def test_one_that_fails_is_told_at_the_end(cli, tiny):
    Path("failing.py").write_text(FAILING)
    words = ["--grid", "fails=true,false", "--at-once", 0, "--out", "s"]
    done = cli("sweep", "failing.py:Failing", *tiny, *words)
    assert done.exit_code == 1
    assert "1/2 fails=true: failed: " in done.output and "2/2 fails=false: fin" in done.output
    last = done.output[done.output.index("error:") :]
    assert "fails=true (runs/" in last and "as it was told to" in last
    assert "protofl sweep --resume s" in last
    assert [r["state"] for r in rows_in("s")] == ["finished", "failed"]


def test_a_plan_starts_nothing(cli, tiny):
    done = cli("sweep", "fedproto", *tiny, *GRID, "--plan", "--at-once", 0)
    assert done.exit_code == 0, done.output
    assert (
        "2, 2 to do" in done.output
        and "by measured steps, on this machine with its present load" in done.output
    )
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no --grid is given"),
        (["--grid", "lamda=1,2"], "'lambda'"),
        (["--grid", "lr=0.1,-1"], "--grid lr=-1"),
        (["--grid", "lr=0.1..0.2"], "--grid lr=0.1..0.2"),
        (["--grid", "lr=0.1,0.2", "--grid", "lr=1"], "--grid lr is given twice"),
        (["--grid", "lr=0.1,0.2", "--trials", "501"], "1,002 runs"),
        (["--grid", "lr=0.1,0.2", "--trials", "0"], "--trials 0 is not possible"),
        (["--resume", "s", "--grid", "lr=0.1"], "leave METHOD out"),
    ],
)
def test_what_can_not_be_is_said_at_once(cli, tiny, words, said):
    done = cli("sweep", "fedproto", *tiny, *words)
    assert done.exit_code == 2 and said in done.output
    assert not Path("runs").exists()


@pytest.mark.always
@pytest.mark.slow
def test_killed_at_three_moments_and_gone_on_with(subprocess_of, cli, tiny):
    tiny = [*tiny, "--rounds", 30]
    words = ["sweep", "fedproto", *tiny, *GRID, "--trials", 2]
    whole = cli(*words, "--runs", "whole", "--at-once", 0, "--out", "one")
    assert whole.exit_code == 0
    command = [*words, "--at-once", 2, "--out", "two"]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        before = rounds_done()
        started = subprocess_of(*command)
        while rounds_done() <= before:
            assert started.poll() is None, started.communicate()
            time.sleep(0.02)
        started.send_signal(number)
        said = started.communicate()[1]
        assert started.returncode == code, said
        if number != signal.SIGKILL:
            assert "protofl sweep --resume two" in said
        nobody_is_at_work()
        assert before < rounds_done() < 120
        command = ["sweep", "--resume", "two"]
    on = cli("sweep", "--resume", "two", "--at-once", 0)
    assert on.exit_code == 0, on.output
    figures = ("lambda", "seed", "state", "value", "test", "round", "rounds")
    one, two = ([[row[key] for key in figures] for row in rows_in(name)] for name in ("one", "two"))
    assert one == two and len(one) == 4
    assert records_in("one") == records_in("two")


def rounds_done():
    return sum(len(p.read_text().splitlines()) for p in Path("runs").glob("*/metrics.jsonl"))


def nobody_is_at_work():
    """Wait until all runs have ended; they end by themselves when the sweep is killed."""
    import protofl as pf

    folders = [config.parent for config in Path("runs").glob("*/config.json")]
    while any(pf.load_run(folder).state == "going on" for folder in folders):
        time.sleep(0.05)


def records_in(sweep):
    """Return the records of all runs of a sweep, without values that differ in equal runs."""
    found = []
    for row in rows_in(sweep):
        lines = Path(sweep, row["folder"], "metrics.jsonl").read_text().splitlines()
        rows = map(json.loads, lines)
        found.append([{k: v for k, v in r.items() if k not in ("seconds", "time")} for r in rows])
    return found
