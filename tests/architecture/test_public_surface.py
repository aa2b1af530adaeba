"""Tests of the public names: each is used in an example, and the documentation covers them."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.resources
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import protofl as pf
from protofl.hooks.views.run_info import ClientCard
from protofl_cli.app import app
from protofl_cli.options.check_target import CONTRACTS

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def examples():
    """Yield code that uses the names: templates, examples, and Python blocks of pages."""
    templates = importlib.resources.files("protofl_cli") / "templates"
    yield from (path.read_text(encoding="utf-8") for path in templates.iterdir())
    yield from (p.read_text(encoding="utf-8") for p in (ROOT / "examples").rglob("*.py"))
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        yield from FENCE.findall(page.read_text(encoding="utf-8"))


def test_every_name_is_used_in_an_example():
    used = {name for code in examples() for name in re.findall(r"\bpf\.(\w+)", code)}
    assert set(pf.__all__) - {"__version__"} - used == set()


def test_the_page_of_compatibility_names_every_public_module():
    page = (ROOT / "docs/reference/compatibility.md").read_text(encoding="utf-8")
    listed = re.search(
        r"^- The names in `__all__` of (.*?), with their docstrings", page, re.M | re.S
    )
    named = {"protofl", "protofl.testing", *(f"protofl.{name}" for name in pf._MODULES)}
    assert {*re.findall(r"`([\w.]+)`", listed[1])} == named
    for name in named:
        module = importlib.import_module(name)
        assert module.__all__, name
        assert all(hasattr(module, each) for each in module.__all__), name


@pytest.mark.parametrize("kind", CONTRACTS)
def test_every_contract_is_documented(kind):
    page = (ROOT / "docs/how-to/test-a-plugin.md").read_text(encoding="utf-8")
    assert f"`{CONTRACTS[kind].__name__}`" in page


@pytest.mark.parametrize("command", ["new-plugin", "check"])
def test_commands_of_an_author_are_documented(command):
    """Check that the page names each option, except those that every command has."""
    text = (ROOT / "docs/tutorials/first-plugin.md").read_text(encoding="utf-8")
    assert f"protofl {command}" in text
    found = get_command(app).commands[command]
    options = {o for p in found.params for o in p.opts if o.startswith("--")}
    for option in options - {"--data-dir"}:
        assert option in text, option


@pytest.mark.slow
def test_a_module_is_imported_by_its_public_name():
    """Import each without the modules that another name has loaded; torch is loaded once."""
    code = f"""
import sys
for name in {sorted(pf._MODULES)}:
    for loaded in [m for m in sys.modules if m.partition(".")[0] == "protofl"]:
        del sys.modules[loaded]
    found = __import__("importlib").import_module(f"protofl.{{name}}")
    assert found is getattr(sys.modules["protofl"], name), name
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_names_what_a_card_of_a_client_has():
    words = inspect.getdoc(pf.Server.clients)
    assert all(f"``{field.name}``" in words for field in dataclasses.fields(ClientCard))


def test_tests_import_public_names_from_public_modules():
    """A test with an inner path breaks when a file moves, and shows a path that may move."""
    spaces = ["protofl", *(f"protofl.{name}" for name in [*pf._MODULES, "testing"])]
    modules = {space: importlib.import_module(space) for space in spaces}
    public = {
        name: (space, getattr(module, name))
        for space, module in modules.items()
        for name in getattr(module, "__all__", ())
    }
    inner = []
    tests = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "plugins").glob("*/tests/**/*.py")]
    for path in sorted(tests):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if module in spaces or not module.startswith(("protofl.", "protofl_workbench")):
                continue
            for name in {alias.name for alias in node.names} & {*public}:
                space, value = public[name]
                if getattr(importlib.import_module(module), name, None) is value:
                    inner.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name} is in {space}")
    assert not inner, "\n".join(inner)
