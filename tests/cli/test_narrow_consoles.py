"""Tests of terminals whose encoding lacks most characters: cp1252 (Windows) and ASCII."""

from __future__ import annotations

import io
import sys

import pytest
from typer.main import get_command

from protofl_cli.app import app, main
from protofl_cli.screens import render
from protofl_cli.standard_streams import shown

WALK = """
run fedproto --out runs/a
run local --out runs/b
runs list
runs show runs/a
compare runs --baseline local
report runs --out report.html
list-plugins
show machine
show fedsa
show fedgen
partition show --clients 3
"""
PLANS = """
sweep fedtgp --models cnn4 --rounds 1 --grid tau=10,100 --plan
reproduce fedtgp/table-10 --plan
"""


def helps(command, words=()):
    yield [*words, "--help"]
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, [*words, name])


@pytest.fixture
def typed(monkeypatch):
    """Return a function that runs a command on a strict console: exit code and output."""

    def typed(encoding, *words):
        with monkeypatch.context() as patch:
            both = io.TextIOWrapper(io.BytesIO(), encoding, errors="strict", write_through=True)
            patch.setattr(sys, "stdout", both)
            patch.setattr(sys, "stderr", both)
            patch.setattr(sys, "argv", ["protofl", *words])
            patch.setattr("signal.signal", lambda *args: None)
            with pytest.raises(SystemExit) as end:
                main()
            return end.value.code, both.buffer.getvalue().decode(encoding)

    return typed


def check_all(typed, encoding, walk):
    for words in walk:
        code, text = typed(encoding, *words)
        assert code in (0, None), (words, text)
        unknown = [line for line in text.splitlines() if "??" in line or " ? " in line]
        assert not unknown, words


@pytest.mark.slow
def test_a_command_prints(typed):
    check_all(typed, "cp1252", [["list-plugins"], ["show", "fedsa"], ["show", "fedsa", "--help"]])


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_every_command_prints(typed, tiny, encoding):
    walk = [line.split() for line in WALK.split("\n") if line]
    check_all(typed, encoding, [[*words, *tiny] if words[0] == "run" else words for words in walk])
    check_all(typed, encoding, helps(get_command(app)))


@pytest.mark.slow
def test_plans_print(typed):
    check_all(typed, "ascii", [line.split() for line in PLANS.split("\n") if line])


def test_signs_have_forms_in_ascii(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
        assert shown("λ₂ ≥ 0.1 ± 3 × Σ ‖x̄ − μ‖²") == "lambda2 >= 0.1 +- 3 x Sigma |x - mu|2"
        assert shown("漢\x1b") == "?\\x1b"
        patch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "cp1252"))
        assert shown("μ ± 3 × 2") == "mu ± 3 × 2"


@pytest.mark.parametrize("width", ["80", ""])
def test_long_names_leave_room_for_the_figures(monkeypatch, capsys, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    if width:
        monkeypatch.setenv("COLUMNS", width)
    name = "csv:" + "a_folder_with_a_long_name/" * 6 + "patients.csv"
    for heading, first in ((name, "accuracy"), ("client", name)):
        for keep in ((), (heading,)):
            render.table((heading, "best"), [(first, "61.25%")], right=("best",), keep=keep)
            text = capsys.readouterr().out
            assert "61.25%" in text and name in "".join(
                line.replace("61.25%", "").replace("best", "").strip() for line in text.splitlines()
            )
