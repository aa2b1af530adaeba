"""Tests of virtual time: exact against slow arithmetic; absent clients count as never asked."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from runtime_toys import GIVEN, PARTS, install, make_plan, train, without_times

import protofl as pf
from protofl.backends import Absent, Plan
from protofl.federation.jobs.jobs import Train
from protofl.federation.round.federation import Federation
from protofl.federation.round.participation import Participation
from protofl.federation.time.virtual_clock import VirtualClock, end_of_round

OPTIONS = {"clients": 8, "rounds": 4, "participation": 0.5, "dry_run": False}
VIRTUAL = ("absent", "virtual")


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


class Interrupted(BaseException):
    pass


def interrupted(trial, round):
    def stop(event):
        if isinstance(event, pf.events.RoundStarted):
            if (event.trial, event.round) == (trial, round):
                raise Interrupted

    return stop


# --- the end of a round ---------------------------------------------------------------------------


def stepped(arrivals, stays, awaited, deadline):
    """Return the end of a round and the absent clients, computed moment by moment."""
    waiting, answered, why, now = {*arrivals}, [], {}, 0
    moments = sorted({t for t in (*arrivals.values(), *stays.values(), deadline) if t < math.inf})
    for moment in moments:
        if len(answered) == awaited or not waiting:
            break
        now = moment
        for client in sorted(waiting):  # replies that arrive at this moment, in order
            if arrivals[client] == moment and stays[client] >= moment:
                if len(answered) < awaited:
                    answered.append(client)
                    waiting.discard(client)
        if len(answered) == awaited:
            break
        for client in sorted(waiting):
            if stays[client] == moment:
                waiting.discard(client)
                why[client] = "left"
        if moment == deadline and waiting:
            break
    end = now if arrivals else 0
    for client in waiting:
        gone = stays[client] < arrivals[client] and stays[client] <= end
        why[client] = "left" if gone else "late" if len(answered) == awaited else "deadline"
    return end, dict(sorted(why.items()))


def test_the_end_of_a_round_is_that_of_a_server_that_looks_at_every_moment():
    numbers = np.random.default_rng(0)
    reasons = set()
    for _ in range(3000):
        count = int(numbers.integers(1, 7))
        arrivals = {c: float(t) for c, t in enumerate(numbers.integers(1, 9, count))}
        away = numbers.integers(1, 12, count)
        stays = {c: float(t) if t < 9 else math.inf for c, t in enumerate(away)}
        awaited = int(numbers.integers(1, count + 1))
        deadline = float(numbers.integers(1, 12))
        given = (arrivals, stays, awaited, deadline if deadline < 10 else math.inf)
        assert end_of_round(*given) == stepped(*given), given
        reasons |= {*end_of_round(*given)[1].values()}
    assert reasons == {"left", "late", "deadline"}
    assert end_of_round({}, {}, 0, 5.0) == (0.0, {})
    assert end_of_round({}, {}, 0, math.inf) == (0.0, {})


# --- the arithmetic of a run ----------------------------------------------------------------------


class Watched(pf.backends.Host):
    """A host that keeps its training jobs and replies."""

    def __init__(self, plan):
        super().__init__(plan)
        self.done = []

    def handle(self, job):
        reply = super().handle(job)
        if isinstance(job, Train):
            self.done.append((job, reply))
        return reply


def forward_of_toy(client, classes=4, K=6):
    """Return the FLOPs of the dense layers; a multiply-add counts as two operations."""
    width = (8, 5)[client % 2]
    return 2 * (64 * width + width * K + K * classes)


def figures(client, seed=0):
    """Return the speed, rates and latency of a client's device, as fractions."""
    speed, down, up, delay = 10_000 * (client + 1), 8_000 + 100 * client, 4_000, 0.25 * client
    return [Fraction(value) for value in (speed, down, up, delay)]


class Ladder:
    """A device model in which a higher client number means a faster device and more latency."""

    @pf.hookimpl
    def device(self, client):
        names = ("flops", "download", "upload", "latency")
        return dict(zip(names, map(float, figures(client)), strict=True))


def plan_of(method, devices=Ladder, **options):
    given = GIVEN | OPTIONS | {"devices": "own"} | options | {"method": "main"}
    if isinstance(method, str):
        return Plan.make(given | {"method": method}, PARTS | {("device-model", "own"): devices})
    return Plan.make(given, PARTS | {("device-model", "own"): devices, ("method", "main"): method})


