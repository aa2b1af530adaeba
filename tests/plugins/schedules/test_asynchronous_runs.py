"""Tests of asynchronous runs: same numbers as rounds, in sequence, on any backend, after kills."""

from __future__ import annotations

import heapq
import json
import random

import numpy as np
import pytest
import torch
from killed_runs import Place, killed
from runtime_toys import install, train
from schedule_toys import ASYNC, METHODS, Alike, Going, Own, federation_of, place_of
from slowness import quick

import protofl as pf
from protofl.system.files.tensors import read_tensors
from protofl.testing.toy_plugins import Weights


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


def rows_of(folder):
    """Return the lines of a record without wall-clock times, and without what rounds lack."""
    rows = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        row = {k: v for k, v in row.items() if k not in ("time", "seconds", "schedule")}
        row["virtual"] = {k: v for k, v in row["virtual"].items() if k != "seconds"}
        rows.append(row)
    return rows


def weights_of(folder):
    """Return {client or server: its tensors as bytes and its state} of the last commit."""
    manifest = json.loads((folder / "checkpoint/manifest.json").read_text())
    table = (folder / "checkpoint" / manifest["clients"]).read_text()
    files = {who: name for who, (name, *_) in json.loads(table).items()}
    result = {}
    for who, name in (files | {"server": manifest["server"]}).items():
        tensors, state = read_tensors(folder / "checkpoint" / name)
        result[who] = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}, state
    return result


def assert_equal(one, two, *, schedules=True):
    """Compare records and weights; without the schedules' own part if only one run has it."""
    assert rows_of(one) == rows_of(two)
    first, second = weights_of(one), weights_of(two)
    if not schedules:
        first.pop("server"), second.pop("server")
        states = [global_state(folder) for folder in (one, two)]
        assert states[0] == states[1]
    assert first == second


def global_state(folder):
    """Return the server's global state and modules of the last commit."""
    weights = pf.read_weights(folder, "last").server
    return {name: tensor.contiguous().numpy().tobytes() for name, tensor in weights.items()}


@pytest.mark.slow
@pytest.mark.parametrize("method", quick(METHODS, "fedproto"))
def test_a_buffer_of_all_clients_equals_rounds_to_the_last_bit(toys, tmp_path, method):
    given = METHODS[method] | {"clients": 6, "rounds": 4, "devices": Alike, "dry_run": True}
    train(method, tmp_path / "rounds", **given)
    train(method, tmp_path / "buffer", timing="buffered", set={"timing.buffer": 6}, **given)
    assert_equal(tmp_path / "rounds", tmp_path / "buffer", schedules=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "schedule"),
    quick([(m, s) for m in METHODS for s in ("buffered", "continuous")], ("fedavg", "continuous")),
)
def test_one_client_in_training_equals_training_in_sequence(toys, tmp_path, method, schedule):
    given = METHODS[method] | {"clients": 6, "rounds": 8, "devices": Own, "participation": 1 / 6}
    train(method, tmp_path / "rounds", **given)
    options = {"timing.concurrency": 1, "timing.mixing": 1}
    train(method, tmp_path / "one", timing=schedule, set=options, **given)
    assert_equal(tmp_path / "rounds", tmp_path / "one", schedules=False)
    staleness = [row["schedule"]["staleness"]["max"] for row in pf.load_run(tmp_path / "one").rows]
    assert staleness == [0] * 8


# --- any backend, and kills -----------------------------------------------------------------------

BUSY = ASYNC | {"set": {"timing.buffer": 2, "timing.concurrency": 4}}
"""Two uploads of four clients in training: most are stale."""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_local_and_processes_agree_to_the_last_bit(toys, tmp_path, method):
    given = METHODS[method] | BUSY | {"devices": place_of(Own), "rounds": 12}
    train(method, tmp_path / "local", **given)
    train(method, tmp_path / "processes", **given | {"backend": "process", "workers": 2})
    assert_equal(tmp_path / "local", tmp_path / "processes")


class Killed(BaseException):
    """Simulates a signal that ends the process at once."""


def killer(after):
    """Return a progress that kills a run at its n-th event."""
    left = [after]

    def progress(event):
        left[0] -= 1
        if left[0] < 0 and isinstance(event, KILLING):
            raise Killed

    return progress


KILLING = (pf.events.RoundStarted, pf.events.StageStarted, pf.events.ClientDone)


