"""Test that docs/reference/seeds.md names every random stream that the code opens."""

from __future__ import annotations

import ast
import re

from doc_pages import DOCS, ROOT

STREAMS = {"global_stream", "random_stream", "numpy_stream", "derived_key"}


def words_of(node, assigned):
    """Return the string keys of a stream; for ``*keys``, those assigned to ``keys``."""
    if isinstance(node, ast.Starred) and isinstance(node.value, ast.Name):
        return [w for each in assigned.get(node.value.id, ()) for w in words_of(each, assigned)]
    if isinstance(node, ast.Tuple):
        return [word for part in node.elts for word in words_of(part, assigned)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def streams(source):
    """Yield the string keys of every stream that a source opens."""
    tree = ast.parse(source)
    assigned = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in STREAMS:
                yield [w for argument in node.args[1:] for w in words_of(argument, assigned)]


def opened():
    found = set()
    for folder in ("core", "plugins/protofl_plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            if not {"testing", "bench"} & {*path.parts}:
                source = path.read_text(encoding="utf-8")
                if any(name in source for name in STREAMS):
                    found |= {word for words in streams(source) for word in words}
    return found


def test_every_stream_is_on_the_page():
    page = (DOCS / "reference/seeds.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    listed = {word for row in rows for word in re.findall(r"`([\w-]+)`", row)}
    assert len(opened()) >= 15
    assert opened() == listed


def test_a_stream_is_found_however_its_keys_are_written():
    source = 'keys = ("a", 3)\nrandom_stream(1, *keys, "b")\npf.numpy_stream(seed, "c", x)\n'
    assert [*streams(source)] == [["a", "b"], ["c"]]
