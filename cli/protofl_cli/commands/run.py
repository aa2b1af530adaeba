"""``protofl run``: train a federation; its options are made in `protofl_cli.run_options`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl.system.formatting import count
from protofl_cli.interrupts import interrupted, put_off
from protofl_cli.options import TRUST_HELP, Debug, trust
from protofl_cli.run_options import option_parameters, with_options

if TYPE_CHECKING:
    from protofl.records.run_folder import RunFolder
    from protofl.system.options.settings import Settings


def whole_command() -> Any:  # noqa: ANN401 - a class that Typer does not export
    """The command with all options."""
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command("run")(with_options(run, option_parameters()))
    return typer.main.get_command(app)


def run(
    method: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD",
            help="The method, or a recipe; FILE.py:CLASS for one that is not installed. It may "
            "come from --config.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="TOML or JSON with these options' long names; the command line wins. A run's "
            "config.json repeats the run.",
            rich_help_panel="Record and screen",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="The run folder (default: runs/METHOD-MODELS-DATA-sSEED-TIME)",
            rich_help_panel="Record and screen",
        ),
    ] = None,
    save_recipe: Annotated[
        Path | None,
        typer.Option(
            "--save-recipe",
            metavar="FILE",
            help="Write the options given as a recipe, .toml or .json, once the dry step has "
            "passed.",
            rich_help_panel="Record and screen",
            hidden=True,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run in --out DIR; needs no other option.",
            rich_help_panel="Record and screen",
        ),
    ] = False,
    reuse: Annotated[
        Path | None,
        typer.Option(
            "--reuse",
            metavar="DIR",
            help="A folder of runs: where one in it is this run already, its table is printed; one "
            "with fewer rounds goes on; otherwise the run is begun in it.",
            rich_help_panel="Record and screen",
            hidden=True,
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            help="Print the last table only.",
            rich_help_panel="Record and screen",
            hidden=True,
        ),
    ] = False,
    trust_code: Annotated[
        list[str] | None,
        typer.Option(
            "--trust-code",
            metavar="PATH",
            help=TRUST_HELP,
            show_default=False,
            hidden=True,
            callback=trust,
        ),
    ] = None,
    debug: Debug = False,
    **given: Any,  # noqa: ANN401 - the options of `Settings`, see with_settings
) -> None:
    """Train a federation of clients with a method.

    Prints the composition, a line with the round, accuracy and time left while it runs, and a
    table at the end. What is not given comes from --config, then from the method's defaults, the
    data set's, and those below. Exit code 2: found before training; 1: the run failed; 130:
    interrupted (finished rounds are saved).
    """
    from protofl.runs.plugin_names import named_request
    from protofl.system.options.table import build
    from protofl_cli.screen import Screen

    screen = Screen(quiet=quiet)
    typed = {name.removesuffix("_"): value for name, value in given.items()}
    try:
        with screen:
            request, found = named_request(
                {"method": method, **typed},
                config=config,
                out=out,
                resume=resume,
                save_recipe=save_recipe,
            )
            screen.quiet = quiet or request.quiet
            # Mistakes in options are found before torch is loaded; an empty name is none.
            given = {name: value for name, value in request.options.items() if value != ""}
            screen.loading(f"resuming {out}" if resume else _title(build(given)))
            with put_off():
                from protofl.federation.events import Note
                from protofl.runs.lifecycle import start
                from protofl.runs.reuse import run_or_reuse

            for line in found.notes:
                screen(Note(line))
            if reuse is not None:
                run_or_reuse(request, reuse, screen)
            else:
                start(request, screen)
    except KeyboardInterrupt as stop:
        do = _to_continue(screen.folder, "nothing had been started")
        raise typer.Exit(interrupted(stop, do)) from None
    except Exception as problem:
        _hint(problem, screen.folder)
        raise


def _title(settings: Settings) -> str:
    """Return the run in a line, as far as it is known before the plugins are loaded."""
    name = settings.recipe.get("name", settings.method)
    return f"{name} · {settings.models} · {settings.dataset}"


def _hint(problem: Exception, folder: RunFolder | None) -> None:
    """Add to the error of a run that had begun how to go on."""
    from protofl.errors import RunFailure

    if isinstance(problem, RunFailure) and folder is not None:
        problem.do = "; ".join(part for part in (problem.do, _to_continue(folder)) if part)


def _to_continue(folder: RunFolder | None, otherwise: str = "") -> str:
    """What is saved, and how to continue."""
    if folder is None:
        return otherwise
    from protofl_cli.tables import shown_path

    saved = "no finished round was saved"
    if folder.commit:
        trial = f" of trial {folder.commit.trial}" if folder.commit.trial else ""
        done = folder.commit.round + 1
        saved = f"{count(done, 'finished round')}{trial} {'is' if done == 1 else 'are'} saved"
    return f"{saved}; continue with: protofl run --resume --out {shown_path(folder.path)}"
