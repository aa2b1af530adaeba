"""Options that several commands share, and ranges and values of options as text."""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from protofl.system.options.value_text import value_text

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def option(flag: str, metavar: str, text: str, **about: Any) -> Any:  # noqa: ANN401 - a class of Typer
    """Return an option with a value: flag, name of the value, and help."""
    return typer.Option(flag, metavar=metavar, help=text, **about)


Label = Annotated[
    list[str] | None,
    option(
        "--label",
        "GROUP=TEXT",
        "Show a group as TEXT: fedtgp=FedTGP, or 'fedtgp, tau=1=FedTGP, τ = 1'; repeatable.",
    ),
]


GroupBy = Annotated[
    list[str] | None,
    option(
        "--group-by",
        "OPTION",
        "Option to group runs by: method, lr, tau, …, or run for a group per run; "
        "repeatable (default: all options that differ)",
    ),
]


def _check_which(value: str) -> str:
    from protofl.errors import unknown

    if value not in ("last", "best") and not value.strip("0").isdecimal():
        raise unknown("round of --which", value, ("best", "last"), "or give a kept round: 4")
    return value


Which = Annotated[
    str,
    typer.Option(
        "--which",
        metavar="last|best|N",
        help="Round of the kept weights; N is a round that --keep-weights kept.",
        callback=_check_which,
    ),
]


def kept_round(which: str) -> int | None:
    """Return the round of ``--which``, from 0 as in Python; None for a word."""
    return int(which) - 1 if which.isdecimal() else None


def _remember_debug(context: typer.Context, value: bool) -> bool:
    if value and isinstance(context.obj, dict):
        context.obj["debug"] = True
    return value


Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show the full traceback of an error, including the traceback of a worker.",
        callback=_remember_debug,
    ),
]
Block = Annotated[
    list[str] | None,
    option(
        "--block",
        "NAME",
        "Ignore a plugin: NAME or KIND/NAME, optionally with @DISTRIBUTION; repeatable "
        "(environment variable: PROTOFL_BLOCK).",
    ),
]


TRUST_HELP = (
    "Allow code of this file, folder or module that a reproduction, configuration or run "
    "folder refers to; repeatable."
)


def trust(paths: list[str] | None) -> list[str] | None:
    """Register the consents of ``--trust-code`` before any file is read."""
    if paths:
        from protofl.system.consent import trust_code

        trust_code(*paths)
    return paths


TrustCode = Annotated[
    list[str] | None, option("--trust-code", "PATH", TRUST_HELP, show_default=False, callback=trust)
]
DataDir = Annotated[
    Path | None,
    option(
        "--data-dir",
        "DIR",
        "Cache of decoded data (default: PROTOFL_DATA_DIR, otherwise ~/.cache/protofl)",
        show_default=False,
    ),
]


def plugin_options(
    texts: Sequence[str] | None, form: str, owners: Sequence[str], bare: str = ""
) -> dict[str, dict[str, Any]]:
    """Return the options of ``--set`` by plugin.

    Args:
        texts: Values of ``--set``.
        form: Form of a value, for errors.
        owners: Words for the plugins of the command: ``dataset``, ``partition``, ….
        bare: Word of the plugin for keys without a word.

    Raises:
        UsageError: The form or the word of a value is wrong.
    """
    from protofl.errors import unknown
    from protofl.system.options.parsing import assignments, expand_set

    by_owner = expand_set(assignments("--set", texts or (), form), bare)
    for owner, values in by_owner.items():
        if owner not in owners:
            raise unknown("part in --set", owner or min(values), owners, f"write --set {form}")
    return {owner: by_owner.get(owner, {}) for owner in owners}


# --- ranges and defaults --------------------------------------------------------------------------


def plugin_option_rows(plugin: type) -> list[tuple[str, str, str, str]]:
    """Return option, default, range and description of the options of a plugin.

    The default of an option that users write after the plugin's name is `AFTER_NAME`.
    """
    from protofl.system.options.plugin_options import Config, VariantConfig, option_names

    config: type[Config] = getattr(plugin, "Config", Config)
    deviations = config.deviations if issubclass(config, VariantConfig) else {}
    rows = []
    for key, name in option_names(config).items():
        field = config.model_fields[name]
        default = "required" if field.is_required() else value_text(field.get_default())
        if name in deviations and field.default is None:
            default = value_text(deviations[name].paper)
        if name == getattr(plugin, "argument", None):
            default = AFTER_NAME
        rows.append((key, default, value_range(field), field.description or ""))
    return rows


AFTER_NAME = "after the name"
"""Default of an option that is the argument of a plugin, ``torchvision:resnet18``."""


def plain_type(annotation: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any type
    """Return the types of an option without None."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(a for a in get_args(annotation) if a is not type(None))
    return (annotation,)


def choices(types: Sequence[Any]) -> list[Any]:
    """Return the values of the ``Literal`` types among the types of an option."""
    return [value for kind in types if get_origin(kind) is Literal for value in get_args(kind)]


def value_range(field: FieldInfo) -> str:
    """Return the range of an option: ``≥ 1``, ``0 … 1``, ``sgd | adam``."""
    ranges = []
    for kind in plain_type(field.annotation):
        bounds = [*field.metadata]
        if get_origin(kind) is Annotated:
            kind, *further = get_args(kind)
            bounds += further
        if get_origin(kind) is Literal:
            ranges.append(" | ".join(map(str, get_args(kind))))
        elif kind is bool:
            ranges.append("true | false")
        elif kind in (int, float):
            ranges.append(_bounds(bounds) or ("integer" if kind is int else "number"))
        elif kind is str:
            ranges.append("text")
        else:
            ranges.append(getattr(kind, "__name__", str(kind)).lower())
    return " | ".join(dict.fromkeys(ranges))


def _bounds(metadata: Sequence[Any]) -> str:
    limits = {
        name: getattr(item, name)
        for item in metadata
        for name in ("gt", "ge", "lt", "le")
        if getattr(item, name, None) is not None
    }
    if limits.keys() == {"ge", "le"}:
        return f"{number(limits['ge'])} … {number(limits['le'])}"
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    return ", ".join(f"{signs[name]} {number(value)}" for name, value in limits.items())


def number(value: float) -> str:
    """Return a number without needless digits; integers have thousands separators."""
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:g}"
