"""Count the lines of the methods' files that stand in more than one place.

    python .ci/repetition.py

A line counts as repeated if it lies in a window of five lines of code that also occurs elsewhere in
the methods: signatures, declarations and hooks included. Comments, docstrings, blank lines and
extra spaces are left out.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

METHODS = Path(__file__).parents[1] / "plugins/protofl_plugins/methods"
WINDOW = 5


def code_lines(source: str) -> list[str]:
    """Return the lines of a source without comments, docstrings, blank lines and extra spaces."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            text = node.body[0]
            end = text.end_lineno or text.lineno
            lines[text.lineno - 1 : end] = [""] * (end - text.lineno + 1)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start
        if token.type == tokenize.COMMENT and lines[row - 1]:
            lines[row - 1] = lines[row - 1][:column]
    return [" ".join(line.split()) for line in lines if line.strip()]


def repeated_lines(files: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Return {file: (lines in a window that also occurs elsewhere, all lines)}.

    Args:
        files: {name: source}.
    """
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


def in_methods() -> tuple[int, int]:
    """Return the repeated lines and all lines of the methods' files."""
    files = {p.name: p.read_text(encoding="utf-8") for p in sorted(METHODS.glob("[a-z]*.py"))}
    repeated, lines = zip(*repeated_lines(files).values(), strict=True)
    return sum(repeated), sum(lines)


if __name__ == "__main__":
    repeated, lines = in_methods()
    print(f"repeated lines in methods: {repeated:,} of {lines:,} ({repeated / lines:.1%})")
