"""The command line ``protofl``: assembles the commands and reports errors."""

from __future__ import annotations

import difflib
import signal
import sys
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup

from protofl_cli import standard_streams
from protofl_cli.commands import (
    check,
    compare,
    evaluate,
    export,
    join,
    list_plugins,
    new_plugin,
    partition,
    plot,
    publish,
    report,
    reproduce,
    run,
    runs,
    score,
    show,
    sweep,
    verify,
)
from protofl_cli.interrupts import Terminated, interrupted
from protofl_cli.options import completion
from protofl_cli.options.groups import WithRuns, add, group_of
from protofl_cli.options.run_options import with_options
from protofl_cli.plugin_commands import Help, Installed
from protofl_cli.screens import render

# Base classes of mistakes on the command line. Typer exports BadParameter, but not them.
_ClickUsageError: type[Any] = typer.BadParameter.__bases__[0]
_ClickException: type[Any] = _ClickUsageError.__bases__[0]


USE, WRITE = "Run and inspect", "Write a plugin"
"""Groups of commands in the help."""

LAST_TO_USE = "partition"
"""The last command of the first group; those of plugins are listed after it."""

CLOSED = 141
"""Exit code if standard output was closed: that of SIGPIPE in a shell."""


OF_PICTURES = ("matplotlib", "jinja2")
"""Packages of pictures and pages. An install with ``--no-deps`` may lack them."""

COMMANDS = "protofl_cli.plugin_commands"
"""The key of the plugins' commands in a context."""


