"""--profile: what it records, that it changes nothing, and the trace that it writes."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import protofl as pf
import pytest
import torch
from protofl.hosts.host import Host
from protofl.hosts.jobs import StartTrial, Train
from protofl.profile import operators, timeline
from protofl.profile import spans as profiling
from protofl.profile.operators import Operators
from protofl.profile.spans import OFF, HostProfile, Spans
from protofl.profile.timeline import Timeline, _nested
from runtime_toys import install, make_plan, train, without_times
from slowness import quick

CPU = torch.device("cpu")
PHASES = ["data", "forward", "loss", "backward", "update"]


class Runs(dict):
    """One toy run plain, and profiled in this process and in two workers, each when asked for."""

    def __init__(self, folder):
        self.folder = folder

    def __missing__(self, name):
        profiled = {"backend": name, "workers": 2, "profile": True} if name != "plain" else {}
        with pytest.MonkeyPatch.context() as patch:
            install(patch)
            self[name] = train("fedproto", self.folder / name, clients=6, **profiled)
        return self[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


BACKENDS = quick(["local", "process"], "local")


@pytest.fixture(params=BACKENDS)
def profiled(request, runs):
    return runs[request.param]


def trace_of(result):
    return json.loads((result.folder / "profile" / "trace.json").read_text())["traceEvents"]


def spans_in(events, **wanted):
    return [e for e in events if e["ph"] == "X" and all(e[k] == v for k, v in wanted.items())]


def begin(event):
    return int(event["ts"] * 1000)  # as Perfetto reads it: nanoseconds, cut


def end(event):
    return begin(event) + int(event["dur"] * 1000)


# --- a run --------------------------------------------------------------------------------------


def test_it_changes_no_result_and_no_configuration(runs, profiled):
    assert without_times(profiled.record) == without_times(runs["plain"].record)
    configs = [
        json.loads((r.folder / "config.json").read_text()) for r in (runs["plain"], profiled)
    ]
    assert configs[0] == configs[1]
    assert runs["plain"].profile is None
    assert not (runs["plain"].folder / "profile").exists()


def test_the_events_are_of_chromes_format(profiled):
    events = trace_of(profiled)
    assert {e["ph"] for e in events} == {"X", "M"}
    for event in events:
        assert isinstance(event["name"], str) and event["name"]
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["cat"]
            assert event["ts"] >= 0 and event["dur"] >= 0
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named
    assert min(begin(e) for e in events if e["ph"] == "X") == 0


def test_spans_of_a_process_share_its_clock():
    """Each had a reading of its own, and a pause between both clocks moved it by microseconds."""
    moments = {Spans().unix(0) for _ in range(100)}
    assert len(moments) == 1


def test_spans_of_a_track_lie_within_each_other(profiled):
    tracks = defaultdict(list)
    for event in spans_in(trace_of(profiled)):
        tracks[event["pid"], event["tid"]].append((begin(event), end(event)))
    assert len(tracks) >= 2
    for spans in tracks.values():
        around = []
        for start, stop in sorted(spans, key=lambda s: (s[0], -s[1])):
            while around and around[-1] <= start:
                around.pop()
            assert not around or stop <= around[-1]
            around.append(stop)


def test_what_an_operator_is_too_long_for_the_span_around_it_is_cut():
    def event(start, length, track=""):
        return ("x", "op", start, length, track, {})

    events = [event(100, 60_000), event(50_000, 10_109), event(50_100, 10_400), event(0, 9, "b")]
    cut = [(e[2], e[3]) for e in _nested(events) if not e[4]]
    assert cut == [(100, 60_000), (50_000, 10_100), (50_100, 10_000)]
    wrong = [event(0, 10_000), event(5_000, 7_000)]  # more than clocks disagree about
    assert [e[3] for e in _nested(wrong)] == [10_000, 7_000]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_process_has_a_name_and_its_spans(runs, backend):
    workers = {"local": 1, "process": 2}[backend]
    events = trace_of(runs[backend])
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(names) == 1 + workers
    assert f"process {os.getpid()}" in names[0]
    assert all(name.startswith("worker ") for pid, name in names.items() if pid)
    assert [e["name"] for e in spans_in(events, cat="round")] == ["round 0", "round 1"]
    jobs = spans_in(events, cat="job")
    assert sorted(e["name"] for e in jobs if e["name"].startswith("train")) == sorted(
        f"train client {c} (dense{8 if c % 2 == 0 else 5})" for c in range(6) for _ in range(2)
    )
    assert {e["pid"] for e in jobs} == {*range(1, workers + 1)}
    stages = {e["name"] for e in spans_in(events, cat="stage")}
    assert stages == {"setup", "train", "prototypes", "payload", "evaluate", "checkpoint"}
    assert {e["name"] for e in spans_in(events, cat="server")} >= {
        "downloads",
        "server_aggregate",
        "server_train",
        "commit",
    }


@pytest.mark.slow
def test_jobs_of_workers_lie_within_the_stage_that_dealt_them(runs):
    events = trace_of(runs["process"])
    stages = spans_in(events, cat="workers")
    for job in spans_in(events, cat="job"):
        op = {"save": "checkpoint"}.get(job["name"].split()[0], job["name"].split()[0])
        around = [s for s in stages if begin(s) <= begin(job) and end(job) <= end(s)]
        assert [s["name"] for s in around] == [op]


def test_operators_are_sampled_once_an_architecture_after_the_first_round(profiled):
    events = trace_of(profiled)
    second = spans_in(events, name="round 1")[0]
    sampled = spans_in(events, name="start of torch's profiler")
    assert len(sampled) == 2 * 3  # two architectures: steps, upload, evaluation
    steps = spans_in(events, cat="step")
    assert len(steps) == 2 * profiling.SAMPLED
    ran = spans_in(events, cat="cpu_op")
    assert all(
        begin(second) <= begin(e) and end(e) <= end(second) for e in (*sampled, *steps, *ran)
    )
    for step in steps:
        within = [e for e in ran if e["pid"] == step["pid"]]
        within = {e["name"] for e in within if begin(step) <= begin(e) and end(e) <= end(step)}
        assert {"aten::addmm", "aten::mm"} <= within  # forward and backward
        phases = spans_in(events, cat="phase", pid=step["pid"])
        phases = [p["name"] for p in phases if begin(step) <= begin(p) and end(p) <= end(step)]
        assert phases in (PHASES, PHASES[1:])  # the first step's data come before the sample


def test_the_summary_holds_what_the_run_did(profiled):
    found = json.loads((profiled.folder / "profile" / "summary.json").read_text())
    assert found == profiled.profile
    assert (found["rounds"], found["left_out"]) == (2, 0)
    assert [*found["training"]] == [*PHASES, "other"]
    steps = {a["name"]: (a["clients"], a["steps"]) for a in found["architectures"]}
    # 96 samples on 6 clients, three quarters to train on: 12, in batches of 6, twice.
    assert steps == {"dense8": (3, 12), "dense5": (3, 12)}
    total = sum(o["share"] for o in found["operators"])
    assert total == pytest.approx(1)
    bad = [o for o in found["operators"] if o["seconds"] < 0 or not o["sampled_calls"]]
    assert not bad
    assert {"aten::addmm", "aten::mm"} <= {o["name"] for o in found["operators"]}


def test_a_single_round_is_sampled_too_and_resuming_may_profile(tmp_path, monkeypatch):
    install(monkeypatch)
    out = tmp_path / "run"
    plain = train("local", tmp_path / "plain", rounds=3)
    train("local", out, rounds=3, profile=True)
    whole = spans_in(trace_of(SimpleNamespace(folder=out)), cat="round")
    assert len(whole) == 3

    class Stop(Exception):
        pass

    def stop(event):
        if isinstance(event, pf.events.RoundDone) and event.row["round"] == 1:
            raise Stop

    with pytest.raises(Stop):
        train("local", tmp_path / "cut", rounds=3, progress=stop, profile=True)
    # What was recorded before it ended is there.
    cut = SimpleNamespace(folder=tmp_path / "cut")
    assert "round 0" in [e["name"] for e in spans_in(trace_of(cut), cat="round")]
    result = train(None, tmp_path / "cut", resume=True, profile=True)
    assert without_times(result.record) == without_times(plain.record)
    assert [e["name"] for e in spans_in(trace_of(result), cat="round")] == ["round 2"]
    assert spans_in(trace_of(result), cat="cpu_op")  # round 2 is the last one


# --- what it costs when it is off -----------------------------------------------------------------


def test_nothing_is_recorded_unless_asked_for():
    plan = make_plan("local")
    host = Host(plan)
    host.handle(StartTrial(0))
    job = Train(0, round=0)
    assert not host.handle(job).profile
    assert OFF.span("a", "b") is OFF.span("c", "d")
    with OFF.span("a", "b"):
        pass
    assert OFF.events == [] and not OFF.sums
    assert pf.TrainJob.lap("data") is None
    quiet = HostProfile(False, CPU)
    with quiet.steps(3) as lap:
        lap("data")
    assert json.loads(quiet.job_done("train", 0))["steps"] == 0
    assert quiet.operators("evaluate") is OFF.span("a", "b")


def test_the_dry_step_is_not_profiled(monkeypatch):
    host = Host(replace(make_plan("local", profile=True), dry=True))
    host.handle(StartTrial(0))
    job = Train(0, round=0)
    assert not host.handle(job).profile


# --- operators ----------------------------------------------------------------------------------


def record(block):
    """With pauses that are far longer than two clocks can be apart."""
    recorder = Operators(CPU)
    start = time.perf_counter_ns()
    time.sleep(0.02)
    block()
    time.sleep(0.02)
    middle = time.perf_counter_ns()
    time.sleep(0.02)
    torch.ones(3).exp()
    return start, middle, recorder.stop([(start, middle)])


def test_operators_stand_on_the_clock_of_the_spans():
    x = torch.randn(200, 200)
    start, middle, (events, sums) = record(lambda: [torch.addmm(x, x, x) for _ in range(5)])
    assert [e[0] for e in events].count("aten::addmm") == 5
    assert all(start <= first <= stop <= middle for _, _, first, stop, _ in events)
    assert not [e for e in events if e[0] == "aten::exp"]  # it ran behind the interval
    assert sums["cpu"]["aten::addmm"][1] == 5
    own = sum(own for own, _ in sums["cpu"].values())
    outer = 0
    last = start
    for _, _, first, stop, _ in events:
        if first >= last:
            outer, last = outer + stop - first, stop
    assert own == outer  # own times add up to what the outermost operators took


def test_a_sample_is_bounded(monkeypatch):
    monkeypatch.setattr(operators, "LIMIT", 10)
    monkeypatch.setattr(operators, "TOP", 1)
    x = torch.randn(3)
    _, _, (events, sums) = record(lambda: [(x + x) * x for _ in range(50)])
    assert len(events) == 10
    assert sums["left_out"] == 90
    assert [*sums["cpu"]][-1] == "others"
    assert sum(calls for _, calls in sums["cpu"].values()) == 100


def test_a_program_that_profiles_already_is_left_alone():
    with torch.autograd.profiler.profile() as theirs:
        recorder = Operators(CPU)
        torch.ones(3).exp()
        assert recorder.stop([(0, 2**62)]) == ([], {"cpu": {}, "gpu": {}, "left_out": 0})
    assert "aten::exp" in {event.name for event in theirs.function_events}


# --- phases -------------------------------------------------------------------------------------


class FakeClock:
    """Nanoseconds that pass only when told."""

    def __init__(self):
        self.now = 0

    def perf_counter_ns(self):
        return self.now

    def time_ns(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = FakeClock()
    monkeypatch.setattr(profiling, "time", found)
    monkeypatch.setattr(profiling, "_UNIX", found.time_ns() - found.perf_counter_ns())
    monkeypatch.setattr(timeline, "time", found)
    return found


def test_phases_are_booked_to_the_nanosecond(clock):
    profile = HostProfile(True, CPU)
    with profile.steps(3) as lap:
        for _ in range(3):
            for number, phase in enumerate(PHASES):
                clock.now += 10 + number
                lap(phase)
    found = json.loads(profile.job_done("train", 0))
    assert found["phases"] == {phase: 3 * (10 + n) for n, phase in enumerate(PHASES)}
    assert found["steps"] == 3
    assert found["operators"] == {}
    again = json.loads(profile.job_done("train", 0))
    assert (again["phases"], again["steps"], len(again["events"])) == ({}, 0, 1)


def test_an_engine_marks_its_phases():
    told = []
    plan = make_plan("local")
    host = Host(plan)
    host.handle(StartTrial(0))
    engine = plan.choices["engine"].instance
    train_job = engine.train

    def spied(job, config):
        job.lap = told.append
        return train_job(job, config)

    engine.train = spied
    host.handle(Train(0, round=0))
    assert told == PHASES * 3


# --- the timeline ---------------------------------------------------------------------------------


def one_net(client):
    return "net"


def recorded(process, start, stop, seconds, **extra):
    found = {
        "process": ["host", process],
        "job": [start, stop],
        "events": [["train client 0 (net)", "job", start, stop - start, "", {}]],
        "phases": {"forward": 60, "backward": 30},
        "steps": 2,
        "operators": {},
        "profiler": {},
    }
    return json.dumps(found | extra), {"train": seconds}


def test_workers_time_is_work_and_waiting(clock):
    found = Timeline(one_net)
    with found.round(0, 1, last=True):
        clock.now += 100  # the server prepares
        with found.stage("train", range(3)) as sampled:
            clock.now += 400
            found.take(0, *recorded(7, 120, 400, 280e-9))
            found.take(1, *recorded(8, 110, 310, 200e-9))
            clock.now += 100
            found.take(2, *recorded(8, 330, 600, 270e-9))
        clock.now += 50  # and goes on
    summary = found.summary()
    assert (summary["workers"], summary["rounds"]) == (2, 1)
    assert summary["seconds"] == pytest.approx(650e-9)
    assert summary["stages"] == {"train": pytest.approx(750e-9)}
    waiting = {
        "for the slowest": pytest.approx(200e-9),  # worker 7, behind its last job
        "between jobs": pytest.approx((20 + 10 + 20) * 1e-9),
        "for the server": pytest.approx(2 * 150e-9),
    }
    assert summary["waiting"] == waiting
    both = sum(summary["stages"].values()) + sum(summary["waiting"].values())
    assert both == pytest.approx(2 * summary["seconds"])
    training = {"forward": 180e-9, "backward": 90e-9, "other": 480e-9}
    assert summary["training"] == pytest.approx(training)
    assert sampled == {0}


def test_a_wrong_clock_is_shifted_into_the_time_in_which_its_jobs_ran(clock, tmp_path):
    found = Timeline(one_net)
    clock.now = 1000
    with found.round(0, 0, last=False), found.stage("train", [0]) as sampled:
        clock.now += 500
        found.take(0, *recorded(7, 50_000, 50_400, 400e-9))
    found.write(tmp_path / "profile")
    events = trace_of(SimpleNamespace(folder=tmp_path))
    (stage,) = spans_in(events, cat="workers")
    (job,) = spans_in(events, cat="job")
    assert begin(stage) <= begin(job) and end(job) <= end(stage)
    assert end(job) - begin(job) == 400
    assert not sampled  # the first of several rounds is for warming up


def test_a_trace_is_bounded(clock, monkeypatch):
    monkeypatch.setattr(timeline, "LIMIT", 3)
    found = Timeline(one_net)
    with found.round(0, 0, last=False), found.stage("train", range(5)):
        clock.now += 100
        for client in range(5):
            found.take(client, *recorded(7, 10, 20, 10e-9))
    assert found.summary()["left_out"] == 2
    assert found.summary()["stages"]["train"] == pytest.approx(50e-9)


def test_each_sample_stands_for_its_architectures_time(clock):
    found = Timeline(one_net)
    sums = {"cpu": {"a": [30, 2], "b": [10, 1]}, "gpu": {}, "left_out": 5}
    with found.round(0, 0, last=True), found.stage("train", range(2)):
        clock.now += 100
        own = {"operators": {"train": sums}, "profiler": {"train": 20}}
        found.take(0, *recorded(7, 10, 80, 70e-9, **own))
        found.take(1, *recorded(7, 80, 110, 30e-9))
    summary = found.summary()
    assert summary["profiler"] == pytest.approx(20e-9)
    assert summary["stages"]["train"] == pytest.approx(80e-9)
    assert summary["left_out"] == 5
    assert summary["operators"] == [
        {
            "name": "a",
            "share": pytest.approx(0.75),
            "seconds": pytest.approx(60e-9),
            "sampled_calls": 2,
        },
        {
            "name": "b",
            "share": pytest.approx(0.25),
            "seconds": pytest.approx(20e-9),
            "sampled_calls": 1,
        },
    ]
