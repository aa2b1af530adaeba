"""Tests of the count of repeated lines in the methods' files, which CI prints."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / ".ci/repetition.py"
MOST = 0.1
"""The largest share of lines of the methods that may stand in more than one place."""


@pytest.fixture(scope="module")
def repetition():
    spec = importlib.util.spec_from_file_location("repetition", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_counter_sees_what_stands_twice(repetition):
    body = "def f(x):\n    # why\n    a = x + 1\n    b = a * 2\n    c = b - 3\n    return  c\n"
    other = '"""A file."""\n\nimport this\n\n\n' + body.replace("# why", '"""Add."""')
    found = repetition.repeated_lines({"one": body, "two": other})
    assert found == {"one": (5, 5), "two": (5, 6)}
    found = repetition.repeated_lines({"one": body, "two": "import this\n" * 3})
    assert found["one"] == (0, 5)


def test_the_counter_sees_hooks_with_their_signatures(repetition):
    hooks = "".join(f"    def f{n}(self):\n        a = 1\n        return a\n\n" for n in range(4))
    source = f"class A:\n{hooks}"
    assert repetition.repeated_lines({"one": source, "two": source})["two"] == (13, 13)


def test_methods_say_things_once(repetition):
    """What several methods do is in a file that they share."""
    repeated, lines = repetition.in_methods()
    assert lines > 4000
    assert repeated < MOST * lines, f"{repeated} of {lines} lines"