class Commands(WithRuns):
    """The group of all commands, which turns exceptions into messages and exit codes.

    Plugins' commands are listed after our own that run and inspect, and imported when called.
    """

    runs: ClassVar = {"run": (run.run, USE), "sweep": (sweep.sweep, USE)}

    @property
    def own_commands(self) -> list[str]:
        """The names of our own commands, which plugins' commands cannot have."""
        return [*self.commands]

    def _of_plugins(self, context: Any) -> Installed:  # noqa: ANN401 - a class that Typer does not export
        """Return the plugins' commands, which are looked up once in a call of protofl."""
        if COMMANDS not in context.meta:
            context.meta[COMMANDS] = Installed(self.own_commands)
        result: Installed = context.meta[COMMANDS]
        return result

    def list_commands(self, context: Any) -> list[str]:  # noqa: ANN401 - as above
        """Return the names of all commands, in the order of the help."""
        names = super().list_commands(context)
        at = names.index(LAST_TO_USE) + 1
        return [*names[:at], *self._of_plugins(context).names, *names[at:]]

    def get_command(self, context: Any, name: str) -> Any:  # noqa: ANN401 - as above
        """Return a command of our own, or the help of a plugin's, which is not imported."""
        return super().get_command(context, name) or self._of_plugins(context).help_of(name)

    def resolve_command(self, context: Any, args: list[str]) -> Any:  # noqa: ANN401 - as above
        """Return the command; a plugin's is imported here."""
        name, command, rest = super().resolve_command(context, args)
        if isinstance(command, Help):
            if "--debug" in rest:  # the command itself cannot read it yet
                context.obj["debug"] = True
            command = self._of_plugins(context).load(name)
        return name, command, rest

    def format_help(self, context: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        """Write the help, and a line for each plugin's command that has the name of one of ours."""
        self.epilog = "\n\n".join(self._of_plugins(context).left_out) or None
        super().format_help(context, formatter)

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - as the base class has it
        """Run a command and end the program.

        Exit code 2: an error was found before the start; 1: the command failed; 130: interrupted
        (143: by SIGTERM); 141: the reader of its output has closed it (``protofl … | head``).
        """
        known = {"debug": False}
        command_line = args[0] if args else extra.pop("args", None)
        typed = [*(sys.argv[1:] if command_line is None else command_line)]
        args = (typed, *args[1:])
        options = extra | {"prog_name": "protofl", "standalone_mode": False, "obj": known}
        try:
            code = super().main(*args, **options)
            sys.stdout.flush()  # the reader may have closed the pipe
        except (KeyboardInterrupt, typer.Abort) as stop:
            code = interrupted(stop)
        except SystemExit as end:
            if standard_streams.is_closed_pipe(end):
                code = CLOSED
            else:  # Typer ends the program after completions
                code = end.code if completion.is_asked(typed) else _left(end)
        except Exception as problem:  # users see a message, not a traceback
            if standard_streams.is_closed_pipe(problem):
                code = CLOSED
            elif completion.is_running():  # no message between the words that a user types
                code = 1
            else:
                code = _report(problem, debug=known["debug"])
        sys.exit(code if isinstance(code, int) else 0)


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
    if isinstance(problem, ModuleNotFoundError) and problem.name in OF_PICTURES:
        render.error(
            f"this command needs {problem.name}, which is not installed",
            do=f"install it: pip install {problem.name}",
        )
        return 2
    if said := memory_problem(problem):
        render.error(said, do="use fewer clients, workers or features, or a GPU")
        return 1
    if isinstance(problem, RuntimeError) and "torchvision::" in str(problem):
        # torchvision was installed without, or from another index than, the torch that it is for.
        render.error(
            f"the installed torchvision was built for another torch: {problem}",
            do="install both in one command, such as pip install --force-reinstall torch "
            "torchvision --index-url https://download.pytorch.org/whl/cpu",
        )
        return 1
    render.error(
        f"internal error: {type(problem).__name__}: {problem}",
        do="this is a bug in protofl or a plugin"
        + ("" if debug else "; run again with --debug to see where"),
    )
    return 1


def _usage(problem: Any) -> tuple[str, str, str]:  # noqa: ANN401 - a class that Typer does not export
    """Return what, near and do of a mistake that Typer found."""
    from protofl.hooks.discovery.satellites import how_to_install

    what = str(problem.format_message()).partition(" Did you mean ")[0]
    context, near, install = getattr(problem, "ctx", None), "", ""
    option = getattr(problem, "option_name", None)
    if option and context:
        what = f"no such option: {option}"
        near = _near(str(option), [o for p in context.command.params for o in p.opts])
    elif context and isinstance(context.command, TyperGroup):
        known = context.command.list_commands(context)
        typed = what.partition("'")[2].partition("'")[0]
        near = _near(typed, known) or f"known: {', '.join(known)}"
        install = how_to_install(typed) if context.parent is None else ""
    what = what[:1].lower() + what[1:].rstrip(".")
    return what, near, f"{install}see: {context.command_path if context else 'protofl'} --help"


def _near(typed: str, known: list[str]) -> str:
    initials = "--" + "".join(word[:1] for word in typed.strip("-").split("-"))  # --lr
    close = difflib.get_close_matches(typed, known, n=3, cutoff=0.6)
    close = close or [name for name in known if name == initials]
    return f"did you mean {' or '.join(close)}?" if close else ""


app = typer.Typer(
    cls=Commands,
    add_completion=True,
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

    Start with: protofl run fedsa --models htcnn8
    """
    if context.invoked_subcommand is None:
        text = context.get_help()  # prints itself if it has panels
        render.plain([text] if text else [])


add(app, "run", with_options(run.run), USE)
add(app, "sweep", with_options(sweep.sweep), USE)
add(app, "reproduce", reproduce.reproduce, USE)
app.add_typer(
    group_of(
        {
            "list": runs.list_runs,
            "show": runs.show_runs,
            "diff": runs.diff_runs,
            "rm": runs.remove_runs,
        },
        help="List, show, compare and remove recorded runs.",
    ),
    name="runs",
    rich_help_panel=USE,
)
add(app, "report", report.report, USE)
add(app, "compare", compare.compare, USE)
add(app, "plot", plot.plot, USE)
add(app, "export", export.export, USE)
add(app, "publish", publish.publish, USE)
add(app, "verify", verify.verify, USE)
add(app, "score", score.score, USE)
add(app, "evaluate", evaluate.evaluate, USE)
add(app, "join", join.join, USE)
add(app, "list-plugins", list_plugins.list_plugins, USE)
add(app, "show", show.show, USE)
app.add_typer(
    group_of({"show": partition.show}, help="Show how data are split over clients."),
    name="partition",
    rich_help_panel=USE,
)
add(app, "new-plugin", new_plugin.new_plugin, WRITE)
add(app, "check", check.check, WRITE)


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
