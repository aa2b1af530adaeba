"""Tests that the methods' files repeat little code, counted in windows of five lines.

A method's file shows all its options, declarations and hooks, so these and short hooks of several
methods are alike by intent. A window lies within the body of one function.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

METHODS = sorted((Path(__file__).parents[2] / "plugins/protofl_plugins/methods").glob("[a-z]*.py"))
WINDOW = 5


def pieces(source):
    """Return the lines of each function's body.

    Without comments, docstrings, blank lines and extra spaces.
    """
    lines, tree = source.splitlines(), ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            text = node.body[0]
            lines[text.lineno - 1 : text.end_lineno] = [""] * (text.end_lineno - text.lineno + 1)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start
        if token.type == tokenize.COMMENT and lines[row - 1]:
            lines[row - 1] = lines[row - 1][:column]
    owner = [0] * len(lines)  # 0 for signatures and outside of functions
    for number, node in enumerate(ast.walk(tree), 1):
        if isinstance(node, ast.FunctionDef):
            body = node.body[0].lineno - 1
            owner[body : node.end_lineno] = [number] * (node.end_lineno - body)
    found = {}
    for line, piece in zip(lines, owner, strict=True):
        if piece and line.strip():
            found.setdefault(piece, []).append(" ".join(line.split()))
    return [*found.values()]


def repeated_lines(files):
    """Return {file: (lines in a window that also occurs elsewhere, all lines)}."""
    code = {name: pieces(source) for name, source in files.items()}
    windows = Counter(
        tuple(lines[n : n + WINDOW])
        for each in code.values()
        for lines in each
        for n in range(len(lines) - WINDOW + 1)
    )
    found = {}
    for name, each in code.items():
        repeated = 0
        for lines in each:
            twice = [n for n in range(len(lines)) if windows[tuple(lines[n : n + WINDOW])] > 1]
            repeated += len({m for n in twice for m in range(n, n + WINDOW)})
        found[name] = repeated, sum(map(len, each))
    return found


def test_the_counter_sees_what_stands_twice():
    steps = ["# why", "a = x + 1", "b = a * 2", "c = b - 3", "d = c", "return  d"]
    body = "def f(x):\n" + "".join(f"    {step}\n" for step in steps)
    other = '"""A file."""\n\nimport this\n\n\n' + body.replace("# why", '"""Add."""')
    assert repeated_lines({"one": body, "two": other}) == {"one": (5, 5), "two": (5, 5)}
    assert repeated_lines({"one": body, "two": "import this\n" * 3})["one"] == (0, 5)


def test_the_counter_leaves_short_hooks_alone():
    hooks = "".join(f"    def f{n}(self):\n        a = 1\n        return a\n\n" for n in range(4))
    source = f"class A:\n{hooks}"
    assert repeated_lines({"one": source, "two": source})["two"] == (0, 8)


def test_methods_say_things_once():
    """Only short hooks repeat: longer code that two methods share is in a separate file."""
    found = repeated_lines({path.name: path.read_text(encoding="utf-8") for path in METHODS})
    repeated, lines = (sum(column) for column in zip(*found.values(), strict=True))
    assert len(found) >= 18
    assert repeated < 0.02 * lines, f"{repeated} of {lines} lines: {found}"
