"""Tests of batches: all runs are checked before training, then trained, reused or resumed."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runtime_toys import install, train, without_times
from slowness import quick
from sweep_toys import BATCHES, Halted, Scaled, is_round, records, request_of, wanted
from written_records import seal

import protofl as pf
from protofl.backends import Plan
from protofl.errors import Diverged, Refused
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.batch_tasks import (
    check_error,
    shared_cores,
    with_hosts,
)
from protofl_workbench.batch.estimate import pace, seconds_of, workload
from protofl_workbench.batch.run_batch import RunBatch


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    install(monkeypatch)


def run_batch(batch_runs, runs, at_once):
    """Check runs, raise the first error, and execute them."""
    with RunBatch(runs, at_once=at_once) as batch:
        checked = batch.check_all(batch_runs)
        if error := check_error(checked):
            raise error
        return batch.run_all(checked)


def here(runs, all_wanted, follow=events.ignore):
    with RunBatch(runs, at_once=0, follow=follow) as batch:
        return batch.run_all(batch.check_all(all_wanted))


def test_runs_are_as_they_are_one_by_one(tmp_path):
    outcomes = here(tmp_path, [wanted("a", lr=0.1), wanted("b", lr=0.2, seed=3)])
    alone = [
        train(Scaled, tmp_path / f"alone{n}", dry_run=False, progress=False, **given)
        for n, given in enumerate(({"lr": 0.1}, {"lr": 0.2, "seed": 3}))
    ]
    assert [o.batch_run.name for o in outcomes] == ["a", "b"]
    assert records(outcomes) == [without_times(result.record) for result in alone]


def test_what_is_finished_is_not_trained_again(tmp_path):
    first = here(tmp_path, [wanted("a"), wanted("b", lr=0.2)])
    told = []
    again = here(tmp_path, [wanted("b", lr=0.2), wanted("c", lr=0.3)], told.append)
    assert [o.reused for o in first + again] == [False, False, True, False]
    assert again[0].folder == first[1].folder
    assert {e.batch_run.name for e in told if is_round(e)} == {"c"}


def test_a_run_that_was_killed_before_its_end_is_finished(tmp_path):
    """As if it had been killed between its last round and its summary."""
    (first,) = here(tmp_path, [wanted("a")])
    summary = pf.load_run(first.folder).summary
    (first.folder / "summary.json").unlink()
    seal(first.folder, finished=None)
    assert pf.load_run(first.folder).state == "unfinished"
    with RunBatch(tmp_path, at_once=0) as batch:
        assert not batch.check_all([wanted("a")])[0].finished
    (again,) = here(tmp_path, [wanted("a")])
    assert again.reused and again.state == "finished" and again.folder == first.folder
    assert pf.load_run(first.folder).state == "finished"
    assert pf.load_run(first.folder).summary == summary


def test_a_mistake_in_the_last_is_found_before_the_first_is_trained(tmp_path):
    good, bad = wanted("good"), wanted("bad", set={"scale": -1})
    with pytest.raises(pf.UsageError) as caught:
        run_batch([good, bad, wanted("worse", set={"scal": 1})], tmp_path, at_once=0)
    assert "bad (and of 1 more): " in caught.value.what and "scale" in caught.value.what
    assert not [*tmp_path.glob("*/metrics.jsonl")]


def test_the_dry_run_of_each_composition_is_done_beforehand(tmp_path):
    with pytest.raises(pf.UsageError, match="so it was asked for"):
        run_batch(
            [wanted("a", dry_run=True), wanted("b", dry_run=True, set={"fails": 1})],
            tmp_path,
            at_once=0,
        )
    assert not [*tmp_path.glob("*/metrics.jsonl")]


def test_one_that_fails_stops_no_other(tmp_path):
    outcomes = run_batch(
        [wanted("bad", rounds=3, set={"fails": 1}), wanted("good")], tmp_path, at_once=0
    )
    bad, good = outcomes
    assert (bad.state, good.state) == ("failed", "finished")
    assert "so it was asked for" in bad.error.what
    assert len(bad.run.rows) == 1, "its finished round is there"


def test_one_run_that_is_wanted_with_several_numbers_of_rounds_is_one(tmp_path):
    both = [wanted("one", rounds=1), wanted("three", rounds=3), wanted("again", rounds=1)]
    outcomes = here(tmp_path, both)
    assert [len(o.run.rows) for o in outcomes] == [1, 3, 1]
    assert len({o.folder for o in outcomes}) == 1
    assert records(outcomes)[0] == records(outcomes)[1][:1]


def test_all_rounds_without_the_evaluation_of_a_last_one_are_not_finished(tmp_path):
    """A long run, evaluated every second round, was stopped after its third round."""
    seen = []

    def halt(event):
        seen.extend([event] * is_round(event))
        if len(seen) == 3:
            raise Halted

    with pytest.raises(Halted):
        here(tmp_path, [wanted("long", rounds=9, eval_every=2)], halt)
    short = wanted("short", rounds=3, eval_every=2)
    with RunBatch(tmp_path, at_once=0) as batch:
        assert not batch.check_all([short])[0].finished
    (outcome,) = here(tmp_path, [short])
    assert [row["evaluated"] > 0 for row in outcome.run.rows] == [False, True, True]


def test_a_run_stopped_before_its_first_round_has_its_folder_when_it_fails_later(tmp_path):
    bad = wanted("bad", rounds=3, set={"fails": 1})

    def halt(event):
        if isinstance(event, events.OfRun) and isinstance(event.event, pf.events.FolderMade):
            raise Halted

    with pytest.raises(Halted):
        here(tmp_path, [bad], halt)
    (outcome,) = here(tmp_path, [bad])
    assert outcome.state == "failed" and outcome.folder is not None
    assert len(outcome.run.rows) == 1, "its finished round is there"


def test_a_later_trial_of_a_run_that_is_there_is_read_from_it(tmp_path):
    many, later = wanted("many", trials=2), wanted("later", seed=1)
    outcomes = here(tmp_path, [many]) + here(tmp_path, [later])
    assert outcomes[1].reused
    assert [row["trial"] for row in outcomes[1].run.rows] == [0, 0]
    accuracies = [
        [r["test_accuracy"] for r in o.run.rows_of(t)]
        for o, t in zip(outcomes, (1, 0), strict=True)
    ]
    assert accuracies[0] == accuracies[1]


@pytest.mark.slow
@pytest.mark.parametrize("moment", quick([1, 2, 4], 2, always=True))
def test_interrupted_at_any_moment_it_goes_on_to_the_same(tmp_path, moment):
    both = [wanted("a"), wanted("b", lr=0.2)]
    whole = here(tmp_path / "whole", both)
    seen = 0

    def halt(event):
        nonlocal seen
        seen += is_round(event)
        if seen == moment and is_round(event):
            raise Halted

    with pytest.raises(Halted):
        here(tmp_path / "halted", both, halt)
    rows = sum(len(p.read_text().splitlines()) for p in tmp_path.glob("halted/*/metrics.jsonl"))
    assert rows == moment, "no finished round is lost"
    told = []
    on = here(tmp_path / "halted", both, told.append)
    assert records(on) == records(whole)
    new = [e for e in told if is_round(e)]
    assert len(new) == 4 - moment


def test_steps_are_the_mini_batches_that_are_trained(tmp_path):
    BATCHES.clear()
    with RunBatch(tmp_path, at_once=0) as batch:
        tried = batch.check_all([wanted("a", local_epochs=2, trials=2)])
        assert not BATCHES
        batch.run_all(tried)
    assert tried[0].steps == len(BATCHES) > 0


def test_an_estimate_grows_with_the_work(tmp_path):
    runs = [wanted("short"), wanted("long", rounds=200), wanted("there", lr=0.4)]
    here(tmp_path, runs[2:])
    with RunBatch(tmp_path, at_once=0) as batch:
        short, long, there = batch.check_all(runs, measure=True)
    assert long.seconds == pytest.approx(100 * short.seconds)
    assert short.seconds > 0 and there.seconds is None and there.finished


class Clock:
    """A clock whose time the test sets."""

    def __init__(self, monkeypatch):
        self.now = 0
        monkeypatch.setattr(time, "perf_counter", lambda: float(self.now))
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now * 10**9)


class Ponderous(Scaled):
    """Takes one second to receive a download, once per round and once per evaluation."""

    clock = None

    @pf.hookimpl
    def receive(self, client):
        self.clock.now += 1


def test_what_comes_once_a_round_is_not_counted_for_each_batch(monkeypatch):
    """FedKD is an example: its clients rebuild a model from its SVD before they train."""
    monkeypatch.setattr(Ponderous, "clock", Clock(monkeypatch))
    request = request_of(Ponderous, models="toy1", clients=2, batch_size=12, local_epochs=10)
    plan = Plan.make(request.options, request.extra)
    load, rounds = workload(plan), plan.settings.rounds
    once = load["once train dense8"] + load["once evaluate dense8"]
    assert once == 2 * 2 * rounds and load["train dense8"] == 2 * rounds * 10 * 3
    assert seconds_of(load, pace(plan)) == once


@pytest.mark.parametrize(
    ("count", "at_once", "own", "expected"),
    [
        (9, None, {}, (4, 1)),
        (3, None, {}, (3, 1)),
        (2, None, {}, (2, 2)),
        (1, None, {}, (1, 4)),
        (9, 2, {}, (2, 2)),
        (9, 8, {}, (8, 1)),
        (9, 0, {}, (1, 0)),
        (9, None, {"workers": 2}, (2, 2)),
        (9, None, {"workers": 16}, (1, 4)),
    ],
)
def test_cores_are_shared_out(monkeypatch, count, at_once, own, expected):
    monkeypatch.setattr("protofl_workbench.batch.batch_tasks.usable_cores", lambda: [*range(4)])
    assert shared_cores([request_of(**own)] * count, at_once) == expected
    assert shared_cores([request_of(**own)] * count, at_once, on_gpu=True)[0] == (at_once or 1)


def test_hosts_are_placed_where_nothing_is_said():
    free = request_of(backend="auto")
    assert with_hosts(free, 1).options["backend"] == "local"
    assert with_hosts(free, 3).options["workers"] == 3
    for said in ({"workers": 2}, {"backend": "process"}):
        request = request_of(**{"backend": "auto", **said})
        assert with_hosts(request, 1) is request


# --- in processes ---------------------------------------------------------------------------------

KILLED = '''
import os, signal
import protofl as pf
from torch.nn.functional import cross_entropy

class Killed:
    """Kills its process in a round."""

    class Config(pf.Config):
        round: int = pf.Field(-1, description="the round")

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def local_loss(self, batch, output):
        return {"ce": cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        if server.round == server.config.round:
            print("the last words", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return {}
'''


@pytest.fixture
def killed(tmp_path):
    file = tmp_path / "killed.py"
    file.write_text(KILLED)
    return f"{file}:Killed"


@pytest.mark.always
@pytest.mark.slow
def test_processes_give_the_same_and_one_that_is_killed_takes_no_other_with_it(tmp_path, killed):
    runs = [
        wanted("a", method=killed),
        wanted("bad", method=killed, rounds=3, set={"round": 1}),
        wanted("b", method=killed, lr=0.2),
        wanted("c", method=killed, lr=0.3),
    ]
    outcomes = run_batch(runs, tmp_path / "runs", at_once=2)
    assert [o.state for o in outcomes] == ["finished", "failed", "finished", "finished"]
    assert f"killed by signal {signal.SIGKILL.value}" in outcomes[1].error.what
    assert "the last words" in outcomes[1].error.near
    good = [runs[0], *runs[2:]]
    alone = here(tmp_path / "alone", good)
    assert records([outcomes[0], *outcomes[2:]]) == records(alone)
    on = [wanted("bad", method=killed, rounds=3, set={"round": -1})]
    assert here(tmp_path / "runs", on)[0].state == "finished"


@pytest.mark.always
@pytest.mark.slow
def test_interrupted_runs_in_processes_end_and_keep_their_rounds(tmp_path, killed):
    runs = [wanted(str(n), method=killed, rounds=500, seed=n) for n in range(2)]
    seen = set()

    def halt(event):
        if is_round(event):
            seen.add(event.batch_run.name)
        if len(seen) == 2:
            raise Halted

    with pytest.raises(Halted), RunBatch(tmp_path / "runs", at_once=2, follow=halt) as batch:
        batch.run_all(batch.check_all(runs))
    folders = [p.parent for p in Path(tmp_path, "runs").glob("*/metrics.jsonl")]
    assert len(folders) == 2
    for folder in folders:
        assert 0 < len((folder / "metrics.jsonl").read_text().splitlines()) < 500
        assert pf.load_run(folder).state == "unfinished", "no process has it any more"
        assert json.loads((folder / "checkpoint/manifest.json").read_text())


SCRIPT = """
import protofl as pf

print("the script runs")
found = pf.sweep("fedproto", grid={"lr": [0.1, 0.2]}, out="s", runs="runs", at_once=2, **OPTIONS)
print(len(found.records()))
"""


@pytest.mark.slow
def test_a_script_needs_no_main_guard(tmp_path, few):
    """`multiprocessing` would run the script again in each process."""
    options = {"models": "cnn4", "dataset": few, "clients": 2, "rounds": 1, "dry_run": False}
    (tmp_path / "script.py").write_text(f"OPTIONS = {options}{SCRIPT}")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["the script runs", "2"], done.stderr


def test_errors_cross_to_another_process():
    for error in (pf.UsageError("a", "b", "c"), Diverged("a"), Refused("a", lacks="key", name="n")):
        found = pickle.loads(pickle.dumps(error))
        assert (found.what, found.near, found.do) == (error.what, error.near, error.do)
        assert found.exit_code == error.exit_code
    assert isinstance(pickle.loads(pickle.dumps(Diverged("a"))), Diverged)


def test_a_class_of_this_program_can_not_go_to_another_process(tmp_path):
    with RunBatch(tmp_path, at_once=1) as batch:
        tried = batch.check_all([wanted("a")])
    assert "class of this program" in tried[0].error.what
