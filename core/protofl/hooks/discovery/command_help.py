"""Help of plugins' commands, read from their source files without importing them."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from importlib.machinery import PathFinder

from protofl.hooks.discovery.kinds import Plugin


def summary(plugin: Plugin) -> tuple[str, str]:
    """Return the first paragraph of a command's help, and its panel (empty if not given).

    The help is the docstring of a function, or ``help`` of ``typer.Typer(help=…)``; otherwise the
    docstring of the module. The panel is ``rich_help_panel`` of the Typer app.
    """
    text, panel = _read(plugin)
    return text or f"A command of {plugin.distribution} {plugin.version}.", panel


def is_read(plugin: Plugin) -> bool:
    """Return True if the source of a command has its help."""
    return bool(_read(plugin)[0])


def _read(plugin: Plugin) -> tuple[str, str]:
    module, _, attribute = plugin.target.partition(":")
    try:
        tree = ast.parse(_source(module))
    except Exception:  # the plugin is damaged or has no source; calling it says what is wrong
        return "", ""
    text, panel = _described(tree, attribute)
    whole = inspect.cleandoc(text or ast.get_docstring(tree) or "")
    return " ".join(whole.partition("\n\n")[0].split()), panel


def _source(module: str) -> str:
    """Return the source of a module, without importing it or its packages.

    Raises:
        ImportError: The module does not exist, or has no source.
    """
    whole, *inner = module.split(".")
    spec = importlib.util.find_spec(whole)
    for name in inner:
        whole = f"{whole}.{name}"
        places = (spec.submodule_search_locations if spec else None) or []
        spec = PathFinder.find_spec(whole, places)
    if spec is None or spec.loader is None:
        raise ImportError(module)
    source: str | None = spec.loader.get_source(whole)  # type: ignore[attr-defined]  # most have it
    if source is None:
        raise ImportError(module)
    return source


def _described(tree: ast.Module, attribute: str) -> tuple[str, str]:
    """Return help and panel of a function or an app that a module defines; empty if not given."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            return ast.get_docstring(node) or "", ""
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        named = any(isinstance(each, ast.Name) and each.id == attribute for each in targets)
        if named and isinstance(node.value, ast.Call):
            keywords = {
                word.arg: word.value.value
                for word in node.value.keywords
                if isinstance(word.value, ast.Constant) and isinstance(word.value.value, str)
            }
            return keywords.get("help", ""), keywords.get("rich_help_panel", "")
    return "", ""
