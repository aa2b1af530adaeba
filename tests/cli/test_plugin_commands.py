"""Tests of commands that plugins add: found by entry points, imported when they are called."""

from __future__ import annotations

import json
import sys

import pytest

from protofl.hooks.discovery import command_help, satellites
from protofl.hooks.discovery.kinds import Plugin

GREET = '''
"""A module with commands."""
import torch_is_imported_here as heavy
import typer
import protofl as pf

def greet(name: str = typer.Argument(help="Who."), loud: bool = typer.Option(False, help="Shout.")):
    """Greet [somebody] in one line,
    politely.

    And a second paragraph.
    """
    if name == "nobody":
        raise pf.UsageError("there is nobody to greet", do="give a name")
    if name == "exit":
        raise typer.Exit(5)
    typer.echo(f"hello {name}{'!' if loud else ''}")

more = typer.Typer(help="More commands.", rich_help_panel="Others")

@more.command()
def first():
    """Print one."""
    typer.echo("one")

alone = typer.Typer()
number = 7
'''


@pytest.fixture
def installed(strangers, tmp_path):
    """Install commands of another distribution, whose import of a library can be counted."""
    (tmp_path / "lib").mkdir()
    entries = {name: f"greetings_module:{name}" for name in ("greet", "more", "alone")}
    strangers("greetings", {"command": entries}, GREET)
    folder = tmp_path / "site-greetings"
    (folder / "torch_is_imported_here.py").write_text("print('imported')")
    yield folder
    sys.modules.pop("torch_is_imported_here", None)
    sys.modules.pop("greetings_module", None)