def rounds_of(plan, host=None, participation=None):
    federation = Federation(plan, host or pf.backends.Host(plan), participation=participation)
    federation.start_trial(0)
    return [federation.round(number)[0] for number in range(plan.settings.rounds)], federation


METHODS = {"fedproto": {}, "ds-fl": {"public": 16}, "fedavg": {"models": "toy1"}, "fml": {}}


@pytest.mark.parametrize("method", METHODS)
def test_a_round_takes_as_long_as_its_parts_exactly(method):
    plan = plan_of(method, **METHODS[method])
    host = Watched(plan)
    rows, _ = rounds_of(plan, host)
    elapsed = Fraction(0)
    extra = 0 if method != "fml" else forward_of_auxiliary(plan)
    for number, row in enumerate(rows):
        parts: dict[int, list[Fraction]] = {}
        for job, reply in host.done:
            if job.round != number:
                continue
            speed, down, up, delay = figures(job.client)
            client = job.client if method != "fedavg" else 0
            work = 3 * (forward_of_toy(client) + extra) * reply.samples
            spent = parts.setdefault(job.client, [])
            spent += [delay + Fraction(8 * len(job.blob)) / down, Fraction(work) / speed]
            if job.when == "before_upload":
                spent.append(delay + Fraction(8 * len(reply.blob)) / up)
        first = max(sum(own[:3]) for own in parts.values())
        second = max((sum(own[3:]) for own in parts.values()), default=0)
        elapsed += first + second
        found = row["virtual"]
        assert found["seconds"] == pytest.approx(float(first + second), rel=1e-12)
        assert found["elapsed"] == pytest.approx(float(elapsed), rel=1e-12)
        assert {*found["clients"]} == {*map(str, parts)}
        for client, own in parts.items():
            own = own if len(own) == 3 else [*own[:3], own[3] + own[4]]
            assert found["clients"][str(client)] == pytest.approx([*map(float, own)], rel=1e-5)
        assert (len(own) == 4) == (method == "ds-fl")
    assert row["download_bytes"] or method == "local"


def forward_of_auxiliary(plan):
    """Return the FLOPs of the auxiliary model of ``fml``, the group's first architecture."""
    return forward_of_toy(0)


# --- absent clients -------------------------------------------------------------------------------


def shaken(seed, waits=0.0):
    """Return a device model of heterogeneous clients, which come and go if ``waits`` is set."""

    class Shaken:
        """Heterogeneous clients."""

        @pf.hookimpl
        def device(self, generator):
            speed, down, up = 1e5 * np.exp(generator.standard_normal(3))
            return {"flops": speed, "download": down, "upload": up, "latency": 0.1}

        if waits:

            @pf.hookimpl
            def presence(self, num_clients, seconds, seed):
                slot = int(seconds // waits)
                there = pf.numpy_stream(seed, "toy", slot).random(num_clients) < 0.8
                return there, np.full(num_clients, (slot + 1) * waits)

    return Shaken


LIMITS = {
    "deadline": ({"deadline": True}, 0.0, {"deadline"}),
    "the fastest": ({"over_select": 0.6}, 0.0, {"late"}),
    "comings and goings": ({}, 4.0, {"left"}),
    "all": ({"deadline": True, "over_select": 0.6, "sampling": "loss"}, 4.0, set()),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "what"),
    [*(("fedproto", what) for what in LIMITS), ("ds-fl", "all"), ("fedavg", "all")],
)
def test_whoever_misses_a_round_is_as_if_never_asked(tmp_path, method, what):
    limits, waits, expected = LIMITS[what]
    options = METHODS[method] | {"min_clients": 0, "rounds": 6}
    if "deadline" in limits:
        limits = limits | {"deadline": {"fedproto": 0.55, "ds-fl": 0.45, "fedavg": 1.3}[method]}
    plan = plan_of(method, shaken(1, waits), **limits, **options)
    rows, found = rounds_of(plan)
    reasons = {reason for row in rows for reason in row.get("absent", {}).values()}
    assert reasons >= expected and reasons, reasons
    answered = {(0, n): row for n, row in enumerate(rows) if "answered" in row}

    replayed = make_plan(method, **OPTIONS | options)
    again, replay = rounds_of(replayed, participation=Participation(replayed, answered))
    known = [{k: v for k, v in row.items() if k not in (*VIRTUAL, "client_losses")} for row in rows]
    assert without_times(known) == without_times(again)
    for one, federation in (("found", found), ("replayed", replay)):
        federation.save_clients(range(8), {c: str(tmp_path / f"{one}-{c}") for c in range(8)})
    for client in range(8):
        files = [(tmp_path / f"{one}-{client}").read_bytes() for one in ("found", "replayed")]
        assert files[0] == files[1]


