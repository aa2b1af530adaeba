"""``protofl list-plugins``: the installed plugins and their states."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.options import Block, Debug, option
from protofl_cli.plugin_commands import clash_with_own
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl.hooks.discovery.kinds import Plugin
    from protofl.hooks.discovery.registry import Registry


def _kinds(incomplete: str) -> list[str]:
    from protofl.hooks.discovery.kinds import KINDS

    return [kind for kind in (*KINDS, DEFENCE) if kind.startswith(incomplete)]


@prints_json
def list_plugins(
    context: typer.Context,
    kind: Annotated[
        str | None,
        option(
            "--kind",
            "KIND",
            "Only this kind: method, defence, reproduction, model-group, partitioner, "
            "dataset, generator, payload-transform, metric, client-sampler, "
            "device-model, schedule, tracker, engine, backend or command.",
            autocompletion=_kinds,
        ),
    ] = None,
    names: Annotated[
        bool, typer.Option("--names", help="Print names only; nothing is loaded.")
    ] = False,
    as_json: Json = False,
    block: Block = None,
    debug: Debug = False,
) -> None:
    """List the installed plugins."""
    from protofl.errors import UsageError
    from protofl.hooks.discovery.registry import Registry

    if names and as_json:
        raise UsageError("--names and --json exclude each other", do="leave one of them out")
    registry = Registry(block or ())
    plugins = registry.plugins("method" if kind == DEFENCE else kind)
    if names and kind != DEFENCE:
        render.plain(dict.fromkeys(plugin.name for plugin in plugins))
        return

    protofl_commands = context.find_root().command.own_commands  # type: ignore[attr-defined]  # `Commands`
    # Output of imported plugins goes to standard error.
    with contextlib.redirect_stdout(sys.stderr):
        statuses = [(plugin, *_status(registry, plugin, protofl_commands)) for plugin in plugins]
    listed = [
        (DEFENCE if status == "ok" and _is_defence(registry, plugin) else plugin.kind, *each)
        for each in statuses
        for plugin, status, _ in [each]
    ]
    if kind in ("method", DEFENCE):
        listed = [each for each in listed if each[0] == kind]
    listed.sort(key=lambda each: (each[1].kind != "method", each[0] == DEFENCE))
    if names:
        render.plain([plugin.name for _, plugin, *_ in listed])
        return
    if as_json:
        entries = [
            {
                "kind": kind,
                "name": plugin.name,
                "version": plugin.version,
                "distribution": plugin.distribution,
                "hooks": hooks,
                "status": status,
            }
            for kind, plugin, status, hooks in listed
        ]
        print_json(entries)
        return

    _table(registry, [each[:3] for each in listed])
    if not listed:
        render.text(f"No {kind or 'plugin'} is installed.")
    if registry.block:
        render.text(f"Left out by --block or PROTOFL_BLOCK: {', '.join(registry.block)}", "dim")


def _status(
    registry: Registry, plugin: Plugin, protofl_commands: Collection[str]
) -> tuple[str, list[str]]:
    """Return the status of a plugin and its hooks, see `Registry.status`.

    Args:
        registry: The plugins.
        plugin: The plugin.
        protofl_commands: Names of protofl's own commands, which a plugin's command cannot have.
    """
    if plugin.kind == "command" and plugin.name in protofl_commands:
        return f"clash: {clash_with_own(plugin)}", []
    return registry.status(plugin)


def _table(registry: Registry, listed: list[tuple[str, Plugin, str]]) -> None:
    """Print a table of plugins, by kind, with the first line of their docstrings."""
    from protofl.hooks.discovery.command_help import summary as command_summary

    rows = []
    for shown, plugin, status in listed:
        word, _, what = status.partition(": ")
        if word == "ok" and plugin.kind == "command":
            what = command_summary(plugin)[0].rstrip(".")
        elif word == "ok":
            what = summary(registry.load(plugin.kind, plugin.name))
        origin = f"{plugin.distribution} {plugin.version}"
        rows.append((shown, plugin.name, what.replace("``", ""), origin, word))
    if rows:
        heads = ("kind", "name", "description", "from", "status")
        render.table(heads, rows, keep=("name", "from"), sections=True)


DEFENCE = "defence"
"""The kind under which methods are listed that only provide hooks of others, for ``--use``."""


def _is_defence(registry: Registry, plugin: Plugin) -> bool:
    return plugin.kind == "method" and hasattr(registry.load("method", plugin.name), "donates")


def summary(plugin: type) -> str:
    """Return the first line of a plugin's docstring."""
    return next(iter((plugin.__doc__ or "").strip().splitlines()), "").rstrip(".")
