"""Parts of a run: the chosen plugin of a kind that is no method, with its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.hookspecs.config import Config, parse_config
from protofl.plugin.registry import Caller, Registry


@dataclass
class Part:
    """A chosen plugin that is no method: its calls and its options."""

    caller: Caller
    config: Config
    argument: str = ""

    @property
    def text(self) -> str:
        """``NAME`` or ``NAME:ARGUMENT``."""
        return f"{self.caller.name}:{self.argument}" if self.argument else self.caller.name


def choose_part(
    registry: Registry, kind: str, text: str, options: Mapping[str, Any] | None = None
) -> Part:
    """The plugin that ``NAME[:ARGUMENT]`` names, with its options.

    Raises:
        UsageError: It does not exist, takes no argument, or needs one.
    """
    name, colon, argument = text.partition(":")
    plugin = registry.load(kind, name)
    wanted = getattr(plugin, "argument", None)
    if colon and not wanted:
        raise UsageError(f"{kind} {name!r} takes no argument, {argument!r} was given")
    if wanted and not argument:
        raise UsageError(f"{kind} {name!r} needs an argument", do=f"write {name}:{wanted.upper()}")
    values = dict(options or {})
    if wanted:
        if wanted == "path":
            argument = str(Path(argument).expanduser().resolve())
        values[wanted] = argument
    config = parse_config(getattr(plugin, "Config", Config), values, f"{kind}/{name}")
    return Part(Caller(kind, name, plugin), config, argument)
