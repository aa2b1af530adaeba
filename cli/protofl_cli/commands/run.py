"""``protofl run``: train a federation. `protofl_cli.options.run_options` makes its options."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl.system.formatting import count
from protofl_cli.interrupts import interrupted, put_off
from protofl_cli.json.json_output import Json, json_output, print_json, prints_json
from protofl_cli.options.completion import METHODS
from protofl_cli.options.options import TRUST_HELP, Debug, option, trust

if TYPE_CHECKING:
    from protofl.errors import UsageError
    from protofl.federation.events import Progress
    from protofl.records.reading import Reading
    from protofl.records.run_folder import RunFolder
    from protofl.system.options.settings import Settings
    from protofl_cli.screens.screen import Screen

PANEL = "Record and screen"


@prints_json
def run(
    method: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD",
            help="The method; FILE.py:CLASS if it is not installed. --config can set it too.",
            autocompletion=METHODS,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        option(
            "--config",
            "FILE",
            "TOML or JSON file with options by their long names; the command line overrides "
            "it. The config.json of a run repeats the run.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "DIR",
            "Run folder (default: runs/METHOD-MODELS-DATA-sSEED-TIME)",
            rich_help_panel=PANEL,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume the run in --out DIR; no other option is needed.",
            rich_help_panel=PANEL,
        ),
    ] = False,
    reuse: Annotated[
        Path | None,
        option(
            "--reuse",
            "DIR",
            "Folder of runs. If it has this run, its results are printed; if its run has "
            "fewer rounds, it is resumed; otherwise the run starts in this folder.",
            rich_help_panel=PANEL,
            hidden=True,
        ),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Print who provides each hook, the split, parameters, traffic, FLOPs and an "
            "estimate of the time; train nothing.",
            rich_help_panel=PANEL,
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            help="Print only the results.",
            rich_help_panel=PANEL,
            hidden=True,
        ),
    ] = False,
    events: Annotated[
        str | None,
        option(
            "--events",
            "FILE|-",
            "Write a line of JSON for each event of the run, at once, for other programs; - is "
            "standard output, and all else goes to standard error. A resumed run appends.",
            rich_help_panel=PANEL,
            hidden=True,
        ),
    ] = None,
    as_json: Json = False,
    trust_code: Annotated[
        list[str] | None,
        option("--trust-code", "PATH", TRUST_HELP, show_default=False, hidden=True, callback=trust),
    ] = None,
    debug: Debug = False,
    **arguments: Any,  # noqa: ANN401 - the options of `Settings`, see with_settings
) -> None:
    """Train a federation of clients with a method.

    Prints the configuration, then the round, accuracy and time left, and a table of results.
    Options that are not given are taken from --config, then from the defaults of the method, of the
    data set, and those below. Exit code 2: an error was found before training; 1: the run failed;
    130: interrupted (finished rounds are saved).
    """
    from protofl_cli.screens.screen import Screen

    if plan:
        _check_plan_only({"--resume": resume, "--reuse": reuse, "--events": events})
    if events == STDOUT and as_json:
        raise _both_on_stdout()
    typed = {"method": method, **{k.removesuffix("_"): value for k, value in arguments.items()}}
    places = {"config": config, "out": out, "resume": resume}
    screen = Screen(quiet=quiet or plan)
    try:
        with ExitStack() as until:
            follow: Progress = screen
            if events is not None:
                from protofl_cli.json.event_lines import EventLines

                to_stdout = events == STDOUT
                target = until.enter_context(json_output()) if to_stdout else Path(events)
                follow = until.enter_context(EventLines(target, screen, resume=resume))
            _execute(typed, places, screen, follow, reuse=reuse, plan=plan, as_json=as_json)
    except KeyboardInterrupt as stop:
        do = _to_continue(screen.folder, "nothing was started")
        raise typer.Exit(interrupted(stop, do)) from None


STDOUT = "-"
"""The value of ``--events`` for standard output."""


def _both_on_stdout() -> UsageError:
    from protofl.errors import UsageError

    return UsageError(
        "--events - and --json exclude each other: both print on standard output",
        do="give a file: --events FILE",
    )


def _execute(
    typed: dict[str, Any],
    places: dict[str, Any],
    screen: Screen,
    follow: Progress,
    *,
    reuse: Path | None,
    plan: bool,
    as_json: bool,
) -> None:
    """Do what the command line asks for.

    Args:
        typed: The options of the run.
        places: Further arguments of `read_request`.
        screen: The screen.
        follow: Called with every event: the screen, or what passes events to it.
        reuse: ``--reuse``.
        plan: ``--plan``.
        as_json: ``--json``.
    """
    from protofl.errors import Diverged, RunFailure
    from protofl.runs.request.request import read_request
    from protofl_cli.options.run_plan import show_run_plan

    resume, out = places["resume"], places["out"]
    try:
        with screen:
            request = read_request(typed, **places)
            screen.quiet = screen.quiet or request.quiet
            # Wrong options are found here, before torch is loaded.
            screen.loading(f"resuming {out}" if resume else _title(request.settings))
            with put_off():
                from protofl.federation.events import Note
                from protofl.runs.lifecycle.lifecycle import start

            for line in request.notes:
                follow(Note(line))
            if plan:
                show_run_plan(request, as_json=as_json)
                return
            reused: Reading | None = None
            if reuse is not None:
                from protofl.runs.resume.reuse import run_or_reuse

                reused = run_or_reuse(request, reuse, follow)
                result = reused.result
            else:
                result = start(request, follow)
        if as_json:
            from protofl.records.reading import Reading
            from protofl_cli.pages.run_pages import run_values
            from protofl_workbench.recorded.recorded_run import run_of

            recorded = run_of(reused or Reading.of(result.folder))
            print_json({**run_values(recorded), "profile": result.profile})
    except RunFailure as problem:
        if screen.folder is not None:
            again = isinstance(problem, Diverged) and not screen.folder.commit
            left = _AGAIN if again else _to_continue(screen.folder)
            problem.do = "; ".join(filter(None, (problem.do, left)))
        raise


_AGAIN = (
    "no finished round was saved: with the same options the run would diverge again; start it with "
    "others and another --out"
)


def _check_plan_only(others: dict[str, Any]) -> None:
    """Refuse options that start, continue or write something beside ``--plan``."""
    from protofl.errors import UsageError

    for flag, value in others.items():
        if value:
            raise UsageError(
                f"--plan starts nothing, so {flag} has no effect", do=f"leave out {flag}"
            )


def _title(settings: Settings) -> str:
    """Return the title of a run before its plugins are loaded."""
    return f"{settings.method} · {settings.models} · {settings.dataset}"


def _to_continue(folder: RunFolder | None, otherwise: str = "") -> str:
    """Say which rounds are saved, and how to resume."""
    if folder is None or not folder.path.is_dir():
        return otherwise
    from protofl_cli.screens.tables import shown_path

    saved = "no finished round was saved"
    if folder.commit:
        trial = f" of trial {folder.commit.trial}" if folder.commit.trial else ""
        rounds = folder.commit.round + 1
        saved = f"{count(rounds, 'finished round')}{trial} {'is' if rounds == 1 else 'are'} saved"
    line = f"{saved}; resume with: protofl run --resume --out {shown_path(folder.path)}"
    if folder.commit and (engine := folder.config()["engine"]) != "eager" and not otherwise:
        line += f" (--engine eager, if engine {engine} is the cause)"
    return line
