"""Tests of --profile: the summary, and that no result changes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from runtime_toys import install, make_plan, train, without_times
from slowness import quick

import protofl as pf
from protofl.backends import Host
from protofl.federation.jobs.jobs import StartTrial, Train
from protofl.system import profile
from protofl.system.profile import HostProfile, RunProfile

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


@pytest.fixture(params=quick(["local", "process"], "local"))
def profiled(request, runs):
    return runs[request.param]


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


def test_the_summary_holds_what_the_run_did(profiled):
    found = json.loads((profiled.folder / "profile" / "summary.json").read_text())
    assert found == profiled.profile
    assert found["rounds"] == 2
    assert {"plan", "costs"} <= found["start"].keys()
    assert {"downloads", "server_aggregate", "commit", "other"} <= found["server"].keys()
    assert [*found["training"]] == [*PHASES, "other"]
    assert sum(found["training"].values()) == pytest.approx(found["stages"]["train"])
    spent = {stage: sum(row.seconds.get(stage, 0) for row in profiled.record) for stage in PARTS}
    assert {stage: found["stages"][stage] for stage in PARTS} == pytest.approx(spent, rel=1e-3)


PARTS = ("train", "prototypes", "evaluate")


@pytest.mark.slow
def test_an_interrupted_run_has_a_profile_and_resuming_may_profile(tmp_path, monkeypatch):
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


# --- without --profile ----------------------------------------------------------------------------


def test_nothing_is_recorded_unless_asked_for():
    host = Host(make_plan("local"))
    host.handle(StartTrial(0))
    assert not host.handle(Train(0, round=0)).profile
    assert pf.backends.TrainJob.lap("data") is None


def test_the_dry_run_is_not_profiled():
    host = Host(replace(make_plan("local", profile=True), dry=True))
    host.handle(StartTrial(0))
    assert not host.handle(Train(0, round=0)).profile


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
    monkeypatch.setattr(profile, "time", found)
    return found


def test_phases_are_counted(clock):
    recorded = HostProfile(CPU)
    with recorded.steps() as lap:
        for _ in range(3):
            for number, phase in enumerate(PHASES):
                clock.now += 10 + number
                lap(phase)
    found = json.loads(recorded.job_done())
    assert found["phases"] == {phase: 3 * (10 + n) for n, phase in enumerate(PHASES)}
    assert json.loads(recorded.job_done())["phases"] == {}


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


def recorded(process, seconds):
    phases = {"forward": 60, "backward": 30}
    return json.dumps({"process": ["host", process], "phases": phases}), {"train": seconds}


def test_workers_time_is_work_and_waiting(clock):
    found = RunProfile()
    with found.round():
        clock.now += 100  # the server prepares
        with found.span("waiting for workers", "server"):
            clock.now += 500
            found.take(*recorded(8, 200))
            found.take(*recorded(7, 280))
            found.take(*recorded(8, 150))
        clock.now += 50  # the server continues
    summary = found.summary()
    assert (summary["workers"], summary["rounds"], summary["seconds"]) == (2, 1, 650)
    assert summary["stages"] == {"train": 630}
    assert summary["waiting"] == 2 * 650 - 630
    assert summary["training"] == {"forward": 180, "backward": 90, "other": 360}
    assert summary["server"] == {"waiting for workers": 500, "other": 150}
