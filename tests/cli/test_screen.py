"""Tests of the screen of a run, mostly without a run."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

import protofl as pf
from protofl import events
from protofl.records.row import Row
from protofl_cli.screens.last_table import result_rows
from protofl_cli.screens.screen import Screen


def test_it_leaves_no_thread_behind():
    """A thread that outlives a run frees tensors while the interpreter exits, which aborts."""
    before = set(threading.enumerate())
    with Screen():
        assert set(threading.enumerate()) - before
    assert set(threading.enumerate()) <= before  # threads of other tests may have ended


CLASSES = SimpleNamespace(task=pf.datasets.Task())
"""Data for classification."""


def test_the_last_table_shows_the_accuracy_of_the_server_and_of_the_honest():
    trial = {
        "best_test_accuracy": 0.5,
        "best_round": 0,
        "final_test_accuracy": 0.4,
        "majority_accuracy": 0.3,
        "best_server_accuracy": 0.7,
        "best_server_round": 1,
        "final_server_accuracy": 0.6,
        "best_honest_accuracy": 0.55,
        "best_honest_round": 2,
        "final_honest_accuracy": 0.45,
    }
    mean = {key: value for key, value in trial.items() if "round" not in key}
    result = SimpleNamespace(summary={**trial, "rounds": 3, "trials": [trial], "mean": mean})
    _, rows = result_rows(
        result, SimpleNamespace(data=CLASSES, settings=SimpleNamespace(timing="rounds"))
    )
    assert rows[3:] == [
        ["best server accuracy", "70.00% after 2 of 3 rounds"],
        ["final server accuracy", "60.00%"],
        ["best accuracy of honest clients", "55.00% after 3 of 3 rounds"],
        ["final accuracy of honest clients", "45.00%"],
    ]


class Drawn:
    """A terminal's live line that records what it draws."""

    def __init__(self):
        self.live, self.lines, self.printed = True, [], []

    def show(self, label, status, share=None):
        self.lines.append((label, status, share))

    def line(self, text, style=""):
        self.printed.append(text)

    def stop(self):
        pass


@pytest.fixture
def screen(monkeypatch):
    """Return a screen on a terminal for a run of two rounds, with a fixed clock."""
    monkeypatch.setattr("protofl_cli.screens.screen.time", SimpleNamespace(monotonic=lambda: 100.0))
    screen = Screen()
    screen._bar = Drawn()
    screen._plan = SimpleNamespace(
        settings=SimpleNamespace(rounds=2, trials=1, timing="rounds"), data=CLASSES
    )
    return screen


def test_the_bar_is_over_clients(screen):
    screen(events.RoundStarted(0, 0))
    screen(events.StageStarted("train", 8))
    screen(events.ClientDone("train", 3))
    screen(events.ClientDone("train", 1))
    assert screen._bar.lines == [
        ("round 1/2", "set-up 0:00", None),
        ("round 1/2", "training 0/8 clients 0:00", 0.0),
        ("round 1/2", "training 1/8 clients 0:00", 0.125),
        ("round 1/2", "training 2/8 clients 0:00", 0.25),
    ]


def test_stages_without_clients_tell_how_long_they_take(screen, monkeypatch):
    screen._spent = [30.0]
    screen(events.RoundStarted(0, 1))
    screen(events.StageStarted("server", 0))
    monkeypatch.setattr("protofl_cli.screens.screen.time", SimpleNamespace(monotonic=lambda: 107.0))
    screen._draw()
    screen(events.StageStarted("checkpoint", 8))
    screen(events.ClientDone("checkpoint", 3))
    assert screen._bar.lines[1:] == [
        ("round 2/2", "server step 0:00  0:06 left", None),
        ("round 2/2", "server step 0:07  0:00 left", None),
        ("round 2/2", "saving 0/8 clients  0:00 left", 0.0),
        ("round 2/2", "saving 1/8 clients  0:00 left", 0.125),
    ]


def test_time_left_is_known_from_the_first_round_s_part(screen, monkeypatch):
    screen(events.RoundStarted(0, 0))
    screen(events.StageStarted("train", 2))
    monkeypatch.setattr("protofl_cli.screens.screen.time", SimpleNamespace(monotonic=lambda: 140.0))
    screen(events.ClientDone("train", 1))
    # Half of training is 0.4 of a round, which took 40 seconds: 1.6 rounds are left.
    assert screen._bar.lines[-1] == ("round 1/2", "training 1/2 clients  2:40 left", 0.5)


