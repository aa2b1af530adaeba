"""``--json``: the option, and the only writer.

A command with ``--json`` has the option ``as_json: Json = False`` and the decorator `prints_json`.
It calls `print_json` once. Everything else that it prints goes to standard error, so standard
output has JSON alone. `protofl_cli.public` has what other packages use.
"""

from __future__ import annotations

import contextlib
import functools
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
        help="Print the result as JSON, and everything else on standard error.",
    ),
]

_OUTPUTS: list[TextIO] = []
"""The standard output of the command that prints JSON, while its other output is redirected."""


def prints_json(command: Callable[..., None]) -> Callable[..., None]:
    """Send all output of a command but that of `print_json` to standard error, with ``--json``."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:  # noqa: ANN401 - options of many types
        with json_output() if arguments.get("as_json") else contextlib.nullcontext():
            command(**arguments)

    return run


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
