"""Tests of the screen for runs that train at the same time, on a terminal and elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

import protofl as pf
from protofl import RunFailure
from protofl.records.row import Row
from protofl.runs.request.request import Request
from protofl_cli.screens import batch_screen
from protofl_cli.screens.batch_screen import BatchScreen, show_failures
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.batch_events import BatchRun, CheckedRun, Outcome

RUNS = [BatchRun(f"lr={n}", Request({})) for n in range(4)]


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(batch_screen, "time", found)
    return found


@pytest.fixture
def drawn(monkeypatch):
    """Return the live lines of a terminal by key, as last drawn."""
    lines = {}

    def show(bars, label, status, share=None, key=""):
        lines[key] = (label, status, share)

    monkeypatch.setattr("protofl_cli.screens.render.Bars.live", True)
    monkeypatch.setattr("protofl_cli.screens.render.Bars.show", show)
    monkeypatch.setattr(
        "protofl_cli.screens.render.Bars.drop", lambda self, key: lines.pop(key, None)
    )
    return lines


def tried(screen, **there):
    for number, wanted in enumerate(RUNS):
        done = 10 if wanted.name in there.get("finished", ()) else 0
        found = CheckedRun(wanted, done=done, rounds=10, steps=100)
        screen(events.RunChecked(found, number + 1, len(RUNS)))


def round_done(run, number, accuracy):
    row = Row({"round": number, "test_accuracy": accuracy})
    return events.OfRun(run, pf.events.RoundDone(row))


def rows(screen, wanted, count):
    screen(events.RunStarted(wanted))
    screen(events.OfRun(wanted, events.RunPlanned(10, 1, 0, Path("x"))))
    for number in range(count):
        screen(round_done(wanted, number, number / 10))


def test_a_line_for_each_run_that_goes_on_and_one_for_all(drawn, clock, capsys):
    with BatchScreen(4) as screen:
        tried(screen, finished=["lr=0"])
        assert drawn["all"] == ("dry runs", "4/4 runs", 1.0)
        rows(screen, RUNS[1], 0)
        clock.now = 20.0
        rows(screen, RUNS[2], 0)
        for number in range(5):
            screen(round_done(RUNS[1], number, 0.5))
        assert drawn[str(id(RUNS[1]))] == ("lr=1", "round 5/10  acc 50.0%, best 50.0%", 0.5)
        # Half of one of three runs took 20 s; two and a half runs are left.
        assert drawn["all"] == ("all", "1/4 runs, 1:40 left", 0.25)
        screen(events.RunEnded(Outcome(RUNS[1], "finished", Path("x"))))
        assert str(id(RUNS[1])) not in drawn
        error = RunFailure("it broke", do="mend it")
        screen(events.RunEnded(Outcome(RUNS[2], "failed", Path("y"), error=error)))
        assert drawn["all"][1].startswith("3/4 runs, 1 failed")
    said = capsys.readouterr().out
    assert "checked 4 runs, 1 of them are finished" in said
    assert "2/4 lr=1: finished, best accuracy 50.0%" in said and "3/4 lr=2: failed: it" in said
    show_failures(screen.failed)
    assert capsys.readouterr().err.split("\n")[:2] == [
        "error: lr=2 (y): it broke",
        "       mend it",
    ]


def test_a_search_that_goes_on_has_more_runs_in_all(capsys):
    with BatchScreen(1) as screen:
        for run in RUNS[:3]:
            rows(screen, run, 1)
        for run in RUNS[:3]:
            screen(events.RunEnded(Outcome(run, "finished", Path("x"))))
    said = capsys.readouterr().out
    assert all(f"{n}/3 lr={n - 1}: finished" in said for n in (1, 2, 3))


def test_notes_that_all_runs_have_are_told_once_and_quiet_is_quiet(capsys):
    with BatchScreen(4) as screen:
        for wanted in RUNS:
            screen(events.OfRun(wanted, pf.events.Note("batches are small")))
    assert capsys.readouterr().out == "note: lr=0: batches are small\n"
    with BatchScreen(4, quiet=True) as screen:
        tried(screen)
        rows(screen, RUNS[0], 2)
        screen(events.OfRun(RUNS[0], pf.events.Note("batches are small")))
        screen(events.RunEnded(Outcome(RUNS[0], "finished", Path("x"))))
    assert capsys.readouterr().out == ""
