"""The command line ``protofl``: assembles the commands and reports errors."""

from __future__ import annotations

import difflib
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup

from protofl_cli import render, standard_streams
from protofl_cli.commands import (
    check,
    compare,
    data,
    deploy,
    evaluate,
    export,
    generator,
    list_plugins,
    new_plugin,
    node,
    partition,
    plot,
    replay,
    report,
    reproduce,
    run,
    runs,
    score,
    show,
    sweep,
    watch,
)
from protofl_cli.interrupts import Terminated, interrupted
from protofl_cli.run_options import help_text, whole_command, with_options

# Base classes of mistakes on the command line. Typer exports BadParameter, but not them.
_ClickUsageError: type[Any] = typer.BadParameter.__bases__[0]
_ClickException: type[Any] = _ClickUsageError.__bases__[0]


USE, DEPLOY, WRITE, DEVELOP = "Run and inspect", "Deploy", "Write a plugin", "Develop"
"""Groups of commands in the help."""

CLOSED = 141
"""Exit code if standard output was closed: that of SIGPIPE in a shell."""


class WithRuns(TyperGroup):
    """A group with commands that take the options of a run, which they get only when called."""

    runs: ClassVar[dict[str, tuple[Callable[..., None], str]]] = {}
    """{name of such a command: (its function, its panel of the help)}."""

    def resolve_command(self, *args: Any) -> Any:  # noqa: ANN401 - as the base class has it
        """Return the command, with the options of a run where it takes them."""
        name, command, words = super().resolve_command(*args)
        if name in self.runs:
            command = whole_command(name, *self.runs[name])
        return name, command, words


class Commands(WithRuns):
    """The group of all commands, which turns exceptions into messages and exit codes."""

    runs: ClassVar = {"run": (run.run, USE), "sweep": (sweep.sweep, USE)}

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


class Deployments(WithRuns):
    """The group ``protofl deploy``."""

    runs: ClassVar = {"run": (deploy.run, ""), "rehearse": (deploy.rehearse, "")}


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
    initials = "--" + "".join(word[:1] for word in typed.strip("-").split("-"))  # --lr
    close = difflib.get_close_matches(typed, known, n=3, cutoff=0.6)
    close = close or [name for name in known if name == initials]
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


def _add(group: typer.Typer, name: str, command: Callable[..., None], panel: str = "") -> None:
    """Add a command to a group, in a panel of the help."""
    group.command(name, help=help_text(command), rich_help_panel=panel or None)(command)


def _group(
    name: str,
    about: str,
    panel: str,
    commands: dict[str, Callable[..., None]],
    cls: type[TyperGroup] = TyperGroup,
) -> None:
    """Add a group of commands, in a panel of the help."""
    group = typer.Typer(help=about, cls=cls)
    for own, command in commands.items():
        _add(group, own, command)
    app.add_typer(group, name=name, rich_help_panel=panel)


_add(app, "run", with_options(run.run), USE)
_add(app, "sweep", with_options(sweep.sweep), USE)
_add(app, "reproduce", reproduce.reproduce, USE)
_add(app, "watch", watch.watch, USE)
_group(
    "runs",
    "List, show, compare and remove recorded runs.",
    USE,
    {
        "list": runs.list_runs,
        "show": runs.show_runs,
        "diff": runs.diff_runs,
        "rm": runs.remove_runs,
    },
)
_add(app, "report", report.report, USE)
_add(app, "compare", compare.compare, USE)
_add(app, "plot", plot.plot, USE)
_add(app, "export", export.export, USE)
_add(app, "score", score.score, USE)
_add(app, "evaluate", evaluate.evaluate, USE)
_add(app, "replay", replay.replay, USE)
_add(app, "list-plugins", list_plugins.list_plugins, USE)
_add(app, "show", show.show, USE)
_group(
    "data",
    "List cached data sets and import new ones.",
    USE,
    {"list": data.list_data, "import": data.import_data},
)
_group("partition", "Show how data are split over clients.", USE, {"show": partition.show})
_group(
    "deploy",
    "Run on machines of their own, through Flower.",
    DEPLOY,
    {
        "rehearse": with_options(deploy.rehearse),
        "init": deploy.init,
        "add-site": deploy.add_site,
        "link": deploy.link,
        "keys": deploy.keys,
        "run": with_options(deploy.run),
        "status": deploy.status,
        "stop": deploy.stop,
    },
    Deployments,
)
_group(
    "node",
    "Run clients on this machine for a deployed run.",
    DEPLOY,
    {"init": node.init, "start": node.start, "check": node.check, "export": node.export},
)
_add(app, "new-plugin", new_plugin.new_plugin, WRITE)
_add(app, "check", check.check, WRITE)
_group("generator", "Train image generators for the server.", DEVELOP, {"train": generator.train})


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
