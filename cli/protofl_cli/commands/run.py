"""``protofl run``: its options are those of `protofl.plan.settings`, read from there.

They are read when the command is called: pydantic, which holds them, takes a third of the time in
which the other commands are done.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl_cli import render
from protofl_cli.options import Debug, number, plain_type, value_range, value_text

if TYPE_CHECKING:
    from protofl.runs.record import RunFolder

PANELS: dict[str, tuple[str, ...]] = {
    "Federation": (
        "models",
        "dataset",
        "partition",
        "clients",
        "participation",
        "rounds",
        "generator",
    ),
    "Local training": (
        "local_epochs",
        "batch_size",
        "optimizer",
        "lr",
        "momentum",
        "clip",
        "feature_dim",
        "drop_last",
        "augment",
        "precision",
        "public",
    ),
    "Composition": ("options", "use", "add", "drop", "wrappers", "block"),
    "Repetition": ("seed", "trials", "hold_split", "same_init", "deterministic"),
    "Machine": (
        "device",
        "engine",
        "backend",
        "workers",
        "client_store",
        "server_threads",
        "data_dir",
    ),
    "Record and screen": (
        "eval_every",
        "eval_clients",
        "checkpoint_every",
        "on_bad_upload",
        "dry_step",
        "profile",
    ),
}
"""Where each option stands in the help; a test holds it against `Settings`."""

OTHER_NAMES = {"options": "set", "wrappers": "with"}
"""Settings whose option has another name."""

METAVAR = {
    "models": "GROUP",
    "dataset": "NAME[:PATH]",
    "partition": "NAME",
    "optimizer": "NAME",
    "precision": "NAME",
    "public": "N|npz:PATH|none",
    "options": "[NAME.]KEY=VALUE",
    "use": "HOOK=METHOD",
    "add": "local_loss=METHOD.TERM",
    "drop": "local_loss.TERM",
    "wrappers": "WRAPPER",
    "block": "NAME",
    "device": "DEVICE",
    "generator": "NAME[:PATH]",
    "engine": "NAME",
    "backend": "NAME",
    "data_dir": "DIR",
    "checkpoint_every": "N|off",
    "on_bad_upload": "stop|skip",
    "client_store": "memory|disk",
    "eval_clients": "all|participants",
}

REPEATABLE = {
    "options": "An option of the method, of NAME (a donor or wrapper), or of the chosen dataset, "
    "partition, models, engine or backend",
    "use": "Take a hook from another method, as that one alone would run it",
    "add": "Add a loss term of another method",
    "drop": "Leave a loss term out",
    "wrappers": "Wrap what is sent, in the order given",
    "block": "Leave a plugin out: NAME or KIND/NAME, either with @DISTRIBUTION",
}

CHOICES = ("optimizer", "precision", "on_bad_upload", "client_store", "eval_clients")
"""Options whose values are listed."""

WORDS = REPEATABLE | {
    "dataset": "The data set",
    "public": "Public samples to hold out, public images in a file, or none",
    "feature_dim": "Feature width K",
    "workers": "Hosts",
    "device": "Where to compute: auto, cpu, cuda or cuda:N",
    "backend": "Where hosts live: auto, local, process or another installed one",
    "on_bad_upload": "What to do about NaN or infinity in an upload",
    "checkpoint_every": "Rounds between checkpoints",
    "profile": "Print where the time went, and write profile/trace.json for Perfetto or Chrome",
}
"""Descriptions, where the one in `Settings` says what the brackets say too."""

DEFAULTS = {
    "clients": "the data set's, otherwise 20",
    "rounds": "the data set's, otherwise 100",
    "feature_dim": "the group's, mostly 512",
    "public": "none, or what the method needs",
    "workers": "one per core",
}
"""Defaults that depend on something, in words."""


def with_options(
    command: Callable[..., None], made: Sequence[inspect.Parameter] = ()
) -> Callable[..., None]:
    """The command with options in place of its ``**given``."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]

    @functools.wraps(command)
    def run(**given: Any) -> None:  # noqa: ANN401 - options of many types
        command(**given)

    run.__signature__ = signature.replace(  # type: ignore[attr-defined]  # inspect reads it
        parameters=[own[0], *made, *own[1:]]
    )
    return run


