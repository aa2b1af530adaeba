"""Tests of interrupts before a command has started its work."""

from __future__ import annotations

import builtins
import signal

import pytest

from protofl_cli import app, start
from protofl_cli.interrupts import Terminated, put_off

pytestmark = pytest.mark.always


def terminated(number, frame):
    raise Terminated


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_what_is_put_off_comes_at_the_end(number, kind):
    before = signal.signal(signal.SIGTERM, terminated)
    # Tests that run in the background of a script ignore SIGINT by default.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    done = []
    try:
        with pytest.raises(kind):
            with put_off():
                signal.raise_signal(number)
                done.append(True)
        assert done
        assert signal.getsignal(signal.SIGTERM) is terminated
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, usual)
    with put_off():
        pass


def test_interrupted_while_the_command_line_is_imported(monkeypatch, capsys):
    real = builtins.__import__

    def interrupts(name, *given):
        if name == "protofl_cli.app":
            raise KeyboardInterrupt
        return real(name, *given)

    monkeypatch.setattr(builtins, "__import__", interrupts)
    with pytest.raises(SystemExit) as caught:
        start.main()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_interrupted_while_the_commands_are_put_together(monkeypatch, capsys):
    def interrupts():
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(app, "app", interrupts)
    with pytest.raises(SystemExit) as caught:
        app.main()
    signal.signal(signal.SIGTERM, before)
    assert caught.value.code == 130
    assert "interrupted" in capsys.readouterr().err
