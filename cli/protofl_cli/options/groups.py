"""Groups of commands, for the command line and for packages that add commands to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from protofl_cli.options.run_options import help_text, whole_command, with_options


class WithRuns(TyperGroup):
    """A group with commands that take the options of a run, which they get only when called."""

    runs: ClassVar[Mapping[str, tuple[Callable[..., None], str]]] = {}
    """{name of such a command: (its function, its panel of the help)}."""

    def resolve_command(self, *args: Any) -> Any:  # noqa: ANN401 - as the base class has it
        """Return the command, with the options of a run where it takes them."""
        name, command, rest = super().resolve_command(*args)
        if name is not None and name in self.runs:
            command = whole_command(name, *self.runs[name])
            if args[0].resilient_parsing:  # a shell completes options that --help hides too
                for parameter in command.params:
                    parameter.hidden = False
        return name, command, rest


def add(group: typer.Typer, name: str, command: Callable[..., None], panel: str = "") -> None:
    """Add a command to a group, in a panel of the help."""
    group.command(name, help=help_text(command), rich_help_panel=panel or None)(command)


def group_of(
    commands: Mapping[str, Callable[..., None]],
    *,
    help: str,
    rich_help_panel: str | None = None,
    with_run_options: Collection[str] = (),
) -> typer.Typer:
    """Return a group of commands.

    Args:
        commands: {name: function}.
        help: A line of help.
        rich_help_panel: The panel in which the help of ``protofl`` shows a plugin's group.
        with_run_options: Names of commands whose ``**arguments`` are the options of a run.
    """

    class Group(WithRuns):
        runs: ClassVar = {name: (commands[name], "") for name in with_run_options}

    group = typer.Typer(help=help, cls=Group, rich_help_panel=rich_help_panel)
    for name, command in commands.items():
        add(group, name, with_options(command) if name in with_run_options else command)
    return group
