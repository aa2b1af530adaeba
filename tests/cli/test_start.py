"""Tests of the whole command line: fast start, few imports, clear errors."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import protofl
import protofl_cli
from protofl.hooks.discovery.registry import Registry
from protofl.system.options.table import OPTIONS, flag_of
from protofl_cli.commands.run import run
from protofl_cli.options.run_options import whole_command

PACKAGE = Path(protofl_cli.__file__).parent


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["sweep", "--help"], ["list-plugins", "--names"]]
)
def test_does_not_import_torch(words):
    heavy = {"torch", "numpy", "sklearn", "matplotlib", "protofl_plugins", "protofl_flower"}
    if words[0] not in ("run", "sweep"):
        heavy |= {"protofl.system.options.settings", "protofl.system.options.plugin_options"}
    heavy |= {"pydantic"} if words == ["--help"] else set()  # new versions of Typer parse with it
    heavy |= {"rich"} if words == ["list-plugins", "--names"] else set()
    code = f"""
import sys
sys.argv[1:] = {words!r}
from protofl_cli.app import main
try:
    main()
finally:
    found = {heavy!r} & set(sys.modules)
    print(f"heavy: {{sorted(found)}}", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert "heavy: []" in done.stderr
    assert done.stdout


BEFORE_TORCH = """
import sys

class Found(BaseException):
    pass

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise Found

sys.meta_path.insert(0, NoTorch())
sys.argv[1:] = {words!r}
from protofl_cli.app import main
try:
    main()
except Found:
    print("before torch", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("run fedsa --models htfe8", "fedsa · htfe8 · digits"),
        ("run --resume --out runs/mine", "resuming runs/mine"),
        ("run fedsa --models htfe8 --events events.jsonl", "fedsa · htfe8 · digits"),
    ],
)
def test_the_first_line_comes_before_torch(words, line):
    code = BEFORE_TORCH.format(words=words.split())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr.strip()) == (line, "before torch")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("run fedprotto", "method 'fedprotto'"),
        ("run fedsa --models htfe88", "model-group 'htfe88'"),
        ("run fedsa --models cnn4 --with top", "payload-transform 'top'"),
        ("run fedsa --models cnn4 --use inference=locall", "method 'locall'"),
        ("run fedsa --models cnn4 --add local_loss=fedtgpp.align", "method 'fedtgpp'"),
    ],
)
def test_wrong_names_are_found_before_torch(words, name):
    code = BEFORE_TORCH.format(words=words.split())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"unknown {name}" in done.stderr and "before torch" not in done.stderr


def test_help_names_every_command(cli):
    for result in (cli("--help"), cli("-h"), cli()):
        assert result.exit_code == 0
        for command in ("run", "list-plugins", "show", "partition", "data"):
            assert command in result.output


@pytest.mark.slow
@pytest.mark.parametrize("words", [["list-plugins"], ["list-plugins", "--names"]])
def test_a_reader_that_has_gone_is_no_error(words, subprocess_of):
    """``protofl … | head`` ends without an error, whether rich or protofl prints."""
    with subprocess_of(*words) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


def test_version(cli):
    result = cli("--version")
    assert (result.exit_code, result.output.strip()) == (0, f"protofl {protofl.__version__}")


def test_every_setting_has_its_option_and_the_reverse():
    command = whole_command("run", run, "")
    flags = {flag for parameter in command.params for flag in parameter.opts}
    own = {
        "method",
        "--config",
        "--out",
        "--resume",
        "--reuse",
        "--plan",
        "--quiet",
        "--debug",
        "--help-all",
        "--events",
        "--json",
        "--trust-code",
    }
    placed = {name for name, option in OPTIONS.items() if option.panel}
    assert placed == OPTIONS.keys() - {"method"}
    assert flags - {"--help", "-h"} == {flag_of(name) for name in placed} | own


def test_help_shows_the_options_that_are_used_most(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    flags = {flag_of(name): option.common for name, option in OPTIONS.items() if option.panel}
    few, every = (
        set(re.findall(r"^│ +(--[\w-]+)", cli("run", words).output, re.MULTILINE))
        for words in ("--help", "--help-all")
    )
    assert few & flags.keys() == {flag for flag, common in flags.items() if common}
    assert len(few - {"--help", "--help-all", "--debug"}) == 32
    assert flags.keys() <= every and few <= every


def test_help_of_run_says_ranges_and_defaults(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "220")
    output = cli("run", "--help-all").output
    for words in (
        "> 0, ≤ 1; default: 1",
        "constant | step | cosine | exponential; default: the data set's, otherwise constant",
        "default: digits",
        "> 0 | native; default: the data set's, or the group's",
        "N|off",
    ):
        assert words in output


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def test_only_render_imports_rich_and_nothing_imports_plugins():
    files = list(PACKAGE.rglob("*.py"))
    assert [f.name for f in files if "rich" in imports(f)] == ["render.py"]
    plugins = {"protofl_plugins", "protofl_flower", "protofl_ray"}
    assert not [f for f in files if plugins & {*imports(f)}]


@pytest.mark.parametrize(
    ("words", "what", "near"),
    [
        (["runn"], "no such command 'runn'", "did you mean run or runs?"),
        (["run", "--modles", "x"], "no such option: --modles", "did you mean --models"),
        (["run", "--clients", "many"], "'--clients'", ""),
        (["run", "--clients"], "--clients", ""),
        (["show"], "missing argument", ""),
        (["partition"], "missing command", "known: show"),
        (["runs", "lst"], "no such command 'lst'", "list"),
    ],
)
def test_mistakes_in_typing(cli, words, what, near):
    result = cli(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].startswith("error: ") and what in lines[0]
    assert near in result.stderr
    assert lines[-1].strip().startswith("see: protofl ") and lines[-1].endswith("--help")


def test_a_torchvision_of_another_torch_is_not_a_bug_of_protofl(cli, monkeypatch):
    """So it is after `pip install torch --index-url …/cpu` and `pip install protofl`."""

    def fail(self, kind=None):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(Registry, "plugins", fail)
    result = cli("list-plugins")
    assert result.exit_code == 1
    assert "the installed torchvision was built for another torch" in result.stderr
    assert "install both in one command" in " ".join(result.stderr.split())
    assert "internal error" not in result.stderr


def test_an_unexpected_error_is_one_line_unless_debugged(cli, monkeypatch):
    def fail(self, kind=None):
        raise ValueError("a bug")

    monkeypatch.setattr(Registry, "plugins", fail)
    result = cli("list-plugins")
    assert result.exit_code == 1
    assert "internal error: ValueError: a bug" in result.stderr
    assert "--debug" in result.stderr
    assert "Traceback" not in result.output
    result = cli("list-plugins", "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


@pytest.mark.slow
def test_characters_that_the_terminal_lacks_are_no_error(subprocess_of):
    process = subprocess_of("run", "--help", env={"PYTHONIOENCODING": "ascii"})
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "--models" in output
