"""Tests of the packages' layers: each folder is a layer, which imports only lower layers."""

from __future__ import annotations

import ast
import re
import traceback
from functools import cache
from pathlib import Path

import pytest
from runtime_toys import request_of_program
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.runs.lifecycle.lifecycle import start

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core"
PACKAGES = ("protofl", "protofl_workbench")
OTHERS = ("protofl_plugins", "protofl_flower", "protofl_ray", "protofl_privacy", "protofl_cli")
PAGE = (ROOT / "docs/background/architecture.md").read_text(encoding="utf-8")


@cache
def modules():
    """Return {module: file} of both packages. The file of a package is its ``__init__.py``."""
    found = {}
    for path in sorted(path for package in PACKAGES for path in (CORE / package).rglob("*.py")):
        parts = path.relative_to(CORE).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join(parts)] = path
    return found


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path):
    return [*ast.walk(tree(path))]


@cache
def imports():
    """Return {module: imported modules}, including imports in functions and for types."""
    found = {}
    for module, path in modules().items():
        named = set()
        for node in nodes(path):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    named.add(whole if whole in modules() else node.module)
        found[module] = {n for n in named if n in modules() and n not in (module, "protofl")}
    del found["protofl"]  # it loads its names from all folders, on first use
    return found


def layer(module):
    """Return ``protofl.hooks`` for ``protofl.hooks.views.client``."""
    return ".".join(module.split(".")[:2])


def folder(module):
    """Return ``protofl.hooks.views`` for ``….views.client``. A file in a layer counts as one."""
    return ".".join(module.split(".")[:3])


def arrows(of):
    """Return {part: other parts that it imports}. A part is a `layer`, a `folder` or a module."""
    found = {of(module): set() for module in imports()}
    for module, others in imports().items():
        found[of(module)] |= {of(other) for other in others} - {of(module)}
    return found


def chain(graph):
    """Return the length of the longest chain of imports.

    Raises:
        AssertionError: The imports form a cycle.
    """
    height, waiting = {}, dict(graph)
    while waiting:
        free = {part for part, others in waiting.items() if not others & waiting.keys()}
        assert free, f"these import each other: {sorted(waiting)}"
        height |= {part: 1 + max((height[o] for o in waiting[part]), default=0) for part in free}
        waiting = {part: others for part, others in waiting.items() if part not in free}
    return max(height.values())


@pytest.mark.parametrize("part", [layer, folder, str])
def test_there_are_no_circles(part):
    assert chain(arrows(part)) > 1


def test_chains_between_layers_are_short():
    assert chain(arrows(layer)) <= 12


@pytest.mark.parametrize(("package", "most"), [("protofl", 10), ("protofl_workbench", 10)])
def test_a_package_has_few_entries(package, most):
    names = {path.name for path in (CORE / package).iterdir()}
    assert len(names - {"__init__.py", "py.typed", "__pycache__"}) <= most


def test_the_core_never_imports_the_workbench():
    for module, path in modules().items():
        package = module.split(".")[0]
        for node in nodes(path):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found = {name.split(".")[0] for name in names}
            assert not found & {*OTHERS}, f"{module} imports {found}"
            if package == "protofl" and module != "protofl":
                assert "protofl_workbench" not in found, f"{module} imports the workbench"


def test_only_contracts_import_the_public_names():
    """``protofl`` loads them from all folders, so an import of it leads back to its own module.

    Contracts use them as authors of plugins do.
    """
    for module, path in modules().items():
        if module == "protofl" or module.startswith("protofl.testing"):
            continue
        blocks = [n for n in nodes(path) if isinstance(n, ast.If)]
        types = [b for b in blocks if getattr(b.test, "id", "") == "TYPE_CHECKING"]
        for_types = {id(node) for block in types for node in ast.walk(block)}
        for node in (n for n in nodes(path) if id(n) not in for_types):
            names = []
            if isinstance(node, ast.Import):
                names = [a.name for a in node.names if a.name == "protofl"]
            elif isinstance(node, ast.ImportFrom) and node.module == "protofl":
                names = [a.name for a in node.names if f"protofl.{a.name}" not in modules()]
            assert not names, f"{module}:{node.lineno} imports {names} of protofl"


def test_a_layer_says_what_it_imports():
    """The docstring of its ``__init__.py`` has a line like ``Imports: errors, system.``"""
    for part, others in arrows(layer).items():
        path = modules()[part]
        if path.name != "__init__.py" or part in PACKAGES:
            continue
        words = ast.get_docstring(tree(path)) or ""
        said = re.search(r"^Imports: ([\s\w,]+)\.", words, re.MULTILINE)
        assert said, f"{part} has no line 'Imports: …'"
        names = {other.split(".")[-1] for other in others} or {"nothing"}
        assert {*re.split(r",\s+", said[1])} == names, part
        assert "Start" in words, f"{part} doesn't say where to start reading"


def test_no_string_names_a_module_of_a_higher_layer():
    graph = arrows(layer)

    def below(part):
        return {part}.union(*(below(other) for other in graph.get(part, ())))

    for module, path in modules().items():
        if module == "protofl":
            continue
        shown = {
            id(node.value)
            for node in nodes(path)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = {n for n in modules() if n.count(".") > 1 and n in node.value}
                if id(node) not in shown:
                    up = {n for n in named if layer(n) not in below(layer(module))}
                    assert not up, f"{module}:{node.lineno} names {up}"


# --- files between the command and the loss -------------------------------------------------------


class Asks:
    """Record the files on the call stack of the loss."""

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


def way_of_the_page():
    found = re.search(r"<!-- way -->\n+```text\n(.*?)```", PAGE, re.DOTALL)
    return [line for line in found[1].splitlines() if line.strip()]


@pytest.fixture(scope="module")
def way(tmp_path_factory, few):
    """Return the files through which the command calls a loss, in order and each once."""
    folder = tmp_path_factory.mktemp("way")
    options = {"models": "cnn4", "clients": 2, "rounds": 1, "dry_run": False, "backend": "local"}
    options |= {"dataset": few, "data_dir": folder}
    request = request_of_program({"method": Asks, **options})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        start(request, pf.events.ignore)
    return list(dict.fromkeys(Asks.ways[0]))


def test_the_way_to_the_loss_is_the_page_s(way):
    listed = [line.split()[0] for line in way_of_the_page()]
    command, *rest, method = listed
    assert rest == way
    assert (ROOT / command).is_file() and "runs.lifecycle" in (ROOT / command).read_text("utf-8")
    assert method.startswith("plugins/protofl_plugins/methods/")
    assert len(listed) <= 9


def test_no_room_is_entered_twice(way):
    rooms = [Path(place).parent.as_posix() for place in way]
    entered = [r for r, before in zip(rooms, [None, *rooms], strict=False) if r != before]
    assert len(entered) == len(set(entered)), entered
