"""``--json``: the option, the only writer, and the schemas of the commands that have it.

A command with ``--json`` has the option ``as_json: Json = False``, and names the model of its
output: ``@prints_json("protofl_cli.json.runs:ListedRuns")``. It calls `print_json` once.
Everything else that it prints goes to standard error, so standard output has JSON alone. The models
need pydantic, so only `schema_of` imports them. `protofl_cli.public` has what other packages use.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, TextIO

import typer

from protofl.system.files.tables import json_values

Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the result as JSON, and everything else on standard error. protofl show schema "
        "describes it.",
    ),
]

_OUTPUTS: list[TextIO] = []
"""The standard output of the command that prints JSON, while its other output is redirected."""


def prints_json(model: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare the output of a command with ``as_json: Json``.

    Args:
        model: ``MODULE:CLASS`` of the pydantic model, or of a type with such models.
    """

    def declare(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**arguments: Any) -> None:  # noqa: ANN401 - options of many types
            with json_output() if arguments.get("as_json") else contextlib.nullcontext():
                command(**arguments)

        run.json_model = model  # type: ignore[attr-defined]  # `model_of` reads it
        return run

    return declare


@contextlib.contextmanager
def json_output() -> Iterator[TextIO]:
    """Send all output of the block but that of `print_json` to standard error.

    Yields:
        The standard output.
    """
    _OUTPUTS.append(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield _OUTPUTS[-1]
    finally:
        _OUTPUTS.pop()


def print_json(value: Any) -> None:  # noqa: ANN401 - JSON, paths and tuples
    """Print a value as JSON on standard output.

    Numbers keep all their digits. NaN and infinity, which JSON lacks, become null. Characters that
    the encoding of the output lacks are escaped.
    """
    stream = _OUTPUTS[-1] if _OUTPUTS else sys.stdout
    plain = json_values(value)
    text = json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except UnicodeError:
        text = json.dumps(plain, indent=1, allow_nan=False)
    stream.write(text + "\n")
    stream.flush()


def pair_values(rows: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Return a table of names and values (`render.pairs`) as JSON values."""
    return [{"name": name, "value": value} for name, value in rows]


def check_format(format_: str | None, *, as_json: bool) -> None:
    """Refuse ``--format`` beside ``--json``.

    Raises:
        UsageError: Another format than JSON or the default is asked for too.
    """
    from protofl.errors import UsageError

    if as_json and format_ not in (None, "table", "json"):
        raise UsageError(
            f"--json and --format {format_} exclude each other", do="leave one of them out"
        )


# --- schemas --------------------------------------------------------------------------------------

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def model_of(command: Any) -> str:  # noqa: ANN401 - a class that Typer does not export
    """Return the model of a command's JSON; empty if it has no ``--json``."""
    return getattr(command.callback, "json_model", "")


def schema_of(model: str, title: str) -> dict[str, Any]:
    """Return the JSON Schema of a model.

    Args:
        model: ``MODULE:CLASS``.
        title: Title of the schema: the command.
    """
    from pydantic import TypeAdapter

    module, _, name = model.partition(":")
    schema = TypeAdapter(getattr(importlib.import_module(module), name)).json_schema()
    return {"$schema": DRAFT, **_without_titles(schema), "title": title}


def _without_titles(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a schema without the titles that repeat the names of fields."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(each) for name, each in value.items()}
        if key in ("properties", "$defs")
        else _without_titles(value)
        for key, value in schema.items()
        if key != "title"
    }
