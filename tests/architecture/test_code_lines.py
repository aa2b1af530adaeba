"""Test the count of lines of code that CI prints."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / ".ci/code_lines.py"

TEXT = '''"""A docstring

of three lines."""

# a comment
x = """text
that counts"""


def f():
    """A docstring."""
    return [
        1,  # and a comment

    ]
'''


@pytest.fixture(scope="module")
def code_lines():
    spec = importlib.util.spec_from_file_location("code_lines", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_blank_lines_comments_and_docstrings_do_not_count(code_lines):
    assert code_lines.code_lines(TEXT) == 2 + 1 + 3


def test_each_file_counts_for_its_package(code_lines):
    files = dict.fromkeys(
        [
            "core/protofl/runs/a.py",
            "core/protofl/testing/b.py",
            "plugins/x/c.py",
            "plugins/x/tests/f.py",
        ],
        "x = 1\n",
    )
    files |= {"docs/a.py": "x = 1\n", "core/protofl/py.typed": ""}
    assert code_lines.counts(files) == {
        "core/protofl": 1,
        "core/protofl/testing": 1,
        "plugins/x": 1,
        "tests": 1,
    }


def test_the_table_has_the_change_of_each_package(code_lines):
    lines, before = Counter({"core/a": 1200, "tests": 3}), Counter({"core/a": 1000, "core/b": 50})
    rows = [row.split() for row in code_lines.table(lines, before).splitlines()]
    assert rows == [
        ["core/a", "1,200", "+200"],
        ["core/b", "0", "-50"],
        ["packages", "together", "1,200", "+150"],
        ["tests", "3", "+3"],
    ]


@pytest.mark.slow
def test_it_compares_with_a_commit(tmp_path):
    def git(*words):
        who = ["-c", "user.name=n", "-c", "user.email=e"]
        command = ["git", *who, *words]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    for place in (".ci", "core/a"):
        (tmp_path / place).mkdir(parents=True)
    script = tmp_path / ".ci/code_lines.py"
    script.write_bytes(FILE.read_bytes())
    module = tmp_path / "core/a/m.py"
    module.write_text("x = 1\n")
    git("init", "-b", "main")
    git("add", "-A")
    git("commit", "-m", "one")
    module.write_text("x = 1\ny = 2\n")
    git("commit", "-am", "two")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert "core/a                             2      +1" in done.stdout
    (tmp_path / ".ci/baseline").write_text(git("rev-parse", "HEAD^"))
    module.write_text("x = 1\ny = 2\nz = 3\n")
    git("commit", "-am", "three")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert "core/a                             3      +2" in done.stdout
