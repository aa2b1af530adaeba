"""Contract of commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

from protofl.hooks.discovery.command_help import is_read, summary
from protofl.testing.contract import Contract, expect

LONGEST = 100
"""Characters of a line of help."""


class CommandContract(Contract):
    """The checks of a command: its help, the help of its options, and its import.

    Attributes:
        plugin: The name of an installed command.
    """

    kind = "command"
    plugin: ClassVar[str]

    def commands(self) -> Iterator[tuple[list[str], Any]]:
        """Yield the words of the command and of each of its subcommands, with Typer's object."""
        from typer.main import get_command

        def below(path: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:  # noqa: ANN401 - a class that Typer does not export
            yield path, command
            for name, inner in getattr(command, "commands", {}).items():
                yield from below([*path, name], inner)

        host: Any = get_command(self.host())
        yield from below([self.label], host.commands[self.label])

    def host(self) -> Any:  # noqa: ANN401 - Typer is imported when a command is checked
        """Return a Typer app with this command alone."""
        import typer

        app = typer.Typer(callback=lambda: None, add_completion=False)
        if isinstance(self.cls, typer.Typer):
            app.add_typer(self.cls, name=self.label)
        else:
            app.command(self.label)(self.cls)
        return app

    def test_words(self) -> None:
        """The command has a line of help, which is read without importing the command."""
        plugin = self.registry.find(self.kind, self.label)
        text, _ = summary(plugin)
        expect(
            is_read(plugin),
            f"protofl --help finds no help in {plugin.target}: give the function a docstring "
            'there, or write app = typer.Typer(help="…")',
        )
        expect(len(text) <= LONGEST, f"its line of help is {len(text)} characters long: {text}")

    def test_options(self) -> None:
        """Every option has a help text."""
        for path, command in self.commands():
            options = [p for p in command.params if p.param_type_name == "option"]
            for option in options:
                flag = option.opts[0]
                expect(
                    bool(option.help),
                    f'{" ".join(path)}: {flag} has no help: typer.Option(help="…")',
                )

    def test_help(self) -> None:
        """--help works for the command and each of its subcommands."""
        from typer.testing import CliRunner

        host = self.host()
        for path, _ in self.commands():
            outcome = CliRunner().invoke(host, [*path, "--help"])
            why = repr(outcome.exception) if outcome.exception else outcome.output[-200:]
            expect(outcome.exit_code == 0, f"{' '.join(path)} --help fails: {why}")

    def test_import(self) -> None:
        """The import of the command does not import torch, so that its --help is fast."""
        module = self.registry.find(self.kind, self.label).target.partition(":")[0]
        program = f"import sys, {module}; sys.exit(7 if 'torch' in sys.modules else 0)"
        process = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
        )
        expect(
            process.returncode != 7, f"{module} imports torch; import it in the function instead"
        )
        expect(process.returncode == 0, f"{module} cannot be imported: {process.stderr[-300:]}")
