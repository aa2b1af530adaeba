"""Tests of pools that know the reachable clients: a round samples among them, or waits."""

from __future__ import annotations

import numpy as np
import pytest
from fake_pools import PresentPool
from runtime_toys import install, make_plan, train, without_times

import protofl as pf
from protofl.federation.round import participation
from protofl.federation.round.federation import Federation

GIVEN = {"clients": 8, "rounds": 4, "participation": 0.5, "dry_run": False}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(participation, "PAUSE", 0.01)


def rounds(plan, pool):
    federation = Federation(plan, pool)
    federation.start_trial(0)
    return [federation.round(number)[0] for number in range(plan.settings.rounds)]


def answered(plan, rows):
    """Return the participants of each round, also if the record does not name them."""
    draw = participation.default_participants
    return [row.answered or draw(plan.seed(0), row.round, 8, 4) for row in rows]


def test_a_round_samples_among_the_present():
    plan = make_plan("fedproto", **GIVEN)
    looks = [{0, 1, 2, 3, 4, 5}, {7, 3}, {*range(8)}, {4, 5, 6, 7, 99, -1}]
    rows = rounds(plan, PresentPool(plan, looks))
    found = answered(plan, rows)
    assert [len(clients) for clients in found] == [4, 2, 4, 4]
    for clients, there in zip(found, looks, strict=True):
        assert {*clients} <= there & {*range(8)}
    draw = pf.numpy_stream(plan.seed(0), "participants", 0)
    assert found[0] == sorted(draw.choice(np.arange(6), 4, replace=False).tolist())
    assert [row.evaluated for row in rows] == [8] * 4


def test_if_all_are_there_nothing_changes():
    plan = make_plan("fedproto", **GIVEN)
    rows = rounds(plan, PresentPool(plan, [range(8)]))
    assert without_times(rows) == without_times(rounds(plan, pf.backends.Host(plan)))


def test_a_round_waits_for_enough_clients():
    plan = make_plan("fedproto", min_clients=3, **GIVEN | {"rounds": 1})
    pool = PresentPool(plan, [set(), {1}, {1, 2}, {1, 2, 6}])
    (row,) = rounds(plan, pool)
    assert row.answered == [1, 2, 6] and pool.looks == 4


def test_a_round_does_not_wait_for_ever():
    given = {"min_clients": 3, "wait_for_clients": 0.05}
    plan = make_plan("fedproto", **GIVEN | given)
    with pytest.raises(pf.RunFailure, match="2 of 8 clients can be reached in round 1") as caught:
        rounds(plan, PresentPool(plan, [{4, 1}]))
    assert "--min-clients asks for 3" in caught.value.what
    assert caught.value.near == "missing: 0, 2, 3, 5, 6, 7"
    assert "--wait-for-clients" in caught.value.do
    plan = make_plan("fedproto", min_clients=0, wait_for_clients=0, **GIVEN)
    with pytest.raises(pf.RunFailure, match=r"0 of 8 clients .* asks for 1"):
        rounds(plan, PresentPool(plan, [set()]))


def test_unseen_clients_and_those_that_join_later_are_not_waited_for():
    options = {"unseen": 2.0, "join_round": "3:0.5", "wait_for_clients": 0}
    plan = make_plan("fedproto", **GIVEN | options)
    members = participation.Participation(plan).members
    rows = rounds(plan, PresentPool(plan, [range(8)]))
    assert {*rows[0].answered} <= {*members.numbers(0)}
    with pytest.raises(pf.RunFailure, match=f"0 of {len(members.numbers(0))} clients"):
        rounds(plan, PresentPool(plan, [members.unseen]))


class Away:
    """A backend with two reachable clients."""

    @pf.hookimpl
    def open_pool(self, plan):
        return PresentPool(plan, [{0, 2}])


@pytest.mark.slow
def test_a_replay_needs_no_presence(tmp_path, monkeypatch):
    install(monkeypatch)
    run = train("fedproto", tmp_path / "run", backend=Away, **GIVEN | {"participation": 1.0})
    assert [row.answered for row in run.record] == [[0, 2]] * 4
    replay = train(
        "fedproto",
        tmp_path / "replay",
        participants_from=run.folder,
        **GIVEN | {"participation": 1.0},
    )
    assert without_times(run.record) == without_times(replay.record)
    again = train(
        "fedproto",
        tmp_path / "again",
        backend=Away,
        participants_from=replay.folder,
        **GIVEN | {"participation": 1.0},
    )
    assert without_times(again.record) == without_times(replay.record)


@pytest.mark.parametrize("value", [-1, "soon", float("nan")])
def test_the_limit_is_a_number_of_seconds(value):
    with pytest.raises(pf.UsageError, match="wait-for-clients"):
        make_plan("fedproto", wait_for_clients=value, **GIVEN)