def killed_and_resumed(method, out, given, after):
    """Train a run that is killed at several events; return how often."""
    kills = 0
    while True:
        again = (
            {"resume": True, "devices": given["devices"]}
            if (out / "config.json").exists()
            else given
        )
        try:
            train(method, out, progress=killer(after), **again)
            return kills
        except Killed:
            kills += 1
            after += 3 * (kills % 2)


@pytest.mark.always  # finished steps are not lost
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "devices"),
    quick([(m, d) for m in METHODS for d in (Own, Going)], ("fedavg", Own), ("fedproto", Going)),
)
def test_a_run_that_was_killed_anywhere_equals_an_undisturbed_one(toys, tmp_path, method, devices):
    given = METHODS[method] | BUSY | {"devices": place_of(devices), "rounds": 6}
    train(method, tmp_path / "whole", **given)
    for after in (14, 17, 23):
        out = tmp_path / f"killed{after}"
        assert killed_and_resumed(method, out, given, after) > 1
        assert_equal(tmp_path / "whole", out)
        whole, resumed = (pf.load_run(tmp_path / place).rows for place in ("whole", out))
        assert [r["schedule"] for r in whole] == [r["schedule"] for r in resumed]
    assert any(row["schedule"]["staleness"]["max"] > 0 for row in whole)


@pytest.mark.slow
@pytest.mark.parametrize("steps", quick([7, 8], 7))
def test_a_run_with_more_steps_equals_one_that_had_them_from_the_beginning(toys, tmp_path, steps):
    given = BUSY | {"devices": place_of(Own), "rounds": 11}
    given["set"] = given["set"] | {"timing.eval_uploads": 4}  # every second step
    train("fedproto", tmp_path / "whole", **given)
    train("fedproto", tmp_path / "more", **given | {"rounds": steps})
    evaluated = [bool(row.evaluated) for row in pf.load_run(tmp_path / "more").rows]
    assert evaluated[:4] == [False, True, False, True] and evaluated[-1]
    train("fedproto", tmp_path / "more", resume=True, rounds=11, devices=given["devices"])
    assert_equal(tmp_path / "whole", tmp_path / "more")
    rows = [pf.load_run(tmp_path / place).rows for place in ("whole", "more")]
    assert [row.schedule for row in rows[0]] == [row.schedule for row in rows[1]]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", "process"])
@pytest.mark.parametrize("method", ["fedtgp", "fedavg"])
def test_runs_that_are_killed_at_random_moments_have_the_folders_of_others(
    tmp_path, method, backend
):
    words = ("--schedule=buffered", "--devices=tiers", "--set", "timing.buffer=2")
    words += ("--set", "timing.concurrency=3")
    place = Place(tmp_path, method, backend, rounds=9, words=words)
    chain = killed(place, 4, random.Random(f"{method} {backend}"))
    assert not chain.wrong
    assert sum(chain.kills.values()) >= 4


# --- events ---------------------------------------------------------------------------------------


def simulated(seconds, steps, clients, concurrency, buffer, choose):
    """Return the time and {client: version} of each step, by computing one event after another.

    Args:
        seconds: {client: seconds of a task}.
        steps: Steps of the server.
        clients: Clients M.
        concurrency: Clients in training.
        buffer: B.
        choose: The client sampler: (step, count, free clients, draw).
    """
    queue, waiting, now, version, result = [], {}, 0.0, 0, []
    tried, draw = set(), 0
    while version < steps:
        free = [c for c in range(clients) if c not in {e[1] for e in queue} | tried | {*waiting}]
        if count := min(concurrency - len(queue), len(free)):
            for client in choose(version, count, np.array(free), draw):
                heapq.heappush(queue, (now + seconds[client], client, version))
                tried.add(client)
            draw += 1
        now, client, downloaded = heapq.heappop(queue)
        waiting[client] = downloaded
        if len(waiting) == buffer:
            result.append((now, dict(sorted(waiting.items()))))
            waiting, version, tried, draw = {}, version + 1, set(), 0
    return result