def test_who_cannot_make_it_does_not_train_and_nothing_else_changes(monkeypatch):
    plan = plan_of("fedproto", shaken(1), deadline=0.53, min_clients=0)
    host = Watched(plan)
    rows, _ = rounds_of(plan, host)
    trained = {(job.round, job.client) for job, _ in host.done}
    absent = {(n, int(c)) for n, row in enumerate(rows) for c in row.get("absent", ())}
    idle = absent - trained
    assert idle and trained & absent, "some need not train, some have to, to be known as late"
    for number, client in absent:
        parts = rows[number]["virtual"]["clients"][str(client)]
        assert len(parts) == (1 if (number, client) in idle else 3)

    monkeypatch.setattr(VirtualClock, "_is_hopeless", lambda self, client: False)
    slow = Watched(plan)
    others, _ = rounds_of(plan, slow)
    assert len(slow.done) == len(host.done) + len(idle)
    for row, other in zip(rows, others, strict=True):
        for line in (row, other):
            for client in line["answered"] if "answered" in line else ():
                assert str(client) in line["virtual"]["clients"]
            del line["virtual"]["clients"]
    assert without_times(rows) == without_times(others)


def test_more_are_asked_than_are_awaited():
    plan = plan_of("fedproto", Ladder, over_select=0.5)
    rows, _ = rounds_of(plan)
    for row in rows:
        asked = {int(c): sum(own) for c, own in row["virtual"]["clients"].items()}
        answered = row["answered"]
        assert len(asked) == 6 and len(answered) == row["participants"] == 4
        assert sorted(answered) == sorted(sorted(asked, key=lambda c: (asked[c], c))[:4])
        assert row["virtual"]["seconds"] == pytest.approx(max(asked[c] for c in answered), rel=1e-5)


def test_refused_uploads_and_the_clock_together():
    """A bad upload is skipped if it arrives in time; a late upload is not checked."""

    class Broken:
        """Clients 1 and 7 send NaN."""

        @pf.hookimpl
        def upload_payload(self, client):
            import torch

            bad = client.id in (1, 7)
            return pf.Payload(x=torch.tensor(math.nan if bad else 1.0))

    plan = plan_of(
        Broken, participation=1.0, over_select=0, on_bad_upload="skip", deadline=3.8, rounds=1
    )
    (row,), _ = rounds_of(plan)
    assert row["absent"]["1"] == "skipped" and row["absent"]["7"] == "deadline"
    assert row["skipped_uploads"] == [1]


def test_a_client_whose_worker_ends_is_no_part_of_virtual_time():
    """The machine lost the client, not the simulated world, so the server does not wait for it."""

    class Losing(pf.backends.Host):
        def handle(self, job):
            if isinstance(job, Train) and job.client == 7:
                return Absent(reason="failed")
            return super().handle(job)

    given = {"participation": 1.0, "on_lost_client": "skip", "deadline": 50.0, "rounds": 2}
    plan = plan_of("fedproto", **given)
    rows, _ = rounds_of(plan, Losing(plan))
    whole, _ = rounds_of(plan_of("fedproto", **given))
    for row, other in zip(rows, whole, strict=True):
        assert row["absent"] == {"7": "failed"} and "absent" not in other
        clients = row["virtual"]["clients"]
        assert {*clients} == {*map(str, range(7))} < {*other["virtual"]["clients"]}
        assert row["virtual"]["seconds"] == pytest.approx(max(map(sum, clients.values())), rel=1e-5)
        assert row["virtual"]["seconds"] < other["virtual"]["seconds"]


# --- waiting --------------------------------------------------------------------------------------


def comings(*changes):
    """Return a device model whose clients come or go at these times; at first none is there."""

    class Comings(Ladder):
        @pf.hookimpl
        def presence(self, num_clients, seconds):
            place = sum(change <= seconds for change in changes)
            until = changes[place] if place < len(changes) else math.inf
            return np.full(num_clients, place % 2 == 1), np.full(num_clients, until)

    return Comings


