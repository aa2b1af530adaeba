"""The command line's reference, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
from protofl_cli.app import app
from markdown_tables import code, table

BRACKETS = re.compile(r"(?P<what>.*) \((?:(?P<limits>.*); )?default: (?P<default>.*)\)", re.DOTALL)
NEEDED = re.compile(r"(?P<what>.*) \(needed\)", re.DOTALL)
RANGE = re.compile(r"(?P<what>.*) \((?P<limits>[<>≤≥] [^()]*)\)", re.DOTALL)
REPEATED = re.compile(r"(?P<what>.*)(?: \(repeatable\)|; repeatable)(?P<more>.*)", re.DOTALL)
ADDED = re.compile(r"(?P<what>.*)  \\?\[(?P<facts>[^\[\]]*)\]", re.DOTALL)
NAMES = re.compile(r"^(?:-[\w-]+(?:, | / )?)+")
USUAL = {"int": "N", "integer": "N", "float": "X", "str": "TEXT", "path": "PATH"}


def command_reference() -> str:
    """Every command with its arguments and options."""
    return "\n\n".join(_command(context) for context in commands())


def command_list() -> str:
    """A table of all commands and what they do, a table for each group of ``--help``."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for context in commands():
        top = context
        while top.parent.parent is not None:
            top = top.parent
        panel = getattr(top.command, "rich_help_panel", None)
        words = inspect.cleandoc(context.command.help or "").partition("\n\n")[0]
        row = (code(path_of(context)), words.rstrip("."))
        panels.setdefault(panel if isinstance(panel, str) else "", []).append(row)
    tables = [(title, table(("command", "what it does"), rows)) for title, rows in panels.items()]
    return "\n\n".join(f"### {title}\n\n{rows}" if title else rows for title, rows in tables)


def commands() -> Iterator[Any]:
    """Yield the contexts of all commands without subcommands, in the order of ``--help``."""
    root = typer.main.get_command(app)
    yield from _below(root.make_context("protofl", [], resilient_parsing=True))


def _below(context: Any) -> Iterator[Any]:  # noqa: ANN401 - a class of Typer or Click
    group = context.command
    for name in group.list_commands(context):
        # As the command line finds it: `run` gets its options only when it is called.
        _, command, _ = group.resolve_command(context, [name])
        inner = command.make_context(name, [], parent=context, resilient_parsing=True)
        for parameter in command.params:
            parameter.hidden = False  # those that only --help-all shows
        yield from _below(inner) if hasattr(command, "list_commands") else (inner,)


def path_of(context: Any) -> str:  # noqa: ANN401 - a class of Typer or Click
    """The words that call a command, ``protofl runs list``."""
    words = []
    while context is not None:
        words.append(context.info_name)
        context = context.parent
    return " ".join(reversed(words))


def _command(context: Any) -> str:  # noqa: ANN401 - a class of Typer or Click
    command, path = context.command, path_of(context)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    words = [p.metavar or p.name.upper() for p in arguments]
    shown = " ".join(
        w if p.required or w.startswith("[") else f"[{w}]"
        for w, p in zip(words, arguments, strict=True)
    )
    parts = [
        f"## {path}",
        f"```\n{' '.join(filter(None, (path, shown, '[OPTIONS]' if options else '')))}\n```",
        inspect.cleandoc(command.help or ""),
    ]
    if arguments:
        lines = [(code(w), p.help or "") for w, p in zip(words, arguments, strict=True)]
        parts.append(table(("argument", "what"), lines))
    panels: dict[str, list[Any]] = {}
    for option in options:
        panels.setdefault(getattr(option, "rich_help_panel", None) or "Options", []).append(option)
    several = len(panels) > 1
    for panel in sorted(panels, key=lambda p: p == "Options"):
        title = "Other" if several and panel == "Options" else panel
        rows = [_option(option, context) for option in panels[panel]]
        parts += [f"### {title} {{ #{path.replace(' ', '-')}-{title.lower().replace(' ', '-')} }}"]
        parts += [table(("option", "value", "default", "what"), rows)]
    return "\n\n".join(parts)


def _option(option: Any, context: Any) -> tuple[str, str, str, str]:  # noqa: ANN401 - Typer's
    """Names, values, default and meaning of an option, out of what ``--help`` prints of it."""
    names = [*option.opts, *option.secondary_opts]
    shown, what = option.get_help_record(context)
    value = NAMES.sub("", shown).strip()
    value = USUAL.get(value.strip("<>").removesuffix(" range").lower(), value)
    default, limits = "needed" if option.required else "", ""
    if (added := ADDED.fullmatch(what)) is not None:  # by Typer: [default: 5; x>=1]
        what = added["what"]
        for part in added["facts"].split("; "):
            if part.startswith("default: "):
                default = part.removeprefix("default: ")
            elif "x" in part and "=" in part:
                limits = part.replace("<=x<=", " … ").replace("x>=", "≥ ").replace("x<=", "≤ ")
    if (bracketed := BRACKETS.fullmatch(what)) is not None:  # by us: (≥ 1; default: 20)
        what, default = bracketed["what"], bracketed["default"]
        limits = bracketed["limits"] or limits
    elif (bracketed := NEEDED.fullmatch(what)) is not None:
        what, default = bracketed["what"], "needed"
    elif (bracketed := RANGE.fullmatch(what)) is not None:
        what, limits = bracketed["what"], bracketed["limits"]
    if (repeated := REPEATED.fullmatch(what)) is not None:
        what, limits = repeated["what"] + repeated["more"], "repeatable"
    if " | " in limits:
        value, limits = "", " | ".join(map(code, limits.split(" | ")))
    values = ", ".join(filter(None, (code(value), limits)))
    return ", ".join(map(code, names)), values, default, what.rstrip(".")
