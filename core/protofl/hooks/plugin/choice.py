"""Choices: a plugin that a run has chosen, with its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from protofl.errors import RunFailure, UsageError, in_words
from protofl.hooks.discovery.kinds import hooks_of
from protofl.hooks.discovery.registry import Registry
from protofl.system.options.declared import Config, parse_config
from protofl.system.options.table import SEVERAL


class Choice:
    """The plugin of a kind that a run has chosen.

    Attributes:
        kind: The kind.
        name: The plugin's name.
        plugin: Its class.
        config: Its options.
        argument: What was given behind its name (``npz:PATH``).
        instance: Its only instance in this run.
        hooks: The hooks that it implements.
    """

    def __init__(
        self, kind: str, name: str, plugin: type, config: Config, argument: str = ""
    ) -> None:
        self.kind, self.name, self.plugin = kind, name, plugin
        self.config, self.argument = config, argument
        self.instance = plugin()
        self.hooks = hooks_of(kind, plugin)
        self._arguments: dict[str, tuple[str, ...]] = {}

    @property
    def text(self) -> str:
        """``NAME`` or ``NAME:ARGUMENT``."""
        return f"{self.name}:{self.argument}" if self.argument else self.name

    def bound(self, hook: str, **given: Any) -> Callable[[], Any]:  # noqa: ANN401
        """A hook that it implements, with those arguments that it names, the options among them."""
        function = getattr(self.instance, hook)
        given["config"] = self.config
        names = self._arguments.get(hook)
        if names is None:  # some hooks are called at every step, and a look takes longer than they
            names = self._arguments[hook] = (*inspect.signature(function).parameters,)
        return partial(function, **{name: given[name] for name in names})

    def call(self, hook: str, **given: Any) -> Any:  # noqa: ANN401 - as the hook says
        """What a hook returns (see `bound`); None where the plugin does not implement it."""
        try:
            return self.bound(hook, **given)() if hook in self.hooks else None
        except SystemExit as end:
            raise RunFailure(f"{self.kind}/{self.name}, {hook}: {in_words(end)}") from end

    def dump(self) -> dict[str, Any]:
        """Its options as JSON has them, without the argument behind its name."""
        argument = getattr(self.plugin, "argument", None)
        without = {argument} if argument else None
        return self.config.model_dump(mode="json", by_alias=True, exclude=without)


def choose(
    registry: Registry, kind: str, text: str, options: Mapping[str, Any] | None = None
) -> Choice:
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
    return Choice(kind, name, plugin, config, argument)


def choose_several(
    registry: Registry, settings: Mapping[str, Any], members: Mapping[str, Choice]
) -> dict[str, Choice]:
    """The plugins that options of `SEVERAL` name, with their own options, by ``KIND/NAME``.

    Args:
        registry: Where they are found.
        settings: The options of a run.
        members: Its methods and wrappers by name.

    Raises:
        UsageError: There is none of a name, or another plugin of the run has it too.
    """
    owners = {name: member.kind for name, member in members.items()}
    found: dict[str, Choice] = {}
    for option, kind in SEVERAL.items():
        for name in settings[option]:
            if name in owners:
                raise UsageError(
                    f"--{option} {name}: the run has a {owners[name]} of that name",
                    do=f"block the {kind} (--block {kind}/{name}), or leave it out",
                )
            found[f"{kind}/{name}"] = choose(registry, kind, name, settings["options"].get(name))
        owners |= dict.fromkeys(settings[option], kind)
    return found


def several_in(choices: Mapping[str, Choice], *kinds: str) -> list[Choice]:
    """Those of some kinds among a run's plugins."""
    return [choice for choice in choices.values() if choice.kind in kinds]
