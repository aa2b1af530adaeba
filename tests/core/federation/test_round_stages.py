"""Tests of the steps that hosts report in a round: as many as planned, on every host."""

from __future__ import annotations

import math
import threading
from typing import ClassVar

import pytest
from runtime_toys import make_plan
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.data.batches import batch_bounds
from protofl.federation.round.federation import Federation
from protofl.federation.round.round_stages import Workload
from protofl.system import progress
from protofl.system.progress import Counter, Stage
from protofl.testing.toy import WatchedPool


class TwoTimes:
    """A phase of two epochs before the upload, and one after the server's step."""

    terms: ClassVar = {"ce": "cross-entropy"}

    @pf.hookimpl
    def phases(self):
        return [pf.Phase("first", epochs=2), pf.Phase("last", epochs=1, when="after_server")]

    @pf.hookimpl
    def local_loss(self, batch, output):
        return {"ce": cross_entropy(output.logits, batch.y)}


@pytest.fixture
def every(monkeypatch):
    """Report every step."""
    monkeypatch.setattr(progress, "EVERY", 0.0)


def followed(plan, pool=None, rounds=1):
    """Run some rounds; return each StageStarted event with the StepsDone events of its stage."""
    stages = []

    def follow(event):
        if isinstance(event, pf.events.StageStarted):
            stages.append((event, []))
        elif isinstance(event, pf.events.StepsDone):
            stages[-1][1].append(event)

    if pool is None:
        pool = plan.choices["backend"].call("open_pool", plan=plan, workers=2, idle=None)
    try:
        federation = Federation(plan, pool, follow)
        federation.start_trial(0)
        for number in range(rounds):
            federation.round(number)
    finally:
        pool.close()
    return stages


def batches(plan, client):
    samples = len(plan.split(0).train(client))
    return len(batch_bounds(samples, plan.settings.batch_size, plan.settings.drop_last))


@pytest.mark.parametrize("engine", ["eager", "vmapped", "cuda-graphs"])
def test_every_step_of_the_plan_is_counted(every, engine):
    plan = make_plan("fedproto", local_epochs=3, rounds=2, clients=3, engine=engine)
    steps = 3 * sum(batches(plan, client) for client in range(3))
    stages = followed(plan, rounds=2)
    assert [start.stage for start, _ in stages] == ["train", "server", "evaluate"] * 2
    for start, told in stages:
        if start.stage == "train":
            assert (start.jobs, start.steps) == (3, steps)
            assert [event.done for event in told] == [*range(1, steps + 1)]
            assert {event.steps for event in told} == {steps}
            shares = [event.share for event in told]
            assert shares == sorted(shares) and shares[-1] == pytest.approx(1)


def test_phases_and_evaluations_are_counted(every):
    plan = make_plan(TwoTimes, clients=2, validation=0.2, measure=["train-accuracy"])
    once = sum(batches(plan, client) for client in range(2))
    scored, size = 0, plan.info.architectures[0].eval_batch
    for rows in (plan.split(0).test, plan.split(0).held_out, plan.split(0).train):
        scored += sum(math.ceil(len(rows(client)) / size) for client in range(2))
    found = {(s.stage, s.steps): [e.done for e in told] for s, told in followed(plan)}
    assert found == {
        ("train", 2 * once): [*range(1, 2 * once + 1)],
        ("server", 0): [],
        ("train", once): [*range(1, once + 1)],
        ("evaluate", scored): [*range(1, scored + 1)],
    }


def test_a_pool_that_reports_nothing_counts_by_client():
    plan = make_plan("fedproto", clients=3)
    own = [batches(plan, client) for client in range(3)]
    (start, told), *_ = followed(plan, WatchedPool(plan))
    assert start.steps == sum(own) == told[-1].done
    assert len(told) == 3


def test_nothing_is_counted_where_nobody_follows(every, monkeypatch):
    plan = make_plan("fedproto", clients=2)
    pool = pf.backends.Host(plan)
    seen = []
    pool.on_steps = lambda client, done: seen.append(client)
    Federation(plan, pool).start_trial(0)
    federation = Federation(plan, pool)
    federation.start_trial(0)
    federation.round(0)
    assert seen == []
    assert [*Counter(None).over(iter("abc"))] == ["a", "b", "c"]


