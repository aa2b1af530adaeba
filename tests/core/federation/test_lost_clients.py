"""Tests of clients lost after their upload: in an after_server phase or in an evaluation.

The result must be bit-identical to a run that asks the same clients in the same stages.
"""

from __future__ import annotations

import itertools

import pytest
from fake_pools import LosingPool
from runtime_toys import install, make_plan, train, without_times
from slowness import quick

import protofl as pf
from protofl.federation.jobs.jobs import Evaluate
from protofl.federation.round.federation import Federation
from protofl.federation.round.participation import Participation

LOST = {
    ("before_upload", 4, 1): "left",
    ("after_server", 2, 0): "deadline",
    ("after_server", 2, 1): "stale",
    ("after_server", 5, 1): "refused",
    ("evaluate", 0, 0): "left",
    ("evaluate", 2, 2): "failed",
    ("evaluate", 4, 2): "deadline",
}
"""Losses of six clients in four rounds: {(stage, client, round): reason}."""

METHODS = {"ds-fl": {"public": 10}, "fedpkd": {"public": 10}, "fedproto": {}}
GIVEN = {"clients": 6, "rounds": 4, "dry_run": False}
FOLLOWS = ("ds-fl", "fedpkd")


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


def federation(plan, pool, participation=None):
    found = Federation(plan, pool, participation=participation)
    found.start_trial(0)
    return found, [found.round(number)[0] for number in range(plan.settings.rounds)]


def without(rows, *names):
    return [{k: v for k, v in row.items() if k not in names} for row in without_times(rows)]


def same_clients(folder, *federations):
    for client in range(6):
        files = []
        for number, federation in enumerate(federations):
            path = folder / f"{number}-{client}"
            federation.save_clients([client], {client: str(path)})
            files.append(path.read_bytes())
        assert files[0] == files[1], client


@pytest.mark.parametrize(
    ("method", "store", "lost"),
    quick(
        itertools.product(METHODS, ["memory", "disk"], ["never did it", "reply lost"]),
        ("ds-fl", "memory", "reply lost"),
        ("fedpkd", "disk", "reply lost"),
        ("fedproto", "memory", "never did it"),
        always=True,
    ),
)
def test_a_run_with_lost_clients_equals_its_replay(tmp_path, method, store, lost):
    options = GIVEN | METHODS[method] | {"client_store": store}
    plan = make_plan(method, on_lost_client="skip", **options)
    found, rows = federation(plan, LosingPool(plan, LOST, late=lost == "reply lost"))
    assert [row.absent for row in rows] == [{}, {"4": "left"}, {}, {}]
    unscored = [{"0": "left"}, {}, {"2": "failed", "4": "deadline"}, {}]
    assert [row.unscored for row in rows] == unscored
    assert [row.evaluated for row in rows] == [5, 6, 4, 6]
    assert [len(row.client_accuracies) for row in rows] == [5, 6, 4, 6]
    unfollowed = [{"2": "deadline"}, {"2": "stale", "5": "refused"}, {}, {}]
    assert [row.unfollowed for row in rows] == (unfollowed if method in FOLLOWS else [{}] * 4)
    assert [row.participants for row in rows] == [6, 5, 6, 6]

    plan = make_plan(method, **options)
    recorded = {(0, row.round): row.changed(answered=row.answered or [*range(6)]) for row in rows}
    replay = Participation(plan, recorded)
    again, lines = federation(plan, pf.backends.Host(plan), replay)
    assert without(rows, "absent") == without(lines)
    assert found.holders == again.holders
    same_clients(tmp_path, found, again)


def test_a_client_without_the_later_phase_keeps_its_upload(tmp_path):
    """Its upload counts as in a run without losses; it does not get the later phase's download."""
    plan = make_plan("ds-fl", on_lost_client="skip", **GIVEN | METHODS["ds-fl"])
    _, (line, *_) = federation(plan, pf.backends.Host(plan))
    plan = make_plan("ds-fl", on_lost_client="skip", **GIVEN | METHODS["ds-fl"] | {"rounds": 1})
    found, (row,) = federation(plan, LosingPool(plan, LOST))
    assert row.participants == line.participants == 6
    assert row.upload_bytes == line.upload_bytes
    per_client = line.download_bytes // 6
    assert row.download_bytes == line.download_bytes - per_client > 0
    assert found.holders == {0, 1, 3, 4, 5}


def test_unseen_clients_may_be_lost():
    options = GIVEN | {"rounds": 2, "unseen": 2.0, "fine_tune": 1}
    plan = make_plan("fedproto", on_lost_client="skip", **options)
    one, other = Participation(plan).members.unseen
    lost = {("evaluate", one, 1): "left"}
    _, (first, last) = federation(plan, LosingPool(plan, lost))
    assert [*first.client_unseen_accuracies] == [str(one), str(other)]
    assert [*last.client_unseen_accuracies] == [*last.client_fine_tuned_accuracies] == [str(other)]
    assert last.unscored == {str(one): "left"} and last.evaluated == 4


