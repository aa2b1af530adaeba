"""``protofl sweep``: run a grid of options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl.errors import Diverged
from protofl.system.files.home import expand_user
from protofl_cli.interrupts import interrupted, put_off
from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.completion import METHODS
from protofl_cli.options.options import Debug, TrustCode, option
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl_cli.screens.batch_screen import BatchScreen
    from protofl_workbench.sweeps.sweep import Sweep
    from protofl_workbench.sweeps.sweep_results import SweepResult

PANEL = "Sweep"


_option = partial(option, rich_help_panel=PANEL)


@prints_json
def sweep(
    method: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD",
            help="The method; none with --grid method=….",
            autocompletion=METHODS,
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        _option(
            "--grid",
            "KEY=VALUE,…",
            "Axis: option of the method, NAME.KEY as for --set, or option of a run by its long "
            "name, with its values; repeatable",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        _option(
            "--out",
            "DIR",
            "Folder of the sweep (default: runs/sweeps/METHOD-MODELS-DATA-TIME)",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        _option(
            "--runs",
            "DIR",
            "Folder of runs; finished runs are not repeated (default: runs)",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        _option("--resume", "DIR", "Resume the sweep in a folder; no other option is needed."),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Print the runs, their steps and estimated hours; train nothing.",
            rich_help_panel=PANEL,
        ),
    ] = False,
    figure: Annotated[
        str | None,
        _option(
            "--figure",
            "NAME",
            "Accuracy by which points are compared: best, final, best-server or final-server, on "
            "validation samples if the runs have some (default: best)",
            show_default=False,
        ),
    ] = None,
    at_once: Annotated[
        int | None,
        _option(
            "--at-once",
            "N",
            "Parallel runs; 0 to run one by one in this process (≥ 0; default: one per core, or 1 "
            "on a GPU)",
            min=0,
            show_default=False,
        ),
    ] = None,
    most: Annotated[
        int | None,
        _option("--most", "N", "Largest number of runs (default: 1,000)", min=1),
    ] = None,
    config: Annotated[
        Path | None,
        _option(
            "--config",
            "FILE",
            "TOML or JSON file with options; the command line overrides it.",
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", help="Print only the results.", rich_help_panel=PANEL),
    ] = False,
    as_json: Json = False,
    trust_code: TrustCode = None,
    debug: Debug = False,
    **arguments: Any,  # noqa: ANN401 - the options of `Settings`, see with_options
) -> None:
    """Run a grid of options, and print the best point.

    Takes all options of protofl run. --trials N makes N runs of each point, with different seeds.
    Every run is checked before any training. Finished runs are not repeated. --resume DIR resumes
    an interrupted sweep. Exit code 2: an error was found before training; 1: a run failed, the
    others are finished; 130: interrupted (finished rounds are saved).
    """
    from protofl_cli.screens.batch_screen import BatchScreen

    typed = {
        name.removesuffix("_"): value for name, value in arguments.items() if value is not None
    }
    places: list[Path] = []
    try:
        with BatchScreen(quiet=quiet) as screen:
            screen.loading("loading")
            with put_off():
                from protofl_workbench.sweeps.sweep import load_sweep  # torch, which takes seconds
                from protofl_workbench.sweeps.sweep_execution import (
                    new_folder,
                    resume_sweep,
                    start_sweep,
                )
                from protofl_workbench.sweeps.sweep_interface import (
                    check_resume_options,
                    requested_sweep,
                )
            how: dict[str, Any] = {"at_once": at_once, "follow": screen}
            if resume is not None:
                others = {"method": method, "grid": grid, "out": out, "runs": runs, "most": most}
                others |= {"config": config, "figure": figure, **typed}
                check_resume_options(
                    {key: v for key, v in others.items() if key != "set"}, plan=plan
                )
                places.append(resume)
                asked, said = load_sweep(resume), typed.get("set") or ()
                screen.total = asked.all_runs
                go_on = partial(resume_sweep, resume, said=said, **how)
                _execute(asked, resume, screen, go_on, as_json=as_json)
            else:
                typed = {"method": method, **typed}
                asked, notes = requested_sweep(
                    typed,
                    grid or (),
                    config=config,
                    runs=runs,
                    most=most,
                    figure=figure,
                )
                for line in notes:
                    screen.say(f"note: {line}", "yellow")
                if plan:
                    _plan(asked, at_once, screen, as_json=as_json)
                else:
                    folder = expand_user(out if out is not None else new_folder(asked))
                    places.append(folder)
                    screen.total = asked.all_runs
                    begin = lambda: (asked, start_sweep(asked, folder, **how))  # noqa: E731
                    _execute(asked, folder, screen, begin, as_json=as_json)
    except KeyboardInterrupt as stop:
        there = places and (places[0] / "sweep.toml").exists()
        do = f"finished rounds are saved; resume with: {_again(places[0])}" if there else ""
        raise typer.Exit(interrupted(stop, do or "nothing was started")) from None
    if screen.failed:
        from protofl_cli.screens.batch_screen import show_failures

        show_failures(screen.failed)
        if not all(isinstance(outcome.error, Diverged) for outcome in screen.failed):
            render.line(f"then resume with: {_again(places[0])}")
        raise typer.Exit(1)


def _execute(
    asked: Sweep,
    folder: Path,
    screen: BatchScreen,
    run: Callable[[], tuple[Sweep, SweepResult]],
    *,
    as_json: bool,
) -> None:
    """Print the axes of a sweep, execute it, and print its results."""
    from protofl_cli.screens.sweep_tables import show_head, show_results

    if not screen.quiet:
        screen.end()
        show_head(asked, folder)
        screen.loading("dry runs")
    asked, results = run()
    screen.end()
    if as_json:
        print_json({"folder": folder, **results.to_values(folder)})
    else:
        show_results(results, asked, folder)


def _plan(asked: Sweep, at_once: int | None, screen: BatchScreen, *, as_json: bool) -> None:
    from protofl_cli.screens.sweep_tables import plan_values, show_plan
    from protofl_workbench.sweeps.sweep_execution import plan_sweep

    checked = plan_sweep(asked, at_once=at_once, follow=screen)
    screen.end()
    if as_json:
        print_json(plan_values(asked, checked))
    else:
        show_plan(checked, at_once)


def _again(folder: Path) -> str:
    from protofl_cli.screens.tables import shown_path

    return f"protofl sweep --resume {shown_path(folder)}"
