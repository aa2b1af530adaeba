"""Tests of the examples as users get them: built, installed, and used as their READMEs say."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from installing import write_dist_info
from typer.testing import CliRunner

from protofl_cli.app import app

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml"))
PROTOFL = [sys.executable, "-c", "from protofl_cli.app import main; main()"]
LONGEST = {"proto-nce": 30, "fedsam": 45}
"""Maximum number of lines of Python of each method."""


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """Return a folder in which pip has installed all distributions, built from their sources."""
    site = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(site)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options]
    done = run([*pip, *(str(EXAMPLES / name) for name in NAMES)], cwd=site)
    assert done.returncode == 0, done.stderr
    return site


def run(words, cwd, site=None):
    path = os.pathsep.join(filter(None, [str(site or ""), os.environ.get("PYTHONPATH", "")]))
    home = {"HOME": str(cwd), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    environment = os.environ | home
    return subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def commands(name):
    """Return the commands in the README's shell blocks, as lists of words."""
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def test_they_say_how_to_use_them():
    assert NAMES == [f"protofl-{name}" for name in ("fedsam", "proto-nce", "widths")]
    for name in NAMES:
        found = commands(name)
        assert found[0] == ["pip", "install", "."] and found[-1] == ["pytest", "tests"]
        assert [words for words in found if words[:2] == ["protofl", "run"]]


COMMANDS = [words for name in NAMES for words in commands(name) if words[0] == "protofl"]


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_readme_s_commands(installed, tmp_path, words):
    done = run([*PROTOFL, *words[1:]], tmp_path, installed)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Make all distributions importable in this process, and work in an empty folder."""
    before = {*sys.modules}
    for name in NAMES:
        write_dist_info(EXAMPLES / name, tmp_path / "site")
        monkeypatch.syspath_prepend(str(EXAMPLES / name))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield
    for name in {*sys.modules} - before:
        if name.partition(".")[0] in {each.replace("-", "_") for each in NAMES}:
            del sys.modules[name]


QUICK = [words for words in COMMANDS if words[1] in ("show", "partition")]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_the_readme_s_commands_in_this_process(words):
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, result.output


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "words",
    [
        "fedsam --models cnn4 --set rho=0.1",
        "proto-nce --models cnn4",
        "fedproto --models widths5 --partition quantity",
    ],
    ids=NAMES,
)
def test_they_run_in_this_process(words, few):
    small = f"--dataset {few} --clients 2 --rounds 1 --batch-size 64 --feature-dim 16"
    result = CliRunner().invoke(app, ["run", *words.split(), *small.split(), "--backend", "local"])
    assert result.exit_code == 0, result.output


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_their_own_tests_pass(installed, tmp_path, name):
    tests = str(EXAMPLES / name / "tests")
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-W", "error"]
    done = run([sys.executable, "-m", "pytest", *options, tests], tmp_path, installed)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_plugins_are_listed_with_their_distributions(installed, tmp_path):
    done = run([*PROTOFL, "list-plugins", "--json"], tmp_path, installed)
    import json

    found = {(p["kind"], p["name"]): p for p in json.loads(done.stdout)}
    owners = {
        ("method", "fedsam"): "protofl-fedsam",
        ("method", "proto-nce"): "protofl-proto-nce",
        ("model-group", "widths5"): "protofl-widths",
        ("partitioner", "quantity"): "protofl-widths",
    }
    for plugin, owner in owners.items():
        assert (found[plugin]["distribution"], found[plugin]["status"]) == (owner, "ok")


def code_lines(text):
    """Return code lines without imports, blanks, comments, docstrings; a signature is one line."""
    tree = ast.parse(text)
    skipped = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            if isinstance(getattr(body[0], "value", None), ast.Constant):
                skipped |= {*range(body[0].lineno, body[0].end_lineno + 1)}
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            skipped |= {*range(node.lineno, node.end_lineno + 1)}
        if isinstance(node, ast.FunctionDef):
            skipped |= {*range(node.lineno + 1, node.body[0].lineno)}
    lines = enumerate(text.splitlines(), start=1)
    return [
        line for n, line in lines if line.strip() and line.strip()[0] != "#" and n not in skipped
    ]


@pytest.mark.parametrize("name", LONGEST)
def test_a_method_is_short(name):
    path = EXAMPLES / f"protofl-{name}/protofl_{name.replace('-', '_')}.py"
    found = code_lines(path.read_text(encoding="utf-8"))
    hooks = [line for line in found if line.strip() != "@pf.hookimpl"]
    assert len(hooks) <= LONGEST[name], "\n".join(hooks)