def test_an_evaluation_without_anybody_ends_the_run():
    plan = make_plan("fedproto", on_lost_client="skip", **GIVEN | {"rounds": 1})
    lost = {("evaluate", client, 0): "left" for client in range(6)}
    with pytest.raises(pf.RunFailure, match="no client was evaluated in round 1") as caught:
        federation(plan, LosingPool(plan, lost))
    assert caught.value.near.startswith("lost: 0 (left), 1 (left)")


@pytest.mark.parametrize("stage", ["after_server", "evaluate"])
def test_without_the_option_it_ends_the_run(stage):
    plan = make_plan("ds-fl", **GIVEN | METHODS["ds-fl"])
    with pytest.raises(pf.RunFailure, match="client 3 in round 1: its host answered with a reply"):
        federation(plan, LosingPool(plan, {(stage, 3, 0): "left"}))


class Breaks:
    """A method whose inference raises an error for client 2 after round 1."""

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload()

    @pf.hookimpl
    def inference(self, client, x):
        if (client.id, client.round) == (2, 1):
            raise ValueError("no")
        return client.head(client.features(x))


def test_a_hook_that_fails_in_an_evaluation_leaves_its_client_out():
    plan = make_plan(Breaks, on_lost_client="skip", **GIVEN | {"rounds": 2})
    _, (_, row) = federation(plan, pf.backends.Host(plan))
    assert row.unscored == {"2": "failed"} and row.evaluated == 5
    assert "ValueError: no" in row.failures["2"] and row.participants == 6


class Handle:
    """A host that ends during each job that `ends` names."""

    def __init__(self, plan, ends):
        self.host, self.ends = pf.backends.Host(plan), ends

    def do(self, job):
        at = getattr(job, "when", job.op), getattr(job, "client", None), getattr(job, "round", None)
        if at in self.ends and (isinstance(job, Evaluate) or at[0] == "after_server"):
            raise pf.backends.HostFailure(f"the host ended during: {job}")
        return self.host.handle(job)

    def close(self):
        pass


@pytest.mark.slow
def test_a_client_that_ends_three_hosts_after_its_upload_is_left_out(tmp_path):
    options = GIVEN | METHODS["ds-fl"]
    plan = make_plan("ds-fl", on_lost_client="skip", **options)
    ends = {("after_server", 2, 1): "", ("evaluate", 3, 1): ""}
    pool = pf.backends.Dispatcher(lambda number: Handle(plan, ends), 1)
    found, rows = federation(plan, pool)
    assert rows[1].unfollowed == {"2": "failed"} and rows[1].unscored == {"3": "failed"}
    plan = make_plan("ds-fl", **options)
    recorded = {(0, row.round): row.changed(answered=[*range(6)]) for row in rows}
    again, lines = federation(plan, pf.backends.Host(plan), Participation(plan, recorded))
    assert without(rows) == without(lines)
    same_clients(tmp_path, found, again)


# --- runs -----------------------------------------------------------------------------------------


class Losing:
    """A backend whose pool loses clients as `LOST` says."""

    @pf.hookimpl
    def open_pool(self, plan):
        return LosingPool(plan, LOST)


def checkpoint(folder):
    return {path.name: path.read_bytes() for path in (folder / "checkpoint").glob("*.safetensors")}


@pytest.mark.always
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedpkd", "ds-fl"])
def test_runs_are_replayed_and_resumed_with_lost_clients(tmp_path, toys, method):
    class Killed(BaseException):
        pass

    def kill(event):
        if isinstance(event, pf.events.RoundStarted) and event.round == 2:
            raise Killed

    given = GIVEN | {"public": 10}
    skip = {"backend": Losing, "on_lost_client": "skip"}
    whole = train(method, tmp_path / "whole", **given | skip)
    assert [len(row.unfollowed) for row in whole.record] == [1, 2, 0, 0]
    assert [len(row.unscored) for row in whole.record] == [1, 0, 2, 0]
    with pytest.raises(Killed):
        train(method, tmp_path / "cut", **given | skip, progress=kill)
    again = train(method, tmp_path / "cut", resume=True, backend=Losing)
    assert without_times(again.record) == without_times(whole.record)
    replay = train(method, tmp_path / "replay", participants_from=whole.folder, **given)
    assert without(whole.record, "absent") == without(replay.record)
    assert checkpoint(whole.folder) == checkpoint(again.folder) == checkpoint(replay.folder)
    twice = train(method, tmp_path / "twice", participants_from=replay.folder, **given)
    assert without_times(twice.record) == without_times(replay.record)