def test_the_accuracy_stands_beside_the_clients(screen):
    row = {"seconds": {"total": 1, "train": 1, "setup": 0, "evaluate": 1}, "round": 0}
    for number, accuracy in enumerate((0.5, 0.25)):
        screen(events.RoundStarted(0, number))
        screen(events.RoundDone(Row({**row, "round": number, "test_accuracy": accuracy})))
        screen._label = "x"
        screen._draw()
    assert screen._bar.lines[1][1].endswith("acc 50.0%")
    assert screen._bar.lines[-1][1].endswith("acc 25.0%, best 50.0%")


def test_what_comes_before_the_rounds_is_on_the_screen(screen, capsys):
    screen._plan = None
    screen.loading("fedsa · htfe8 · digits")
    screen(events.DryRunStarted())
    screen(events.FolderMade(None))
    assert capsys.readouterr().out.strip() == "fedsa · htfe8 · digits"
    assert [(label, share) for label, _, share in screen._bar.lines] == [
        ("loading", None),
        ("dry run", None),
        ("set-up", None),
    ]


def test_data_that_are_prepared_are_not_said_to_be_torch(screen):
    screen.loading("fedsa · htfe8 · csv:patients.csv")
    screen(events.Note("preparing csv-patients"))
    screen(events.Note("14 features"))
    shown = [text.rpartition(" ")[0] for _, text, _ in screen._bar.lines]
    assert shown == ["torch and plugins", "data"]


def test_a_quiet_screen_shows_nothing(screen, capsys):
    screen.quiet = True
    screen.loading("fedsa · htfe8 · digits")
    screen(events.DryRunStarted())
    screen(events.RoundStarted(0, 0))
    screen(events.StageStarted("train", 8))
    assert (screen._bar.lines, screen._bar.printed, capsys.readouterr().out) == ([], [], "")


@pytest.mark.parametrize("sign", ["\x1b[31m", "\x07", "\u202e", "\x9b"])
def test_signs_that_a_terminal_obeys_are_shown_escaped(cli, tmp_path, sign):
    """Covers folder names, messages of exceptions, and tables."""

    escaped, name = repr(sign)[1:-1], f"a{sign}b"
    folder = tmp_path / name
    (folder / "run").mkdir(parents=True)
    (folder / "run/config.json").write_text("{")
    said = [cli(*words) for words in (
        ("runs", "list", folder), ("runs", "show", folder / "run"), ("report", folder),
        ("run", name), ("compare", folder, "--baseline", name),
        ("run", "local", "--resume", "--out", folder), (name,), ("show", name),
    )]  # fmt: skip
    for result in said:
        shown = result.output.replace("\r\n", "\n")  # A table wraps a long path.
        assert escaped in shown.replace("\n", "") and sign not in shown


def test_a_trace_shows_signs_escaped(capsys):
    from protofl_cli.screens import render

    render.trace(ValueError("a\x1b[31mb"))
    render.plain(["a\x1b[31mb"])
    shown = capsys.readouterr()
    assert r"a\x1b[31mb" in shown.err and r"a\x1b[31mb" in shown.out
    assert "\x1b" not in shown.err + shown.out


def test_a_round_that_is_saved_during_the_next_one_has_its_own_time(screen, monkeypatch):
    """Its line names it and its seconds; the round that trains stays on the screen."""

    def at(seconds):
        monkeypatch.setattr(
            "protofl_cli.screens.screen.time", SimpleNamespace(monotonic=lambda: seconds)
        )

    seconds = {"total": 1, "train": 1, "setup": 0, "evaluate": 1}
    row = {"trial": 0, "seconds": seconds, "train_loss": 0.5}
    screen._bar.live = False
    screen(events.RoundStarted(0, 0))
    at(130.0)
    screen(events.RoundStarted(0, 1))
    at(132.0)
    screen(events.StageStarted("train", 8))
    screen(events.RoundDone(Row({**row, "round": 0, "test_accuracy": 0.5})))
    assert screen._bar.printed[-1].startswith("round 1/2: accuracy 50.0% (best), loss 0.500, 30")
    assert screen._label == "round 2/2"
    at(170.0)
    screen(events.RoundDone(Row({**row, "round": 1, "test_accuracy": 0.25})))
    assert screen._bar.printed[-1].startswith("round 2/2: accuracy 25.0%, loss 0.500, 40")
    assert screen._label == ""