def test_help_has_a_line_for_each_command_and_imports_none(cli, installed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    output = cli("--help").output
    assert "Greet [somebody] in one line, politely." in output
    assert "second paragraph" not in output
    assert "More commands." in output and "─ Others ─" in output and "─ Plugins ─" in output
    assert "A module with commands." in output  # of `alone`, whose app has no help
    assert output.index("─ Run and inspect ─") < output.index("─ Plugins ─")
    assert "greetings_module" not in sys.modules


def test_a_function_is_a_command(cli, installed):
    found = cli("greet", "you", "--loud")
    assert (found.exit_code, found.output) == (0, "imported\nhello you!\n")
    assert "Greet [somebody] in one line" in cli("greet", "--help").output


def test_an_app_is_a_group_of_commands(cli, installed):
    assert cli("more", "first").output.endswith("one\n")
    assert "Print one." in cli("more", "--help").output


def test_errors_and_exit_codes_are_those_of_our_commands(cli, installed):
    found = cli("greet", "nobody")
    assert found.exit_code == 2
    assert found.stderr.splitlines()[0] == "error: there is nobody to greet"
    assert cli("greet", "exit").exit_code == 5
    assert cli("greet").exit_code == 2
    assert "did you mean greet" in cli("gret").stderr


def test_list_show_and_check(cli, installed, monkeypatch):
    listed = json.loads(cli("list-plugins", "--kind", "command", "--json").stdout)
    status = {each["name"]: each["status"] for each in listed}
    assert status.keys() >= {"alone", "generator", "greet", "more"} and {*status.values()} == {"ok"}
    table = cli("list-plugins", "--kind", "command").output
    assert "Greet [somebody] in one line, politely" in table
    shown = cli("show", "command/greet").output
    assert "protofl greet --help" in shown and "Greet [somebody]" in shown
    checked = cli("check", "command/more")
    assert checked.exit_code == 0, checked.output


SLOPPY = """
import torch

def sloppy(number: int = 3):
    print(number)

import typer
from typing import Annotated

def fails(number: Annotated[int, typer.Option(), typer.Option()] = 3):
    "Take an option that is described twice, which Typer refuses."
"""


@pytest.mark.parametrize(
    ("name", "failed"),
    [
        ("sloppy", {"words", "options", "import"}),
        ("fails", {"options", "help", "import"}),
    ],
)
def test_check_finds_what_is_wrong(cli, strangers, name, failed):
    strangers("sloppy", {"command": {name: f"sloppy_module:{name}"}}, SLOPPY)
    found = cli("check", f"command/{name}", "--json")
    assert found.exit_code == 1
    checks = {c["check"]: c for c in json.loads(found.stdout)["checks"]}
    assert {name for name, c in checks.items() if c["outcome"] != "passed"} == failed
    assert "imports torch" in checks["import"]["why"]


def test_check_needs_an_installed_command(cli, tmp_path):
    found = cli("check", "command/mine.py:f")
    assert found.exit_code == 2 and "is not installed" in found.stderr


def test_a_blocked_command_is_not_there(cli, installed, monkeypatch):
    monkeypatch.setenv("PROTOFL_BLOCK", "command/greet")
    assert "Greet" not in cli("--help").output
    assert "no such command 'greet'" in cli("greet", "you").stderr


def test_a_name_of_a_satellite_says_what_to_install(cli, monkeypatch):
    monkeypatch.setitem(satellites.SATELLITES, "ray", ("beam",))
    for words in (["beam", "--help"], ["show", "backend/beam"]):
        found = cli(*words)
        assert found.exit_code == 2 and "pip install . ./plugins/protofl_ray" in found.stderr
    assert "./plugins" not in cli("runs", "beam").stderr


# --- commands that clash or fail ----------------------------------------------------------------


def test_a_name_of_ours_stays_ours(cli, strangers):
    strangers("theirs", {"command": {"runs": "theirs_module:f"}}, "def f():\n    'Theirs.'")
    told = "command 'runs' of theirs 1.5, because protofl has one of this name"
    helped = cli("--help")
    assert told in " ".join(helped.output.split()) and "List, show, compare" in helped.output
    assert cli("runs", "diff").exit_code == 2  # theirs has no such command
    listed = json.loads(cli("list-plugins", "--kind", "command", "--json").stdout)
    status = next(p["status"] for p in listed if p["name"] == "runs")
    assert status.startswith("clash: ") and told in status


def test_two_plugins_with_one_name(cli, strangers, monkeypatch):
    for name in ("first", "second"):
        strangers(name, {"command": {"both": f"{name}_module:f"}}, "def f():\n    'Print.'")
    helped = cli("--help")
    assert helped.exit_code == 0 and "Clash: first and second have this command." in helped.output
    called = cli("both")
    assert called.exit_code == 2
    assert "'both' is a command of first and a command of second" in called.stderr
    assert "PROTOFL_BLOCK=both@second" in called.stderr and "--block" not in called.stderr
    assert cli("list-plugins", "--names").exit_code == 0  # other commands work
    monkeypatch.setenv("PROTOFL_BLOCK", "both@second")
    assert cli("both").exit_code == 0


BROKEN = {
    "import": ("import a_library_that_is_missing\ndef f():\n    'Print.'", "ModuleNotFoundError"),
    "syntax": ("def f(:", "SyntaxError"),
    "ends": ("raise SystemExit(3)", "sys.exit(3)"),
    "nothing": ("", "AttributeError"),
    "number": ("f = 7", "it must name a function or a typer.Typer"),
    "class": ("class f: pass", "it must name a function or a typer.Typer"),
    "option": (
        "import typer\nfrom typing import Annotated\n"
        "def f(x: Annotated[int, typer.Option(), typer.Option()] = 1):\n    'Print.'",
        "is broken: ",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_command_says_so_in_a_line_and_breaks_no_other(cli, strangers, name):
    source, words = BROKEN[name]
    strangers("broken", {"command": {"bad": "broken_module:f"}}, source)
    strangers("fine", {"command": {"good": "fine_module:f"}}, "def f():\n    'Print.'")
    helped = cli("--help")
    assert helped.exit_code == 0 and " bad " in helped.output and " good " in helped.output
    called = cli("bad", "--help")
    assert called.exit_code == 2 and called.stdout == ""
    lines = [line for line in called.stderr.splitlines() if not line.startswith(" ")]
    assert len(lines) == 1 and lines[0].startswith("error: ") and words in called.stderr
    assert "broken 1.5" in called.stderr
    assert "Traceback" not in called.stderr
    assert "Traceback" in cli("bad", "--debug").stderr
    assert cli("list-plugins", "--kind", "command").exit_code == 0


# --- help without an import -----------------------------------------------------------------------


def summary(target):
    return command_help.summary(Plugin("command", "x", "1.5", "theirs", target))


def test_the_help_of_a_module_in_a_package(tmp_path, monkeypatch):
    inner = tmp_path / "outer_package" / "inner"
    inner.mkdir(parents=True)
    fails = "raise AssertionError('imported')"
    (inner.parent / "__init__.py").write_text(fails)
    (inner / "__init__.py").write_text(fails)
    (inner / "commands.py").write_text(f"{fails}\nx: object = App(help='Found.', panel=1)")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert summary("outer_package.inner.commands:x") == ("Found.", "")


@pytest.mark.parametrize("target", ["missing_module:f", "missing.inner:f", "sys:exit", "", "json"])
def test_a_command_without_a_source_has_a_line_nevertheless(target):
    assert summary(target)[0]
