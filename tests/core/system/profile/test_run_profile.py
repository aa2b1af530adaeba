"""Tests of --profile: the summary and the trace, and that no result changes."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from runtime_toys import install, make_plan, train, without_times
from slowness import quick

import protofl as pf
from protofl.backends import Host
from protofl.federation.jobs.jobs import StartTrial, Train
from protofl.system.profile import clock as clocks
from protofl.system.profile import host_profile, profiles, run_profile
from protofl.system.profile.host_profile import HostProfile, Operators
from protofl.system.profile.run_profile import RunProfile

CPU = torch.device("cpu")
PHASES = ["data", "forward", "loss", "backward", "update"]


class Runs(dict):
    """One toy run without profile, and profiled in this process or two workers; run on demand."""

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


def operators_of(result):
    """Return {process: names of the operators in the trace}."""
    found = defaultdict(list)
    for event in trace_of(result):
        if event.get("cat") == "cpu_op":
            found[event["pid"]].append(event["name"])
    return found


# --- a run --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_changes_no_result_and_no_configuration(runs, profiled):
    assert without_times(profiled.record) == without_times(runs["plain"].record)
    configs = [
        json.loads((r.folder / "config.json").read_text()) for r in (runs["plain"], profiled)
    ]
    assert configs[0] == configs[1]
    assert runs["plain"].profile is None
    assert not (runs["plain"].folder / "profile").exists()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_trace_is_torch_s_own_of_each_process(runs, backend):
    found = operators_of(runs[backend])
    # One of two workers may take both architectures before the other has started.
    assert len(found) in {"local": {1}, "process": {1, 2}}[backend]
    names = [name for each in found.values() for name in each]
    # For each of the two architectures: two steps, an upload and an evaluation.
    assert names.count("aten::mm") >= 2 * host_profile.SAMPLED and "aten::addmm" in names


def test_the_summary_holds_what_the_run_did(profiled):
    found = json.loads((profiled.folder / "profile" / "summary.json").read_text())
    assert found == profiled.profile
    assert found["rounds"] == 2
    assert {"plan", "costs"} <= found["start"].keys()
    assert {"downloads", "server_aggregate", "commit", "other"} <= found["server"].keys()
    assert [*found["training"]] == [*PHASES, "other"]
    assert found["payload"]["upload_payload"] > 0
    assert sum(found["payload"].values()) == pytest.approx(found["stages"]["payload"])
    steps = {a["name"]: (a["clients"], a["steps"]) for a in found["architectures"]}
    # Each client trains on 3/4 of 96/6 samples: 12, so 2 batches of 6 in each of 2 rounds.
    assert steps == {"dense8": (3, 12), "dense5": (3, 12)}
    total = sum(o["share"] for o in found["operators"])
    assert total == pytest.approx(1)
    bad = [o for o in found["operators"] if o["seconds"] < 0 or not o["sampled_calls"]]
    assert not bad
    assert {"aten::addmm", "aten::mm"} <= {o["name"] for o in found["operators"]}


@pytest.mark.slow
def test_a_single_round_is_sampled_too_and_resuming_may_profile(tmp_path, monkeypatch):
    install(monkeypatch)
    plain = train("local", tmp_path / "plain", rounds=3)

    class Stop(Exception):
        pass

    def stop(event):
        if isinstance(event, pf.events.RoundDone) and event.row["round"] == 1:
            raise Stop

    with pytest.raises(Stop):
        train("local", tmp_path / "cut", rounds=3, progress=stop, profile=True)
    # The profile up to the interruption is written.
    cut = json.loads((tmp_path / "cut/profile/summary.json").read_text())
    assert cut["rounds"] == 1 and cut["training"]["forward"] > 0
    result = train(None, tmp_path / "cut", resume=True, profile=True)
    assert without_times(result.record) == without_times(plain.record)
    assert result.profile["rounds"] == 1
    assert operators_of(result)  # round 2 is the last one


# --- without --profile ----------------------------------------------------------------------------


def test_nothing_is_recorded_unless_asked_for():
    plan = make_plan("local")
    host = Host(plan)
    host.handle(StartTrial(0))
    job = Train(0, round=0)
    assert not host.handle(job).profile
    assert pf.backends.TrainJob.lap("data") is None
    quiet = profiles.host_profile(False, CPU)
    with quiet.steps(3) as lap:
        lap("data")
    assert not quiet.on and quiet.job_done(0) == ""


def test_the_dry_run_is_not_profiled(monkeypatch):
    host = Host(replace(make_plan("local", profile=True), dry=True))
    host.handle(StartTrial(0))
    job = Train(0, round=0)
    assert not host.handle(job).profile


# --- operators ----------------------------------------------------------------------------------


def record(block):
    recorder = Operators(CPU)
    block()
    return recorder.stop()


def test_operators_are_counted_with_their_own_time():
    x = torch.randn(200, 200)
    start = time.perf_counter()
    found = record(lambda: [torch.addmm(x, x, x) for _ in range(5)])
    took = time.perf_counter() - start
    assert found["cpu"]["aten::addmm"][1] == 5
    assert 0 < sum(own for own, _ in found["cpu"].values()) < took
    names = [e["name"] for e in found["trace"] if e.get("cat") == "cpu_op"]
    assert names.count("aten::addmm") == 5


def test_a_program_that_profiles_already_is_left_alone():
    with torch.autograd.profiler.profile() as theirs:
        assert record(lambda: torch.ones(3).exp()) == {"cpu": {}, "gpu": {}, "trace": []}
    assert "aten::exp" in {event.name for event in theirs.function_events}


# --- phases -------------------------------------------------------------------------------------


class FakeClock:
    """A clock that advances only when a test sets it."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = FakeClock()
    for module in (clocks, host_profile, run_profile):
        monkeypatch.setattr(module, "time", found)
    return found


