"""Commands of plugins: entry points of the group ``protofl.commands``.

``protofl --help`` imports no plugin: its line for a command is read from the source file. The
command is imported when it is called.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Collection
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from protofl.hooks.discovery.kinds import Plugin

PANEL = "Plugins"
"""The panel of the help for a command that names no other one."""


class Help(TyperCommand):
    """The help of a command that is not imported."""


class Installed:
    """The commands of all installed plugins.

    Args:
        own: Names of our own commands, which go before those of plugins.
    """

    def __init__(self, own: Collection[str]) -> None:
        from protofl.hooks.discovery.registry import Registry

        self._own, self._registry = own, Registry()
        self._plugins = self._registry.plugins("command")

    @property
    def names(self) -> list[str]:
        """The names of the plugins' commands, without those of our own."""
        return [n for n in dict.fromkeys(p.name for p in self._plugins) if n not in self._own]

    @property
    def left_out(self) -> list[str]:
        """A line for each command that has the name of one of our own."""
        return [clash_with_own(plugin) for plugin in self._plugins if plugin.name in self._own]

    def help_of(self, name: str) -> Help | None:
        """Return the help of a command; None if no plugin has a command of this name."""
        found = [plugin for plugin in self._plugins if plugin.name == name]
        if not found:
            return None
        text, panel = summary(found[0])
        if len(found) > 1:
            text = f"Clash: {' and '.join(p.distribution for p in found)} have this command."
        return Help(name, help=text.replace("[", r"\["), rich_help_panel=panel)

    def load(self, name: str) -> Any:  # noqa: ANN401 - a class that Typer does not export
        """Import a command.

        Raises:
            UsageError: Two plugins have a command of this name, or it cannot be imported.
        """
        from protofl.errors import UsageError, ends_hook, error_text

        plugin = self._registry.find("command", name)
        found = self._registry.load("command", name)
        try:
            return built(name, found)
        except BaseException as error:
            if not ends_hook(error):
                raise
            raise UsageError(
                f"command {name} of {plugin.distribution} {plugin.version} is broken: "
                f"{error_text(error)}",
                do=f"see: protofl check command/{name}",
            ) from error


def clash_with_own(plugin: Plugin) -> str:
    """Return a line about a command that has the name of one of our own."""
    owner = f"{plugin.distribution} {plugin.version}"
    return f"Left out: command {plugin.name!r} of {owner}, because protofl has one of this name."


def built(name: str, command: Any) -> Any:  # noqa: ANN401 - a function or a Typer app
    """Return the command of a function, or the group of a Typer app."""
    if isinstance(command, typer.Typer):
        found: Any = typer.main.get_group(command)
    else:
        app = typer.Typer(add_completion=False)
        app.command(name)(command)
        found = typer.main.get_command(app)
    found.name = name
    return found


# --- help without an import -------------------------------------------------------------------


def summary(plugin: Plugin) -> tuple[str, str]:
    """Return the first paragraph of a command's help, and its panel, without importing it.

    The help is the docstring of a function, and ``help`` of ``typer.Typer(help=…)``; otherwise the
    docstring of the module. The panel is ``rich_help_panel`` of the Typer app.
    """
    module, _, attribute = plugin.target.partition(":")
    try:
        tree = ast.parse(_source(module))
    except Exception:  # the plugin is damaged, or has no source; calling it says what is wrong
        tree = ast.Module(body=[], type_ignores=[])
    text, panel = _described(tree, attribute)
    whole = text or ast.get_docstring(tree) or ""
    first = " ".join(inspect.cleandoc(whole).partition("\n\n")[0].split())
    return first or f"A command of {plugin.distribution} {plugin.version}.", panel or PANEL


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
            given = {
                word.arg: word.value.value
                for word in node.value.keywords
                if isinstance(word.value, ast.Constant) and isinstance(word.value.value, str)
            }
            return given.get("help", ""), given.get("rich_help_panel", "")
    return "", ""
