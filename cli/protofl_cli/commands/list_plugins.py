"""``protofl list-plugins``: the installed plugins and their states."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from protofl_cli import render
from protofl_cli.options import Block, Debug, option


def list_plugins(
    kind: Annotated[
        str | None,
        option(
            "--kind",
            "KIND",
            "Only this kind: method, recipe, study, model-group, partitioner, dataset, "
            "generator, wrapper, metric, selection, world, tracker, engine or backend.",
        ),
    ] = None,
    names: Annotated[
        bool, typer.Option("--names", help="Print names only; nothing is loaded.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print JSON: kind, name, version, distribution, hooks and status of each plugin.",
        ),
    ] = False,
    block: Block = None,
    debug: Debug = False,
) -> None:
    """List the installed plugins."""
    from protofl.errors import UsageError
    from protofl.hooks.discovery.registry import Registry

    if names and json:
        raise UsageError("--names and --json exclude each other", do="leave one of them out")
    registry = Registry(block or ())
    plugins = registry.plugins(kind)
    if names:
        render.plain(dict.fromkeys(plugin.name for plugin in plugins))
        return

    # Output of imported plugins goes to standard error.
    with contextlib.redirect_stdout(sys.stderr):
        statuses = [registry.status(plugin) for plugin in plugins]
    if json:
        from json import dumps

        found = [
            {
                "kind": plugin.kind,
                "name": plugin.name,
                "version": plugin.version,
                "distribution": plugin.distribution,
                "hooks": hooks,
                "status": status,
            }
            for plugin, (status, hooks) in zip(plugins, statuses, strict=True)
        ]
        render.plain([dumps(found, indent=1)])
        return

    rows = []
    for plugin, (status, _) in zip(plugins, statuses, strict=True):
        word, _, what = status.partition(": ")
        if word == "ok":
            what = summary(registry.load(plugin.kind, plugin.name))
        origin = f"{plugin.distribution} {plugin.version}"
        rows.append((plugin.kind, plugin.name, what, origin, word))
    if rows:
        render.table(
            ("kind", "name", "description", "from", "status"),
            rows,
            keep=("name", "from"),
            sections=True,
        )
    else:
        render.text(f"No {kind or 'plugin'} is installed.")
    if registry.block:
        render.text(f"Left out by --block or PROTOFL_BLOCK: {', '.join(registry.block)}", "dim")


def summary(plugin: type) -> str:
    """Return the first line of a plugin's docstring."""
    return next(iter((plugin.__doc__ or "").strip().splitlines()), "").rstrip(".")
