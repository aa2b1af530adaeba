"""Options in words: their ranges as the models that check them say, and how users write them."""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def _remember_debug(context: typer.Context, value: bool) -> bool:
    if value and isinstance(context.obj, dict):
        context.obj["debug"] = True
    return value


Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show the whole traceback of an error, a worker's included.",
        callback=_remember_debug,
    ),
]
Block = Annotated[
    list[str] | None,
    typer.Option(
        "--block",
        metavar="NAME",
        help="Leave a plugin out: NAME or KIND/NAME, either with @DISTRIBUTION; repeatable. "
        "PROTOFL_BLOCK does the same.",
    ),
]


TRUST_HELP = (
    "Allow code of this file, folder or module that a study, configuration or run folder names; "
    "repeatable."
)


def trust(paths: list[str] | None) -> list[str] | None:
    """Take the consents of ``--trust-code``, before anything reads a file."""
    if paths:
        from protofl.system.consent import trust_code

        trust_code(*paths)
    return paths


TrustCode = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-code",
        metavar="PATH",
        help=TRUST_HELP,
        show_default=False,
        callback=trust,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Where decoded data are cached (default: PROTOFL_DATA_DIR, otherwise "
        "~/.cache/protofl)",
        show_default=False,
    ),
]


def plugin_options(
    words: Sequence[str] | None, form: str, owners: Sequence[str], bare: str = ""
) -> dict[str, dict[str, Any]]:
    """What --set holds for the plugins that a command uses, by the word that stands for each.

    Args:
        words: What was given.
        form: How it is to be written.
        owners: The words.
        bare: The one to which a key without a word belongs.
    """
    from protofl.errors import unknown
    from protofl.system.options.parsing import assignments, expand_set

    found = expand_set(assignments("--set", words or (), form), bare)
    for owner, values in found.items():
        if owner not in owners:
            raise unknown("part in --set", owner or min(values), owners, f"write --set {form}")
    return {owner: found.get(owner, {}) for owner in owners}


# --- ranges and defaults --------------------------------------------------------------------------


def plain_type(annotation: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any type
    """The types of which an option may be, without None."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(a for a in get_args(annotation) if a is not type(None))
    return (annotation,)


def choices(types: Sequence[Any]) -> list[Any]:
    """Return the values of the ``Literal`` types among the types of an option."""
    return [value for kind in types if get_origin(kind) is Literal for value in get_args(kind)]


def value_range(field: FieldInfo) -> str:
    """What an option takes: ``≥ 1``, ``0 … 1``, ``sgd | adam``."""
    words = []
    for kind in plain_type(field.annotation):
        if get_origin(kind) is Literal:
            words.append(" | ".join(map(str, get_args(kind))))
        elif kind is bool:
            words.append("true | false")
        elif kind in (int, float):
            words.append(_bounds(field) or ("integer" if kind is int else "number"))
        elif kind is str:
            words.append("text")
        else:
            words.append(getattr(kind, "__name__", str(kind)).lower())
    return " | ".join(dict.fromkeys(words))


def _bounds(field: FieldInfo) -> str:
    found = {
        name: getattr(item, name)
        for item in field.metadata
        for name in ("gt", "ge", "lt", "le")
        if getattr(item, name, None) is not None
    }
    if found.keys() == {"ge", "le"}:
        return f"{number(found['ge'])} … {number(found['le'])}"
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    return ", ".join(f"{signs[name]} {number(value)}" for name, value in found.items())


def number(value: float) -> str:
    """A number without needless digits; whole ones in groups of three."""
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:g}"


def value_text(value: Any) -> str:  # noqa: ANN401 - options are of many types
    """A value as a user writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
