"""Tests of trackers: which calls they get and when, and that they never affect the run."""

from __future__ import annotations

import asyncio
import json

import pytest
from runtime_toys import GIVEN, install, request_of_program, train, without_times

import protofl as pf
from protofl.backends import Plan
from protofl.testing.trackers import line
from protofl_workbench.batch.batch_events import BatchRun
from protofl_workbench.batch.run_batch import RunBatch

TOLD = []
"""Calls that the tracker in this file received."""


class Tells:
    """Records its calls in `TOLD`; its options choose the hook that fails."""

    class Config(pf.Config):
        """Options."""

        token: str = pf.Field("", description="a secret")
        breaks: str = pf.Field("", description="the hook that raises")
        ends: str = pf.Field("", description="the hook that raises what is no Exception")

    def done(self, hook, config, *what):
        if config.breaks == hook:
            raise ConnectionError("nobody\nthere")
        if config.ends == hook:
            raise asyncio.CancelledError
        TOLD.append((hook, *what))

    @pf.hookimpl
    def check(self, config):
        if config.breaks == "check":
            raise pf.UsageError("it has no library")

    @pf.hookimpl
    def open_run(self, run, config):
        self.done("open_run", config, run)
        return "opened"

    @pf.hookimpl
    def log_round(self, opened, run, row, number, config):
        self.done("log_round", config, opened, number, row["round"])

    @pf.hookimpl
    def end_run(self, opened, status, summary, error, config):
        self.done("end_run", config, status, dict(summary), error)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    install(monkeypatch)
    TOLD.clear()


def tracked(out, method="local", **options):
    """Run with the tracker; return the result and the notes about tracking."""
    notes = []

    def follow(event):
        if isinstance(event, pf.events.Note):
            notes.append(event.text)

    result = train(method, out, track=Tells, progress=follow, **options)
    return result, [note for note in notes if "track" in note]


def test_it_is_told_in_order(tmp_path):
    result, notes = tracked(tmp_path / "run", rounds=3)
    assert [each[0] for each in TOLD] == ["open_run", *["log_round"] * 3, "end_run"]
    run = TOLD[0][1]
    assert (run.name, run.group, run.folder) == ("run", "", tmp_path / "run")
    assert (run.trials, run.rounds, list(run.rows)) == (1, 3, [])
    assert run.config == json.loads((tmp_path / "run/config.json").read_text())
    assert TOLD[1:4] == [("log_round", "opened", n, n) for n in range(3)]
    assert TOLD[4] == ("end_run", "finished", result.summary, "")
    assert notes == []


def test_the_run_is_what_it_is_without(tmp_path):
    secret = {"tells.token": "a-secret-word"}
    plain = train("local", tmp_path / "plain", progress=False)
    found, _ = tracked(tmp_path / "run", set=secret)
    assert without_times(found.record) == without_times(plain.record)
    config = (tmp_path / "run/config.json").read_text()
    assert config == (tmp_path / "plain/config.json").read_text()
    for path in (p for p in (tmp_path / "run").rglob("*") if p.is_file()):
        assert b"a-secret-word" not in path.read_bytes(), path
    assert not (tmp_path / "plain/tracking.json").exists()


def test_no_other_process_gets_its_options():
    own = {"track": ["tells"], "options": {"tells": {"token": "a-secret-word"}}}
    plan = Plan.make({**GIVEN, "method": "local", **own}, {("tracker", "tells"): Tells})
    assert [tracker.config.token for tracker in plan.trackers] == ["a-secret-word"]
    assert "tells" not in plan.to_json() and "a-secret-word" not in plan.to_json()


@pytest.mark.parametrize(
    ("hook", "told"),
    [("open_run", 0), ("log_round", 1), ("end_run", 4)],
)
def test_one_that_is_dead_is_a_note_and_not_called_again(hook, told, tmp_path):
    result, notes = tracked(tmp_path / "run", rounds=3, set={"tells.breaks": hook})
    assert len(result.record) == 3 and len(TOLD) == told
    (note,) = notes
    words = "tracker tells: ConnectionError: nobody there; the run goes on without it (--resume"
    assert note.startswith(words)


def test_one_whose_library_ends_its_thread_is_a_note_too(tmp_path):
    ends = {"tells.ends": "log_round"}
    result, notes = tracked(tmp_path / "run", set=ends, dry_run=False)
    assert len(result.record) == 2 and "tracker tells: CancelledError" in notes[0]


