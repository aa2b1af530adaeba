"""Tests that the methods' files repeat little code, counted in windows of five lines."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

METHODS = sorted((Path(__file__).parents[2] / "plugins/protofl_plugins/methods").glob("[a-z]*.py"))
WINDOW = 5


def code_lines(source):
    """Return the lines of a source without comments, docstrings, blank lines and extra spaces."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            text = node.body[0]
            lines[text.lineno - 1 : text.end_lineno] = [""] * (text.end_lineno - text.lineno + 1)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start
        if token.type == tokenize.COMMENT and lines[row - 1]:
            lines[row - 1] = lines[row - 1][:column]
    return [" ".join(line.split()) for line in lines if line.strip()]


def repeated_lines(files):
    """Return {file: (lines in a window that also occurs elsewhere, all lines)}."""
    code = {name: code_lines(source) for name, source in files.items()}
    windows = Counter(
        tuple(lines[n : n + WINDOW])
        for lines in code.values()
        for n in range(len(lines) - WINDOW + 1)
    )
    found = {}
    for name, lines in code.items():
        twice = [n for n in range(len(lines)) if windows[tuple(lines[n : n + WINDOW])] > 1]
        found[name] = len({m for n in twice for m in range(n, n + WINDOW)}), len(lines)
    return found


def test_the_counter_sees_what_stands_twice():
    body = "def f(x):\n    # why\n    a = x + 1\n    b = a * 2\n    c = b - 3\n    return  c\n"
    other = '"""A file."""\n\nimport this\n\n\n' + body.replace("# why", '"""Add."""')
    assert repeated_lines({"one": body, "two": other}) == {"one": (5, 5), "two": (5, 6)}
    assert repeated_lines({"one": body, "two": "import this\n" * 3})["one"] == (0, 5)


def test_methods_say_things_once():
    """Only hook signatures repeat: code that two methods share is in a separate file."""
    found = repeated_lines({path.name: path.read_text(encoding="utf-8") for path in METHODS})
    repeated, lines = (sum(column) for column in zip(*found.values(), strict=True))
    assert len(found) >= 18
    assert repeated < 0.05 * lines, f"{repeated} of {lines} lines: {found}"
