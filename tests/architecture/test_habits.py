"""Tests of commit messages, tests of changed files, dependency groups, pinned actions, SBOM."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import rotation

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def script(monkeypatch):
    """Provide ``script(name)``: a module of `.ci`."""
    monkeypatch.syspath_prepend(ROOT / ".ci")

    def load(name):
        spec = importlib.util.spec_from_file_location(name, ROOT / f".ci/{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    sys.modules.pop("code_lines", None)


@pytest.mark.parametrize(
    ("message", "faults"),
    [
        ("Read tables\n\nThe reader kept all rows.", []),
        ("Read tables\n\nThe reader kept all rows.\n# a comment of git", []),
        (f"{72 * 'a'}\n\nWhy.", []),
        (f"{73 * 'a'}\n\nWhy.", ["the subject has 73 characters, at most 72 are allowed"]),
        ("Read tables", ["there is no body, which says why"]),
        ("Read tables\n\n# a comment of git", ["there is no body, which says why"]),
        ("Read tables\nand more\n\nWhy.", ["the second line is not empty"]),
    ],
)
def test_a_commit_message_has_a_short_subject_and_says_why(script, message, faults):
    assert script("commit_messages").faults(message) == faults


def test_tests_of_changed_files(script, tmp_path):
    for folder in ("core/federation", "core/hooks", "cli/commands", "flower", "architecture"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
    (tmp_path / "tests/core/hooks/test_one.py").touch()
    changed = [
        "tests/core/hooks/test_one.py", "tests/core/hooks/test_gone.py", "tests/conftest.py",
        "core/protofl/hooks/a.py", "core/protofl/federation/round/b.py", "core/protofl/hooks/c.py",
        "cli/protofl_cli/app.py", "plugins/protofl_flower/protofl_flower/node/host.py",
        "docs/index.md", ".ci/run",
    ]  # fmt: skip
    found = script("touched").tests_of(changed, tmp_path)
    assert found[:2] == ["tests/core/hooks/test_one.py", "tests/core/hooks"]
    assert {*found[2:]} == {
        "tests/core/federation", "tests/cli", "tests/flower", "tests/architecture"
    }  # fmt: skip


class Item:
    def __init__(self, nodeid):
        self.nodeid = nodeid


def test_touched_tests_are_added_up_to_a_number():
    items = [Item(f"tests/a/test_{n}.py::test_x") for n in range(40)]
    items += [Item("tests/ab/test_x.py::test_x"), Item("tests/b/test_y.py::test_x")]
    added = rotation.touched(items, {items[0]}, ["tests/b/test_y.py", "tests/a"])
    assert added == [items[-1], *items[1 : rotation.MOST]]
    assert rotation.touched(items, set(), [""]) == []


def test_groups_of_dependencies_are_the_extras():
    """pip 24 reads extras only, newer tools read groups."""
    extras = PROJECT["project"]["optional-dependencies"]
    assert PROJECT["dependency-groups"] == {name: extras[name] for name in ("dev", "docs")}


def test_actions_and_hooks_are_pinned_by_hash():
    files = [*(ROOT / ".github/workflows").glob("*.yml")]
    used = [u for f in files for u in re.findall(r"uses: (?!docker:)(.*)", f.read_text("utf-8"))]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    revisions = re.findall(r"rev: (.*)", hooks)
    assert len(used) > 20 and len(revisions) == hooks.count("repo: https:")
    assert [u for u in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", u)] == []
    assert [r for r in revisions if not re.fullmatch(r"[0-9a-f]{40} # v\d+\.\d+\.\d+", r)] == []


def test_the_list_of_components_is_up_to_date(script):
    """``python .ci/sbom.py`` writes it."""
    text = (ROOT / "sbom.cdx.json").read_text(encoding="utf-8")
    assert text == script("sbom").sbom()
    names = {c["name"] for c in json.loads(text)["components"]}
    assert {"torch", "pluggy"} <= names and len(names) == len(PROJECT["project"]["dependencies"])


def test_the_package_is_a_command():
    command = [sys.executable, "-m", "protofl", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("protofl "), done.stderr