@pytest.mark.parametrize(
    ("concurrency", "buffer"), quick([(4, 1), (4, 2), (3, 3), (6, 4), (2, 5)], (4, 2))
)
def test_events_are_those_of_a_simulation_one_after_another(concurrency, buffer):
    settings = {"concurrency": concurrency, "buffer": buffer}
    federation, _ = federation_of(settings=settings, rounds=15)
    rows = [federation.round(n)[0] for n in range(15)]
    seconds = {int(c): sum(p) for r in rows for c, p in r.virtual["clients"].items()}
    sampler = federation._who.sampler
    steps = simulated(seconds, 15, 6, concurrency, buffer, sampler.choose)
    for number, (row, (time, versions)) in enumerate(zip(rows, steps, strict=True)):
        assert [*map(int, row.virtual["clients"])] == [*versions]
        ages = [number - version for version in versions.values()]
        assert row.schedule["staleness"] == {"mean": sum(ages) / len(ages), "max": max(ages)}
        assert row.schedule["time"] == row.virtual["elapsed"] == pytest.approx(time, rel=1e-4)
        assert (row.schedule["version"], row.schedule["uploads"]) == (
            number + 1,
            buffer * (number + 1),
        )
        before = rows[number - 1].schedule["time"] if number else 0
        if row.schedule["time"] > before:
            assert 0 <= row.schedule["idle"] <= 1
        else:
            assert row.schedule["idle"] is None


def test_trainings_under_way_are_computed_together():
    settings = {"concurrency": 4}
    federation, pool = federation_of(
        devices=Alike, settings=settings, timing="continuous", rounds=12
    )
    for number in range(12):
        federation.round(number)
    # Four begin; after each of their uploads another begins, and none of them can be the next.
    assert pool.together == [4, 4, 4]


def test_clients_in_training_take_over_models_that_are_free(monkeypatch):
    """Building a net costs more than the training of a small one."""
    built, build = [], pf.backends.Plan.initial_model
    counting = lambda plan, *who: built.append(who) or build(plan, *who)  # noqa: E731
    monkeypatch.setattr(pf.backends.Plan, "initial_model", counting)
    federation, pool = federation_of("fedproto", settings={"buffer": 2}, rounds=12)
    for number in range(12):
        federation.round(number)
    assert sum(pool.together) > 24
    assert len(built) <= 14


def test_a_client_that_leaves_is_absent_and_comes_again():
    federation, _ = federation_of(devices=Going, settings={"buffer": 2}, rounds=12)
    rows = [federation.round(n)[0] for n in range(12)]
    left = {c for row in rows for c, why in row.absent.items() if why == "left"}
    assert left & {c for row in rows for c in row.virtual["clients"]}


def test_stale_uploads_beyond_the_bound_are_dropped_and_leave_the_client_as_it_was():
    settings = {"concurrency": 6, "max_staleness": 1}
    federation, pool = federation_of("fedproto", settings=settings, timing="continuous", rounds=14)
    trained = set()
    for number in range(14):
        row, clients = federation.round(number)
        trained |= {*clients}
        assert row.schedule["staleness"]["max"] <= 1
        assert not {*map(int, row.absent)} & {*clients}
    assert pool.trained == trained != {*range(6)}


class Bad(Weights):
    """All weights are averaged; client 2 sends NaN in the second step, and client 3 fails."""

    asynchronous = "versions"

    @pf.hookimpl
    def upload_payload(self, client):
        """Send the weights."""
        if client.id == 3 and client.round == 2:
            raise ValueError("out of power")
        result = super().upload_payload(client)
        if client.id == 2 and client.round == 1:
            result = pf.Payload({key: value * torch.nan for key, value in result.items()})
        return result


@pytest.mark.slow
def test_lost_clients_and_bad_uploads_are_left_out_as_in_rounds():
    skip = {"on_bad_upload": "skip", "on_lost_client": "skip", "rounds": 4, "models": "toy1"}
    lines = []
    for timing, settings in (("rounds", {}), ("buffered", {"buffer": 6})):
        given = {"settings": settings, "timing": timing}
        federation, _ = federation_of(Bad, Own, **given, **skip)
        rows = [dict(federation.round(n)[0]) for n in range(4)]
        keys = ("absent", "skipped_uploads", "test_accuracy", "train_loss", "participants")
        lines.append([{key: row.get(key) for key in keys} for row in rows])
    assert lines[0] == lines[1]
    absent = [row["absent"] for row in lines[0]]
    assert absent[1:3] == [{"2": "skipped"}, {"3": "failed"}]


def test_the_server_acts_on_what_there_is_if_nothing_more_can_come():
    skip = {"on_bad_upload": "skip", "on_lost_client": "skip", "models": "toy1"}
    federation, _ = federation_of(Bad, Own, settings={"buffer": 2, "concurrency": 4}, **skip)
    rows = [federation.round(n)[0] for n in range(7)]
    assert all(row.participants == 2 for row in rows)
    assert any(row.get("absent") for row in rows)