def test_phases_are_counted(clock):
    profile = HostProfile(CPU)
    with profile.steps(3) as lap:
        for _ in range(3):
            for number, phase in enumerate(PHASES):
                clock.now += 10 + number
                lap(phase)
    found = json.loads(profile.job_done(0))
    assert found["phases"] == {phase: 3 * (10 + n) for n, phase in enumerate(PHASES)}
    assert (found["steps"], found["seconds"], found["operators"]) == (3, clock.now, {})
    again = json.loads(profile.job_done(clock.now))
    assert (again["phases"], again["steps"], again["seconds"]) == ({}, 0, 0)


def test_an_engine_marks_its_phases():
    told = []
    plan = make_plan("local")
    host = Host(plan)
    host.handle(StartTrial(0))
    engine = plan.choices["engine"].instance
    train_job = engine.train

    def spied(job):
        job.lap = told.append
        return train_job(job)

    engine.train = spied
    host.handle(Train(0, round=0))
    assert told == PHASES * 3


# --- the profile of a run -------------------------------------------------------------------------


def one_net(client):
    return "net"


def recorded(process, took, seconds, **extra):
    found = {
        "process": ["host", process],
        "seconds": took,
        "phases": {"forward": 60, "backward": 30},
        "steps": 2,
        "parts": {},
        "operators": {},
        "profiler": {},
    }
    return json.dumps(found | extra), {"train": seconds}


def test_workers_time_is_work_and_waiting(clock):
    found = RunProfile(one_net)
    with found.round(1, last=True):
        clock.now += 100  # the server prepares
        with found.stage("train", range(3)) as sampled:
            clock.now += 300
            found.take(1, *recorded(8, 290, 200))
            clock.now += 100
            found.take(0, *recorded(7, 380, 280))
            clock.now += 100
            found.take(2, *recorded(8, 170, 150))
        clock.now += 50  # the server continues
    summary = found.summary()
    assert (summary["workers"], summary["rounds"], summary["seconds"]) == (2, 1, 650)
    assert summary["stages"] == {"train": 630}
    assert summary["waiting"] == {
        "for the slowest": 100,  # worker 7, after its last job
        "between jobs": 20 + 40,
        "for the server": 2 * 150,
    }
    busy = 290 + 380 + 170
    assert busy + sum(summary["waiting"].values()) == 2 * summary["seconds"]
    assert summary["training"] == {"forward": 180, "backward": 90, "other": 360}
    assert sampled == {0}


def test_the_hook_of_an_upload_is_part_of_the_payload(clock):
    profile = HostProfile(CPU)
    features = iter((3, 13))
    with profile.operators("upload", lambda: next(features)):
        clock.now += 40
    found = RunProfile(one_net)
    with found.round(0, last=True), found.stage("train", [0]):
        found.take(0, profile.job_done(0), {"payload": 50, "prototypes": 10})
    assert found.summary()["payload"] == {"upload_payload": 30, "other": 20}


def test_the_first_of_several_rounds_is_for_warming_up():
    found = RunProfile(one_net)
    with found.round(0, last=False), found.stage("train", [0]) as sampled:
        pass
    assert not sampled


def test_each_sample_stands_for_its_architectures_time(clock):
    found = RunProfile(one_net)
    sums = {"cpu": {"a": [30, 2], "b": [10, 1]}, "gpu": {}, "trace": []}
    with found.round(0, last=True), found.stage("train", range(2)):
        clock.now += 100
        own = {"operators": {"train": sums}, "profiler": {"train": 20}}
        found.take(0, *recorded(7, 70, 70, **own))
        found.take(1, *recorded(7, 30, 30))
    summary = found.summary()
    assert (summary["profiler"], summary["stages"]["train"]) == (20, 80)
    assert summary["operators"] == [
        {"name": "a", "share": 0.75, "seconds": 60, "sampled_calls": 2},
        {"name": "b", "share": 0.25, "seconds": 20, "sampled_calls": 1},
    ]
