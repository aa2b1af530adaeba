"""The picture of docs/background/architecture.md, held against the imports and against a run."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import traceback
from functools import cache
from pathlib import Path

import protofl as pf
import pytest
from protofl.program.naming import requested
from protofl.runs.run import start
from torch.nn.functional import cross_entropy

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core/protofl"
PAGE = (ROOT / "docs/background/architecture.md").read_text(encoding="utf-8")
KERNEL = ("runs", "rounds", "hosts", "plan", "plugin", "hookspecs", "views", "wire")
BESIDE = ("testing",)


def block(name):
    """The lines of the page's fenced block behind the marker ``<!-- NAME -->``."""
    found = re.search(rf"<!-- {name} -->\n+```text\n(.*?)```", PAGE, re.DOTALL)
    assert found, f"docs/background/architecture.md has no block {name}"
    return [line for line in found[1].splitlines() if line.strip()]


def floors():
    """{room: its floor}, the lowest 0, as the picture has them."""
    lines = [line.split("│")[0].split() for line in block("floors")]
    return {room: number for number, rooms in enumerate(reversed(lines)) for room in rooms}


@cache
def modules():
    found = {}
    for path in sorted(CORE.rglob("*.py")):
        parts = path.relative_to(CORE).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join(("protofl", *parts))] = path
    return found


@cache
def imports():
    """{module: the modules of the core that it imports}, in functions and for types too."""
    found = {}
    for module, path in modules().items():
        named = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    named.add(whole if whole in modules() else node.module)
        found[module] = {n for n in named if n in modules() and n not in (module, "protofl")}
    del found["protofl"]  # the door names what stands in all rooms
    return found


def room(module):
    return module.split(".")[1]


def test_the_picture_shows_every_room():
    assert floors().keys() | {*BESIDE} == {room(m) for m in imports()}


def test_arrows_point_down():
    floor = floors()
    for module, wanted in imports().items():
        for other in wanted:
            here, there = room(module), room(other)
            if here == there or here in BESIDE:
                continue
            assert there not in BESIDE, f"{module} imports {other}, which stands beside the house"
            assert floor[there] < floor[here], f"{module} imports {other}: an arrow up"


def test_there_are_no_circles():
    waiting = {module: set(wanted) for module, wanted in imports().items()}
    while waiting:
        free = {module for module, wanted in waiting.items() if not wanted & waiting.keys()}
        assert free, f"these import each other: {sorted(waiting)}"
        waiting = {m: wanted for m, wanted in waiting.items() if m not in free}


def code_lines(path):
    """Lines that are no blanks, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    words = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                words |= set(range(node.lineno, node.end_lineno + 1))
    blank = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"}
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if tokenize.tok_name[token.type] not in blank:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - words)


def kernel():
    return [path for module, path in modules().items() if {*module.split(".")[1:2]} & {*KERNEL}]


def test_the_kernel_is_small():
    assert sum(map(code_lines, kernel())) <= 4_000


def test_no_file_of_the_kernel_is_long():
    long = {p.name: n for p in kernel() if (n := len(p.read_text("utf-8").splitlines())) > 300}
    assert not long


def test_no_function_of_the_kernel_is_long():
    long = {}
    for path in kernel():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = node.end_lineno - node.lineno + 1
                if length > 60:
                    long[f"{path.name}:{node.name}"] = length
    assert not long


# --- the way from the command to the loss ---------------------------------------------------------


class Asks:
    """Notes by which files its loss was called."""

    terms = {"ce": "cross-entropy"}
    ways: list = []

    @pf.hookimpl
    def local_loss(self, batch, output):
        frames = [Path(frame.filename) for frame in traceback.extract_stack()]
        inside = [
            p for p in frames if {*p.parents} & {ROOT / "core", ROOT / "plugins", ROOT / "cli"}
        ]
        self.ways.append([p.relative_to(ROOT).as_posix() for p in inside])
        return {"ce": cross_entropy(output.logits, batch.y)}


@pytest.fixture(scope="module")
def way(tmp_path_factory, few):
    """The files by which the command reaches a loss, each once, behind its own."""
    folder = tmp_path_factory.mktemp("way")
    options = {"models": "cnn4", "clients": 2, "rounds": 1, "dry_step": False, "backend": "local"}
    options |= {"dataset": few, "data_dir": folder}
    request, _ = requested({"method": Asks, **options})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        start(request, pf.events.ignore)
    return list(dict.fromkeys(Asks.ways[0]))


def test_the_way_to_the_loss_is_the_page_s(way):
    listed = [line.split()[0] for line in block("way")]
    command, *rest, method = listed
    assert rest == way
    assert (ROOT / command).is_file() and "runs.run" in (ROOT / command).read_text("utf-8")
    assert method.startswith("plugins/protofl_plugins/methods/")
    assert len(listed) <= 8


def test_no_room_is_entered_twice(way):
    rooms = [Path(place).parent.as_posix() for place in way]
    entered = [r for r, before in zip(rooms, [None, *rooms], strict=False) if r != before]
    assert len(entered) == len(set(entered)), entered