def whole_command() -> Any:  # noqa: ANN401 - a class of Typer or Click
    """The command with an option for every field of `Settings`.

    None stands for "not given", so that ``--config`` and the plugins' defaults have their turn.
    """
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    made = [_option(name, panel) for panel, names in PANELS.items() for name in names]
    app.command("run")(with_options(run, made))
    return typer.main.get_command(app)


def _option(name: str, panel: str) -> inspect.Parameter:
    """The option of one field: its type, and its description, range and default in words."""
    from protofl.plan.settings import Settings

    field = Settings.model_fields[name]
    long = OTHER_NAMES.get(name, name).replace("_", "-")
    types = plain_type(field.annotation)
    kind = types[0] if len(types) == 1 and types[0] in (int, float, bool, Path) else str
    if name == "checkpoint_every":
        kind = str  # it may be off
    annotation: Any = list[str] | None if name in REPEATABLE else kind | None
    description = WORDS.get(name, field.description or "")
    option = typer.Option(
        f"--{long}/--no-{long}" if kind is bool else f"--{long}",
        help=f"{description[:1].upper()}{description[1:]} ({_aside(name, kind)})",
        metavar=METAVAR.get(name),
        show_default=False,
        rich_help_panel=panel,
    )
    return inspect.Parameter(
        f"{long}_".replace("-", "_"),
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=None,
        annotation=Annotated[annotation, option],
    )


def _aside(name: str, kind: type) -> str:
    """What stands in brackets: the range, and the default."""
    from protofl.plan.settings import Settings

    field = Settings.model_fields[name]
    if name in REPEATABLE:
        return "repeatable"
    limits = value_range(field)
    parts = [limits] if kind in (int, float) or (" | " in limits and name in CHOICES) else []
    if field.is_required():
        return "; ".join([*parts, "needed"])
    value = field.get_default()
    if kind is bool:
        usual = "yes" if value else "no"
    else:
        usual = number(value) if isinstance(value, (int, float)) else value_text(value)
    return "; ".join([*parts, f"default: {DEFAULTS.get(name, usual)}"])


def run(
    method: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD", help="The method, or a recipe; it may come from --config."
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
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", help="Print the last table only.", rich_help_panel="Record and screen"
        ),
    ] = False,
    debug: Debug = False,
    **given: Any,  # noqa: ANN401 - the options of `Settings`, see with_settings
) -> None:
    """Train a federation of clients with a method.

    Prints the composition, a line with the round, accuracy and time left while it runs, and a
    table at the end. What is not given comes from --config, then from the method's defaults, the
    data set's, and those below. Exit code 2: found before training; 1: the run failed; 130:
    interrupted (finished rounds are saved).
    """
    from protofl.plan.request import read_request

    from protofl_cli.screen import Screen

    screen = Screen(quiet=quiet)
    typed = {name.removesuffix("_"): value for name, value in given.items()}
    try:
        with screen:
            request = read_request(
                {"method": method, **typed},
                config=config,
                out=out,
                resume=resume,
                save_recipe=save_recipe,
            )
            screen.quiet = quiet or request.quiet
            if not resume:
                _check_named(request.options)
            screen.loading()
            from protofl.runs.run import start

            start(request, screen)
    except KeyboardInterrupt:
        render.error("interrupted", do=_to_continue(screen.folder, "nothing had been started"))
        raise typer.Exit(130) from None
    except Exception as problem:
        _hint(problem, screen.folder)
        raise


def _check_named(options: dict[str, Any]) -> None:
    """The two things that a run can't do without, worded as they are given here."""
    from protofl.errors import UsageError

    if not options.get("method"):
        raise UsageError(
            "no method is given",
            "protofl run METHOD --models GROUP",
            "see: protofl list-plugins --kind method",
        )
    if not options.get("models"):
        raise UsageError(
            "no model group is given",
            f"protofl run {options['method']} --models GROUP",
            "see: protofl list-plugins --kind model-group",
        )


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
        count = folder.commit.round + 1
        saved = f"{count} finished round{'s'[: count > 1]}{trial} {'is' if count == 1 else 'are'}"
        saved += " saved"
    return f"{saved}; continue with: protofl run --resume --out {shown_path(folder.path)}"
