"""``protofl show schema``: the commands with ``--json``, and the JSON Schemas of their output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protofl_cli.json.json_output import model_of, print_json, schema_of
from protofl_cli.screens import render

EVENTS = "events"
"""Name of the schema of a line of ``protofl run --events FILE``."""

OTHERS = {EVENTS: "protofl_cli.json.events:EventLine"}
"""{name: model} of schemas that are not of a command."""


def commands(root: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - a class that Typer does not export
    """Yield the words of each command and the command, also those of plugins that can be imported.

    Args:
        root: The context of ``protofl``.
    """
    yield from _below(root, "")


def _below(context: Any, before: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - as above
    from protofl.errors import ProtoflError

    for name in context.command.list_commands(context):
        try:
            _, command, _ = context.command.resolve_command(context, [name])
        except ProtoflError:  # a broken plugin; `protofl list-plugins` shows it
            continue
        words = f"{before} {name}".strip()
        if hasattr(command, "list_commands"):
            inner = command.make_context(name, [], parent=context, resilient_parsing=True)
            yield from _below(inner, words)
        else:
            yield words, command


def models(root: Any) -> dict[str, tuple[str, str]]:  # noqa: ANN401 - as above
    """Return {name of a schema: (words of the command, model)}."""
    found = {
        words.replace(" ", "-"): (words, model)
        for words, command in commands(root)
        if (model := model_of(command))
    }
    return found | {name: ("run --events", model) for name, model in OTHERS.items()}


def show_schema(root: Any, name: str, *, as_json: bool = False) -> None:  # noqa: ANN401 - as above
    """Print a schema, which is JSON anyway, or the list of the schemas.

    Args:
        root: The context of ``protofl``.
        name: The command with hyphens (``runs-list``), or ``events``; empty for the list.
        as_json: True to print the list as JSON.

    Raises:
        UsageError: There is no such schema.
    """
    from protofl.errors import unknown

    known = models(root)
    if name:
        if name not in known:
            raise unknown("schema", name, known, "list all with: protofl show schema")
        words, model = known[name]
        print_json(schema_of(model, f"protofl {words}"))
        return
    rows = [{"command": f"protofl {words}", "name": name} for name, (words, _) in known.items()]
    if as_json:
        print_json(rows)
        return
    render.heading("schema", "JSON of commands with --json")
    shown = [(row["command"], f"protofl show schema/{row['name']}") for row in rows]
    render.table(("command", "its JSON Schema"), shown, keep=("its JSON Schema",), wrap=True)