def test_a_follower_that_needs_no_steps_gets_none(every):
    class Quiet:
        follows_steps = False

        def __init__(self):
            self.seen = []

        def __call__(self, event):
            self.seen.append(event)

    plan = make_plan("fedproto", clients=2)
    quiet = Quiet()
    federation = Federation(plan, pf.backends.Host(plan), quiet)
    federation.start_trial(0)
    federation.round(0)
    kinds = {type(event) for event in quiet.seen}
    assert kinds == {pf.events.StageStarted, pf.events.ClientDone}


def test_a_part_that_is_begun_again_is_counted_anew(every):
    told = []
    counter = Counter(told.append)
    assert [*counter.over(iter("ab"))] == ["a", "b"]
    broken = counter.over(iter("cdefg"))
    for _ in range(3):
        next(broken)
    assert [*counter.over(iter("cde"))] == ["c", "d", "e"]
    assert told == [1, 2, 3, 4, 3, 4, 5]


def test_reports_are_few():
    told = []
    for _ in Counter(told.append).over(iter(range(1000))):
        pass
    assert len(told) < 1000


def test_a_stage_takes_what_hosts_say_with_care():
    stage = Stage({0: 4, 1: 2}, {0: 3.0, 1: 1.0})
    assert stage.take(0, 2)
    assert (stage.done, stage.steps, stage.share) == (2, 6, pytest.approx(6 / 14))
    assert not stage.take(0, 2)
    assert not stage.take(7, 5), "a client that is not in the stage"
    assert stage.take(0, 99) and stage.done == 4
    assert stage.take(0, 1) and stage.done == 1, "its host ended, and another begins again"
    assert stage.take(0) and stage.take(1) and stage.done == 6
    assert stage.share == pytest.approx(1)
    assert Stage({}, {}).share == 0


def test_fine_tuning_counts_as_part_of_an_evaluation():
    plan = make_plan("fedproto", clients=2)
    load = Workload(plan, 0)
    assert load.scoring(1, epochs=3) == load.scoring(1) + 3 * batches(plan, 1)
    assert load.training(1) == load.training(1, "before_upload") == batches(plan, 1)
    assert load.training(1, "after_server") == 0


SLOW = """
import time
import protofl as pf
from torch.nn.functional import cross_entropy

class Slow:
    '''Its steps take a while.'''

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def local_loss(self, batch, output):
        time.sleep(0.15)
        return {"ce": cross_entropy(output.logits, batch.y)}
"""


@pytest.mark.slow
def test_workers_report_steps_in_the_middle_of_a_job(tmp_path, few):
    (tmp_path / "slow.py").write_text(SLOW)
    threads, found = set(), []

    def follow(event):
        threads.add(threading.current_thread())
        if isinstance(event, pf.events.StepsDone) and event.stage == "train":
            found.append(event)
        if isinstance(event, pf.events.ClientDone) and event.stage == "train":
            found.append(event.client)

    options = {"clients": 2, "rounds": 1, "local_epochs": 1, "batch_size": 16, "feature_dim": 16}
    pf.run(
        f"{tmp_path / 'slow.py'}:Slow",
        models="cnn4",
        dataset=few,
        partition="iid",
        data_dir=tmp_path,
        backend="process",
        workers=2,
        dry_run=False,
        out=tmp_path / "run",
        progress=follow,
        **options,
    )
    assert threads == {threading.current_thread()}
    first = found[: next(n for n, event in enumerate(found) if isinstance(event, int))]
    assert 0 < first[0].done < first[0].steps, "before any client is done"
    last = [event for event in found if not isinstance(event, int)][-1]
    plan = pf.backends.Plan.make({"method": "fedproto", "models": "cnn4", "dataset": few, **options,
                         "partition": "iid", "data_dir": tmp_path})  # fmt: skip
    assert last.done == last.steps == sum(batches(plan, client) for client in range(2))
