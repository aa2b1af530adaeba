"""The command line ``protofl``: assembles the commands and reports errors."""

from __future__ import annotations

import difflib
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from protofl_cli import render, standard_streams
from protofl_cli.commands import (
    check,
    compare,
    data,
    export,
    generator,
    list_plugins,
    new_plugin,
    partition,
    plot,
    replay,
    report,
    reproduce,
    run,
    runs,
    show,
    sweep,
    watch,
)
from protofl_cli.interrupts import Terminated, interrupted
from protofl_cli.run_options import whole_command, with_options

# Base classes of mistakes on the command line. Typer exports BadParameter, but not them.
_ClickUsageError: type[Any] = typer.BadParameter.__bases__[0]
_ClickException: type[Any] = _ClickUsageError.__bases__[0]


USE, WRITE, DEVELOP = "Run and inspect", "Write a plugin", "Develop"
"""Groups of commands in the help."""

CLOSED = 141
"""Exit code if standard output was closed: that of SIGPIPE in a shell."""


class Commands(TyperGroup):
    """The group of all commands, which turns exceptions into messages and exit codes."""

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - as the base class has it
        """Run a command and end the program.

        Exit code 2: an error was found before the start; 1: the command failed; 130: interrupted
        (143: by SIGTERM); 141: the reader of its output has closed it (``protofl … | head``).
        """
        known = {"debug": False}
        options = extra | {"prog_name": "protofl", "standalone_mode": False, "obj": known}
        try:
            code = super().main(*args, **options)
            sys.stdout.flush()  # the reader may have closed the pipe
        except (KeyboardInterrupt, typer.Abort) as stop:
            code = interrupted(stop)
        except SystemExit as end:
            code = CLOSED if standard_streams.is_closed_pipe(end) else _left(end)
        except Exception as problem:  # users see a message, not a traceback
            closed = standard_streams.is_closed_pipe(problem)
            code = CLOSED if closed else _report(problem, debug=known["debug"])
        sys.exit(code if isinstance(code, int) else 0)

    def resolve_command(self, *args: Any) -> Any:  # noqa: ANN401 - as the base class has it
        """Return the command; ``run`` and ``sweep`` get their options only here."""
        name, command, words = super().resolve_command(*args)
        commands: dict[str, Callable[..., None]] = {"run": run.run, "sweep": sweep.sweep}
        if name in commands:
            command = whole_command(name, commands[name], USE)
        return name, command, words


def _left(end: SystemExit) -> int:
    """Report that a plugin ended the program; our own commands use typer.Exit."""
    render.error(f"a plugin called sys.exit({'' if end.code is None else repr(end.code)})")
    return 1


def _report(problem: Exception, *, debug: bool) -> int:
    """Report an error; return the exit code."""
    from protofl.errors import ProtoflError, memory_problem

    if isinstance(problem, _ClickException):
        render.error(*_usage(problem))
        return 2
    if debug:
        render.trace(problem)
    if isinstance(problem, ProtoflError):
        render.error(problem.what, problem.near, problem.do)
        return problem.exit_code
    if isinstance(problem, OSError) and problem.filename is not None:
        render.error(f"{problem.filename}: {problem.strerror}")
        return 1
    if said := memory_problem(problem):
        render.error(said, do="use fewer clients, workers or features, or a GPU")
        return 1
    render.error(
        f"internal error: {type(problem).__name__}: {problem}",
        do="this is a bug in protofl or a plugin"
        + ("" if debug else "; run again with --debug to see where"),
    )
    return 1


def _usage(problem: Any) -> tuple[str, str, str]:  # noqa: ANN401 - a class that Typer does not export
    """Return what, near and do of a mistake that Typer found."""
    what = str(problem.format_message()).partition(" Did you mean ")[0]
    context, near = getattr(problem, "ctx", None), ""
    option = getattr(problem, "option_name", None)
    if option and context:
        what = f"no such option: {option}"
        near = _near(str(option), [o for p in context.command.params for o in p.opts])
    elif context and isinstance(context.command, TyperGroup):
        known = list(context.command.commands)
        typed = what.partition("'")[2].partition("'")[0]
        near = _near(typed, known) or f"known: {', '.join(known)}"
    what = what[:1].lower() + what[1:].rstrip(".")
    return what, near, f"see: {context.command_path if context else 'protofl'} --help"


def _near(typed: str, known: list[str]) -> str:
    close = difflib.get_close_matches(typed, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else ""


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(value: bool) -> None:
    if value:
        from protofl import __version__

        render.plain([f"protofl {__version__}"])
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Prototype-based heterogeneous federated learning.

    Start with: protofl run fedsa --models cnn4
    """
    if context.invoked_subcommand is None:
        text = context.get_help()  # prints itself if it has panels
        render.plain([text] if text else [])


app.command("run", rich_help_panel=USE)(with_options(run.run))
app.command("sweep", rich_help_panel=USE)(with_options(sweep.sweep))
app.command("reproduce", rich_help_panel=USE)(reproduce.reproduce)
app.command("watch", rich_help_panel=USE)(watch.watch)

runs_app = typer.Typer(help="List, show and remove recorded runs.")
runs_app.command("list")(runs.list_runs)
runs_app.command("show")(runs.show_runs)
runs_app.command("rm")(runs.remove_runs)
app.add_typer(runs_app, name="runs", rich_help_panel=USE)

app.command("report", rich_help_panel=USE)(report.report)
app.command("compare", rich_help_panel=USE)(compare.compare)
app.command("plot", rich_help_panel=USE)(plot.plot)
app.command("export", rich_help_panel=USE)(export.export)
app.command("replay", rich_help_panel=USE)(replay.replay)
app.command("list-plugins", rich_help_panel=USE)(list_plugins.list_plugins)
app.command("show", rich_help_panel=USE)(show.show)

data_app = typer.Typer(help="List cached data sets and import new ones.")
data_app.command("list")(data.list_data)
data_app.command("import")(data.import_data)
app.add_typer(data_app, name="data", rich_help_panel=USE)

partition_app = typer.Typer(help="Show how data are split over clients.")
partition_app.command("show")(partition.show)
app.add_typer(partition_app, name="partition", rich_help_panel=USE)

generator_app = typer.Typer(help="Train image generators for the server.")
generator_app.command("train")(generator.train)
app.command("new-plugin", rich_help_panel=WRITE)(new_plugin.new_plugin)
app.command("check", rich_help_panel=WRITE)(check.check)
app.add_typer(generator_app, name="generator", rich_help_panel=DEVELOP)


def _terminated(number: int, frame: object) -> None:
    raise Terminated


def main() -> None:
    """Entry point of the console script."""
    try:
        standard_streams.replace_missing_characters()
        signal.signal(signal.SIGTERM, _terminated)
        app()
    except KeyboardInterrupt as stop:  # while the commands are put together
        sys.exit(interrupted(stop))