def test_one_that_can_t_track_is_refused_before_anything(tmp_path):
    with pytest.raises(pf.UsageError, match="it has no library"):
        tracked(tmp_path / "run", set={"tells.breaks": "check"})
    assert not (tmp_path / "run").exists() and TOLD == []


class Fails:
    """Fails in the second round."""

    @pf.hookimpl
    def end_round(self, server):
        if server.round == 1:
            raise ValueError("on purpose")
        return {}


def test_a_run_that_fails(tmp_path):
    with pytest.raises(pf.RunFailure):
        tracked(tmp_path / "run", method=Fails, rounds=3, dry_run=False)
    hook, status, summary, error = TOLD[-1]
    assert (hook, status, summary) == ("end_run", "failed", {})
    assert "on purpose" in error or "end_round" in error
    assert [each[0] for each in TOLD] == ["open_run", "log_round", "end_run"]


def test_a_run_that_is_interrupted_and_goes_on(tmp_path):
    out = tmp_path / "run"

    def stop(event):
        if isinstance(event, pf.events.RoundDone) and event.row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("local", out, rounds=4, track=Tells, progress=stop)
    first = TOLD[0][1]
    assert TOLD[-1][:2] == ("end_run", "interrupted")
    TOLD.clear()
    tracked(out, method=None, resume=True)
    again = TOLD[0][1]
    assert again.key == first.key and [row["round"] for row in again.rows] == [0, 1]
    assert TOLD[1:3] == [("log_round", "opened", n, n) for n in (2, 3)]
    assert TOLD[3][1] == "finished"
    TOLD.clear()
    tracked(out, method=None, resume=True, rounds=5)
    assert TOLD[0][1].key == first.key and TOLD[1:2] == [("log_round", "opened", 4, 4)]


def test_a_finished_run_is_written_down_afterwards(tmp_path):
    out = tmp_path / "run"
    train("fedproto", out, rounds=2, progress=False)
    tracked(out, method=None, resume=True)
    assert [each[0] for each in TOLD] == ["open_run", "end_run"]
    assert len(TOLD[0][1].rows) == 2 and TOLD[1][1] == "finished"


def test_a_damaged_key_is_told(tmp_path):
    out = tmp_path / "run"
    tracked(out, method="fedproto", rounds=2)
    key = TOLD[0][1].key
    (out / "tracking.json").write_text("{")
    TOLD.clear()
    _, notes = tracked(out, method=None, resume=True)
    assert "tracking.json" in notes[0] and TOLD[0][1].key != key


def test_a_name_that_something_else_has(tmp_path):
    with pytest.raises(pf.UsageError, match="--track tells: the run has a method of the same name"):
        named = type("Tells", (Fails,), {})
        train(named, tmp_path / "run", track=Tells, progress=False)


def test_runs_of_a_batch_have_a_group(tmp_path):
    given = {**GIVEN, "method": "local", "track": Tells, "dry_run": False}
    wanted = [BatchRun(f"lr={lr}", request_of_program({**given, "lr": lr})) for lr in (0.1, 0.2)]
    with RunBatch(tmp_path, at_once=0, group="sweep-7") as batch:
        outcomes = batch.run_all(batch.check_all(wanted))
    runs = [each[1] for each in TOLD if each[0] == "open_run"]
    assert [(run.group, run.folder) for run in runs] == [("sweep-7", o.folder) for o in outcomes]
    assert len({run.key for run in runs}) == 2
    broken = request_of_program({**given, "set": {"tells.breaks": "check"}})
    with RunBatch(tmp_path, at_once=0) as batch:
        (tried,) = batch.check_all([BatchRun("broken", broken)])
    assert "it has no library" in tried.error.what


def test_figures_parameters_and_steps():
    config = {"rounds": 3, "options": {"fedproto": {"lambda": 0.5}}, "drop": [], "add": ["a", "b"]}
    run = pf.TrackedRun("k", "run", "", None, config, trials=2, rounds=3)
    assert run.figures(line(1, 0)) == {
        "test_accuracy": 0.25,
        "train_loss": 1.0,
        "loss_terms/ce": 0.5,
        "upload_bytes": 1000.0,
        "participants": 2.0,
        "evaluated": 2.0,
        "metrics/macro-f1/all": 0.5,
        "seconds/total": 0.5,
    }
    assert "test_accuracy" not in run.figures(line(1, 1))
    assert (run.step(line(1, 0)), run.trial(line(1, 0))) == (1, "trial-1")
    assert run.parameters() == {"rounds": 3, "options.fedproto.lambda": 0.5, "add": "a, b"}