def test_a_server_waits_until_clients_are_there():
    whole, _ = rounds_of(plan_of("fedproto", rounds=2))
    first = whole[0]["virtual"]["seconds"]
    rows, _ = rounds_of(plan_of("fedproto", comings(1000.0), rounds=2))
    assert rows[0]["virtual"]["seconds"] == rows[0]["virtual"]["elapsed"] == 1000 + first
    known = [{k: v for k, v in row.items() if k != "virtual"} for row in (*whole, *rows)]
    assert without_times(known[:2]) == without_times(known[2:])
    with pytest.raises(pf.RunFailure, match="0 of 8 clients are there from 1012 s on"):
        rounds_of(plan_of("fedproto", comings(1000.0, 1012.0), rounds=20, min_clients=0))


def test_nobody_ever_comes():
    with pytest.raises(
        pf.RunFailure, match=r"device-model/own: 0 of 8 clients are there from 0 s on"
    ):
        rounds_of(plan_of("fedproto", comings(math.inf)))


def test_all_leave_in_the_middle():
    plan = plan_of("fedproto", comings(10.0, 10.5, 99.0), rounds=2, min_clients=0)
    rows, _ = rounds_of(plan)
    assert {*rows[0]["absent"].values()} == {"left"}
    assert rows[0]["virtual"]["elapsed"] == 10.5 and rows[0]["answered"] == []
    assert rows[1]["virtual"]["elapsed"] > 99 and "absent" not in rows[1]
    with pytest.raises(pf.RunFailure, match="0 of 4 clients answered in round 1") as caught:
        rounds_of(plan_of("fedproto", comings(10.0, 10.5, 99.0)))
    assert "when they are back" in caught.value.do


def test_a_deadline_that_everybody_misses():
    """The advice is a longer deadline, because a resumed run would miss this one again."""
    with pytest.raises(pf.RunFailure, match="0 of 4 clients answered in round 1") as caught:
        rounds_of(plan_of("fedproto", deadline=1e-6))
    assert caught.value.do.endswith("or begin again with a longer --deadline")


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.always
@pytest.mark.slow
def test_virtual_time_goes_on_to_the_bit(tmp_path, toys):
    options = OPTIONS | {"devices": "tiers", "deadline": 0.3, "over_select": 0.3, "trials": 2}
    options |= {"min_clients": 0, "set": {"devices.available": 0.7, "devices.slot": 0.4}}
    whole = train("fedproto", tmp_path / "whole", **options)
    assert any("absent" in row for row in whole.record)
    for trial in range(2):
        own = [row["virtual"] for row in whole.record if row["trial"] == trial]
        sums = [*itertools.accumulate(found["seconds"] for found in own)]
        assert [found["elapsed"] for found in own] == pytest.approx(sums, rel=1e-12)
    last = [whole.record[n]["virtual"]["elapsed"] for n in (3, 7)]
    assert [trial["virtual_seconds"] for trial in whole.summary["trials"]] == last
    for every, at in ((1, (0, 3)), (2, (1, 3))):
        out = tmp_path / f"run{every}"
        with pytest.raises(Interrupted):
            train("fedproto", out, progress=interrupted(*at), checkpoint_every=every, **options)
        again = train("fedproto", out, resume=True)
        assert without_times(again.record) == without_times(whole.record)
    replay = train(
        "fedproto", tmp_path / "replay", participants_from=whole.folder, **OPTIONS, trials=2
    )
    names = (*VIRTUAL, "time", "seconds")
    known = [
        [{k: v for k, v in row.items() if k not in names} for row in run.record]
        for run in (whole, replay)
    ]
    assert known[0] == known[1]


@pytest.mark.slow
def test_a_finished_run_goes_on_in_virtual_time(tmp_path, toys):
    options = OPTIONS | {"devices": "tiers", "sampling": "loss", "over_select": 0.3}
    whole = train("fedproto", tmp_path / "whole", **options)
    train("fedproto", tmp_path / "run", **options | {"rounds": 2})
    again = train("fedproto", tmp_path / "run", resume=True, rounds=4)
    assert without_times(again.record) == without_times(whole.record)
    assert again.summary["virtual_seconds"] == whole.summary["virtual_seconds"]


