"""Tests of the automatic backend: chosen by an estimate of the training, kept on resume."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from runtime_toys import GIVEN, train, without_times

import protofl as pf
from protofl.backends import Host, Plan
from protofl.runs.lifecycle import backend_choice
from protofl.runs.lifecycle.backend_choice import choose_backend
from protofl.runs.lifecycle.resumption import _recorded_backend
from protofl_plugins.backends.process import Process

pytestmark = pytest.mark.usefixtures("toys", "two_cores")


@pytest.fixture
def two_cores(monkeypatch):
    for module in (
        backend_choice,
        __import__("protofl.federation.plan.resolution", fromlist=["x"]),
    ):
        monkeypatch.setattr(module, "usable_cores", lambda: [0, 1])


def plan_of(**options):
    return Plan.make(GIVEN | {"method": "local", "backend": "auto"} | options)


def test_what_the_user_says_is_not_chosen_again():
    assert plan_of().settings.backend == "auto"
    assert plan_of(workers=2).settings.backend == "process"
    assert plan_of(backend="local").settings.backend == "local"


def test_a_short_run_stays_in_this_process(tmp_path):
    said = []
    given = {"backend": "auto", "dry_run": True, "progress": said.append}
    found = train("fedproto", tmp_path / "auto", **given)
    notes = [event.text for event in said if isinstance(event, pf.events.Note)]
    assert "backend local: worker processes would save less time than their start takes (10 s)" in (
        notes
    )
    local = train("fedproto", tmp_path / "local", progress=False, dry_run=True)
    assert without_times(found.record) == without_times(local.record)
    assert {p.name for p in found.folder.iterdir()} == {p.name for p in local.folder.iterdir()}
    configs = [(r.folder / "config.json").read_text() for r in (found, local)]
    assert configs[0] == configs[1]


def test_a_resumed_run_stays_on_its_backend(tmp_path):
    def stop(event):
        if isinstance(event, pf.events.RoundDone):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("local", tmp_path / "run", progress=stop)
    session = tmp_path / "run" / "session.json"
    assert json.loads(session.read_text()) == {"backend": "local"}
    planned = []
    pf.run(out=tmp_path / "run", resume=True, progress=planned.append)
    assert [e.plan.settings.backend for e in planned if isinstance(e, pf.events.Planned)] == [
        "local"
    ]
    assert not session.exists()


@pytest.mark.parametrize(
    ("content", "given", "found", "says"),
    [
        ('{"backend": "process"}', {}, {"backend": "process"}, ""),
        ('{"backend": "process"}', {"workers": 2}, {}, ""),
        ('{"backend": "pigeons"}', {}, {}, "--backend pigeons, which is not installed"),
        ("[1]", {}, {}, ""),
        ("", {}, {}, ""),
    ],
)
def test_the_record_of_the_backend(tmp_path, content, given, found, says):
    (tmp_path / "session.json").write_text(content)
    notes = []
    assert _recorded_backend(tmp_path, given, notes.append) == found
    assert says in "".join(notes) and bool(says) == bool(notes)


# --- worker processes that start before the dry run ------------------------------------------


def long(monkeypatch):
    monkeypatch.setattr(backend_choice, "STARTUP", 0.0)


def watched_pools(monkeypatch):
    """Let the backend ``process`` open a host in this process; return the list of what happens."""
    happened = []

    class Pool(Host):
        def close(self):
            happened.append("closed")

    @pf.hookimpl
    def open_pool(self, plan):
        happened.append("opened")
        return Pool(plan)

    monkeypatch.setattr(Process, "open_pool", open_pool)
    return happened


def note_dry_run(happened):
    def progress(event):
        if isinstance(event, pf.events.DryRunStarted):
            happened.append("dry run")
        if isinstance(event, pf.events.RoundStarted):
            happened.append("round")

    return progress


GIVEN_AUTO = {"backend": "auto", "dry_run": True}


def test_the_workers_of_a_long_run_start_before_the_dry_run(tmp_path, monkeypatch):
    long(monkeypatch)
    happened = watched_pools(monkeypatch)
    train("local", tmp_path / "run", progress=note_dry_run(happened), **GIVEN_AUTO)
    assert happened == ["opened", "dry run", "round", "round", "closed"]


def test_a_short_run_starts_no_workers(tmp_path, monkeypatch):
    happened = watched_pools(monkeypatch)
    train("local", tmp_path / "run", progress=note_dry_run(happened), **GIVEN_AUTO)
    assert happened == ["dry run", "round", "round"]


@pytest.mark.parametrize("by", ["refusal", "interrupt"])
def test_what_ends_the_dry_run_ends_the_workers(tmp_path, monkeypatch, by):
    long(monkeypatch)
    happened = watched_pools(monkeypatch)
    note = note_dry_run(happened)

    def progress(event):
        note(event)
        if by == "interrupt" and isinstance(event, pf.events.DryRunStarted):
            raise KeyboardInterrupt

    use = {"use": {"inference": "fedproto"}} if by == "refusal" else {}
    with pytest.raises(pf.UsageError if by == "refusal" else KeyboardInterrupt):
        train("local", tmp_path / "run", progress=progress, **use, **GIVEN_AUTO)
    assert happened == ["opened", "dry run", "closed"]
    assert not (tmp_path / "run").exists()  # nothing was trained


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"models": "htfe8", "dataset": "digits"}, "process"),
        ({"models": "cnn4", "dataset": "digits", "rounds": 1, "subset": 0.2}, "local"),
        ({"models": "mlp", "dataset": "wine"}, "local"),
    ],
    ids=["eight large nets", "a part of the digits", "a table"],
)
def test_which_runs_look_long(given, expected, tmp_path):
    plan = Plan.make({"method": "fedsa", "backend": "auto", "device": "cpu", **given})
    notes = []
    assert choose_backend(plan, notes.append).settings.backend == expected
    assert notes[0].startswith(f"backend {expected}: ")


def test_a_net_that_fails_is_left_to_the_dry_run(monkeypatch):
    def fail(*given, **named):
        raise RuntimeError("no such layer")

    plan = plan_of(rounds=10**6)
    assert choose_backend(plan, print).settings.backend == "process"
    monkeypatch.setattr(backend_choice, "seconds_of_step", fail)
    assert choose_backend(plan, print).settings.backend == "local"


@pytest.mark.slow
@pytest.mark.parametrize("by", ["refusal", "interrupt"])
def test_no_process_is_left_of_a_run_that_ends_in_the_dry_run(tmp_path, monkeypatch, by):
    """The workers are still importing their libraries."""
    long(monkeypatch)
    seen = []

    def progress(event):
        if isinstance(event, pf.events.DryRunStarted):
            seen.extend(workers_of_this_process())
            if by == "interrupt":
                raise KeyboardInterrupt

    options = {"models": "cnn4", "clients": 2, "subset": 0.1, "rounds": 1, "backend": "auto"}
    use = {"use": {"inference": "fedproto"}} if by == "refusal" else {}
    with pytest.raises(pf.UsageError if by == "refusal" else KeyboardInterrupt):
        pf.run("local", out=tmp_path / "run", progress=progress, device="cpu", **options, **use)
    assert len(seen) == 2
    assert workers_of_this_process() == []


def workers_of_this_process():
    """Return the process ids of the workers of this process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            command = (path.parent / "cmdline").read_bytes()
            if parent == os.getpid() and b"backends.worker" in command:
                found.append(int(path.parent.name))
    return found
