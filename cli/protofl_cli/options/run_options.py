"""Options of ``protofl run`` and ``protofl sweep``, made from their declarations.

Only these commands import `protofl.system.options.table`, because importing pydantic takes a third
of the time of other commands.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from protofl.system.options.value_text import value_text
from protofl_cli.options import completion
from protofl_cli.options.options import choices, number, plain_type, value_range
from protofl_cli.screens import render


def with_options(
    command: Callable[..., None], made: Sequence[inspect.Parameter] = ()
) -> Callable[..., None]:
    """Return a command with options instead of its ``**given``."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [
        p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD
    ]

    @functools.wraps(command)
    def run(**arguments: Any) -> None:  # noqa: ANN401 - options of many types
        command(**arguments)

    run.__signature__ = signature.replace(  # type: ignore[attr-defined]  # inspect reads it
        parameters=[parameters[0], *made, *parameters[1:]]
    )
    return run


def help_text(command: Callable[..., None]) -> str:
    """Return the docstring of a command with a line for each paragraph, which terminals wrap."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.splitlines()) for paragraph in paragraphs)


def whole_command(name: str, command: Callable[..., None], panel: str) -> Any:  # noqa: ANN401 - a class that Typer does not export
    """Return a command with all options of a run."""
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    about = help_text(command)
    made = with_options(command, option_parameters())
    app.command(name, help=about, rich_help_panel=panel)(made)
    return typer.main.get_command(app)


def option_parameters() -> list[inspect.Parameter]:
    """Return a parameter for each option of a run that has a flag, and one for ``--help-all``.

    The default is None, "not given", so that ``--config`` and defaults of plugins apply.
    """
    from protofl.system.options.table import OPTIONS

    parameters = [_parameter(name) for name, option in OPTIONS.items() if option.panel]
    return [*parameters, _as_parameter("help_all", bool, _HELP_ALL)]


def _show_all(context: typer.Context, value: bool) -> None:
    if not value:
        return
    for parameter in context.command.params:
        parameter.hidden = False  # type: ignore[attr-defined]  # options have it
    text = context.get_help()  # prints itself if it has panels
    render.plain([text] if text else [])
    raise typer.Exit


_HELP_ALL = typer.Option(
    "--help-all",
    help="Show all options and exit; --help shows the most used ones.",
    callback=_show_all,
    is_eager=True,
    expose_value=False,
)


def _parameter(name: str) -> inspect.Parameter:
    """Return the parameter of one option: its flag, type and help."""
    from protofl.system.options.settings import Settings
    from protofl.system.options.table import OPTIONS, flag_of, is_repeatable, reads_text

    option, types = OPTIONS[name], plain_type(Settings.model_fields[name].annotation)
    plain = len(types) == 1 and types[0] in (int, float, bool, Path) and not reads_text(name)
    kind = types[0] if plain else str
    flag = flag_of(name)
    made = typer.Option(
        f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
        help=f"{option.help} ({_aside(name, kind)})",
        metavar=option.metavar or "|".join(map(str, choices(types))) or None,
        show_default=False,
        rich_help_panel=option.panel,
        hidden=not option.common,
        callback=_check_dry_run if name == "dry_run" else None,
        autocompletion=_completer(option.chooses, types),
    )
    return _as_parameter(flag[2:], list[str] | None if is_repeatable(name) else kind | None, made)


def _completer(kind: str, types: Sequence[Any]) -> completion.Completer | None:
    """Return the completer of an option: names of plugins of a kind, or the words of a literal."""
    if kind:
        return completion.plugin_names(kind)
    known = choices(types)
    return completion.words(known) if known else None


def _check_dry_run(value: bool | None) -> bool | None:
    """Refuse ``--dry-run``, which in other programs means to do nothing.

    Raises:
        UsageError: The option is given without ``no``.
    """
    if value:
        from protofl.errors import UsageError

        raise UsageError(
            "--dry-run is not needed: every run begins with a dry run of two short rounds",
            do="leave it out; --plan trains nothing, and --no-dry-run skips the dry run",
        )
    return value


def _as_parameter(name: str, annotation: Any, option: Any) -> inspect.Parameter:  # noqa: ANN401
    return inspect.Parameter(
        f"{name}_".replace("-", "_"),
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=None,
        annotation=Annotated[annotation, option],
    )


OF_DATA = (
    "partition", "clients", "rounds", "local_epochs", "batch_size", "optimizer", "lr",
    "lr_schedule", "feature_dim", "drop_last",
)  # fmt: skip
"""Options for which data sets have defaults of their own."""


def _aside(name: str, kind: type) -> str:
    """Return the range and the default of an option, or that it is repeatable."""
    from protofl.system.options.settings import Settings
    from protofl.system.options.table import OPTIONS, is_repeatable

    field, option = Settings.model_fields[name], OPTIONS[name]
    if is_repeatable(name):
        return "repeatable"
    named = option.metavar and choices(plain_type(field.annotation))
    parts = [value_range(field)] if kind in (int, float) or named else []
    if field.is_required():
        return "; ".join([*parts, "needed"])
    value = field.get_default()
    if kind is bool:
        usual = "yes" if value else "no"
    else:
        usual = number(value) if isinstance(value, (int, float)) else value_text(value)
    of_data = "the data set's, " * (name in OF_DATA)
    usual = f"otherwise {usual}" if of_data and not option.usual else usual
    return "; ".join([*parts, f"default: {of_data}{option.usual or usual}"])