@pytest.mark.slow
def test_virtual_time_is_the_same_in_other_processes(tmp_path, toys):
    given = {"models": "cnn4", "dataset": "digits", "subset": 200, "feature_dim": 16, "rounds": 3}
    given |= {"clients": 6, "participation": 0.5, "devices": "tiers", "over_select": 0.5}
    given |= {"dry_run": False, "device": "cpu", "batch_size": 20}
    runs = [
        pf.run("fedproto", out=tmp_path / backend, backend=backend, workers=2, **given)
        for backend in ("local", "process")
    ]
    assert without_times(runs[0].record) == without_times(runs[1].record)


@pytest.mark.slow
def test_a_replay_waits_for_everybody(tmp_path, toys):
    options = OPTIONS | {"devices": "tiers", "min_clients": 0}
    run = train("fedproto", tmp_path / "run", deadline=0.1, **options)
    assert {r for row in run.record for r in row.get("absent", {}).values()} == {"deadline"}
    assert max(row["virtual"]["seconds"] for row in run.record) == 0.1
    replay = train(
        "fedproto", tmp_path / "b", participants_from=run.folder, deadline=0.001, **options
    )
    for row, other in zip(run.record, replay.record, strict=True):
        assert "absent" not in other
        clients = {
            c: own
            for c, own in row["virtual"]["clients"].items()
            if c in {*map(str, row.get("answered", map(int, row["virtual"]["clients"])))}
        }
        assert other["virtual"]["clients"] == clients


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deadline": 3}, "--deadline 3 needs to know how long clients take"),
        ({"over_select": 0.3}, r"--over-select 0\.3 needs to know how long clients take"),
        ({"set": {"devices.slot": 3}}, "this run has no device model"),
        (
            {"devices": "tiers", "over_select": 0.1},
            r"--over-select 0\.1 samples no further clients",
        ),
        (
            {"devices": "tiers", "over_select": 1, "participation": 1},
            "--over-select 1 samples no",
        ),
        ({"devices": "tiers", "deadline": 0}, "--deadline 0 is not possible"),
        ({"min_clients": 0, "eval_clients": "participants"}, "no client may be left to evaluate"),
        ({"devices": "tires"}, "unknown device-model 'tires'"),
        ({"devices": "trace"}, "device-model 'trace' needs an argument"),
        ({"devices": "trace:none.csv"}, r"the trace .*none\.csv cannot be read"),
        ({"sampling": "los"}, "unknown client-sampler 'los'"),
    ],
)
def test_what_does_not_go_together_is_found_before_a_run(tmp_path, toys, options, words):
    with pytest.raises(pf.UsageError, match=words):
        train("fedproto", tmp_path / "run", **OPTIONS | options)
    assert not (tmp_path / "run").exists()


# --- invalid plugins ------------------------------------------------------------------------------

FINE = {"flops": 1.0, "download": 1.0, "upload": 1.0, "latency": 0.0}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "it returns NoneType"),
        ({"flops": 1.0}, "it returns flops"),
        (FINE | {"flops": 0}, "flops is 0"),
        (FINE | {"flops": 1e-311}, "flops is 1e-311"),
        (FINE | {"upload": math.nan}, "upload is nan"),
        (FINE | {"download": math.inf}, "download is inf"),
        (FINE | {"latency": -1}, "latency is -1"),
        (FINE | {"latency": True}, "latency is True"),
        (FINE | {"flops": "fast"}, "flops is 'fast'"),
    ],
)
def test_what_is_no_device(found, words):
    class Odd:
        @pf.hookimpl
        def device(self, client):
            return found

    with pytest.raises(pf.RunFailure, match=words) as caught:
        rounds_of(plan_of("fedproto", Odd))
    assert "device of device-model/own, client" in caught.value.what


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (np.ones(8, dtype=bool), "it returns ndarray, not two arrays"),
        ((np.ones(7, dtype=bool), np.ones(7)), r"it returns bool \[7\] and \[7\]"),
        ((np.ones(8), np.full(8, np.inf)), r"it returns float64 \[8\]"),
        ((np.ones(8, dtype=bool), np.zeros(8)), "client 0 is to change at 0 s"),
        ((np.ones(8, dtype=bool), np.full(8, np.nan)), "client 0 is to change at nan s"),
    ],
)
def test_what_says_nothing_of_presence(found, words):
    class Odd(Ladder):
        @pf.hookimpl
        def presence(self, seconds):
            return found

    with pytest.raises(pf.RunFailure, match=words) as caught:
        rounds_of(plan_of("fedproto", Odd))
    assert "presence of device-model/own, 0 s" in caught.value.what
