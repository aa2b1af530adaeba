"""Commands of plugins: entry points of the group ``protofl.commands``.

``protofl --help`` imports no plugin: its line for a command is read from the source file. The
command is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from protofl_cli.options.run_options import help_text

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

    def __init__(self, protofl_commands: Collection[str]) -> None:
        from protofl.hooks.discovery.registry import Registry

        self._protofl_commands, self._registry = protofl_commands, Registry()
        self._plugins = self._registry.plugins("command")

    @property
    def names(self) -> list[str]:
        """The names of the plugins' commands, without those of our own."""
        return [
            n
            for n in dict.fromkeys(p.name for p in self._plugins)
            if n not in self._protofl_commands
        ]

    @property
    def left_out(self) -> list[str]:
        """A line for each command that has the name of one of our own."""
        return [
            clash_with_own(plugin)
            for plugin in self._plugins
            if plugin.name in self._protofl_commands
        ]

    def help_of(self, name: str) -> Help | None:
        """Return the help of a command; None if no plugin has a command of this name."""
        from protofl.hooks.discovery.command_help import summary

        plugins = [plugin for plugin in self._plugins if plugin.name == name]
        if not plugins:
            return None
        text, panel = summary(plugins[0])
        if len(plugins) > 1:
            text = f"Clash: {' and '.join(p.distribution for p in plugins)} have this command."
        return Help(name, help=without_markup(text), rich_help_panel=panel or PANEL)

    def load(self, name: str) -> Any:  # noqa: ANN401 - a class that Typer does not export
        """Import a command.

        Raises:
            UsageError: Two plugins have a command of this name, or it cannot be imported.
        """
        from protofl.errors import UsageError, ends_hook, error_text
        from protofl.hooks.discovery.command_help import summary

        plugin = self._registry.find("command", name)
        loaded = self._registry.load("command", name)
        try:
            command = built(name, loaded)
            command.rich_help_panel = summary(plugin)[1] or PANEL
            return command
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
        result: Any = typer.main.get_group(command)
    else:
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        app.command(name, help=without_markup(help_text(command)))(command)
        result = typer.main.get_command(app)
    result.name = name
    return result


def without_markup(text: str) -> str:
    """Return a text whose brackets Rich does not interpret."""
    return text.replace("[", r"\[")
