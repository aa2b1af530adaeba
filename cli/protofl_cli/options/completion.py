"""Shell completion: names of plugins, which are read from entry points without imports of plugins.

``--install-completion`` installs the script of the shell, which calls ``protofl`` at every Tab with
the words typed so far.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

VARIABLE = "_PROTOFL_COMPLETE"
"""The variable with which a shell's script asks for completions."""

OPTIONS = ("--install-completion", "--show-completion")
"""Options of ``protofl`` that install and print the script; Typer makes them."""

Completer = Callable[[str], list[str]]
"""Takes the word so far and returns words that begin so."""


def is_running() -> bool:
    """Return True if a shell asks for completions."""
    return VARIABLE in os.environ


def is_asked(words: Sequence[str]) -> bool:
    """Return True if a shell asks for completions, or a user for its script."""
    return is_running() or any(word.startswith(OPTIONS) for word in words[:1])


def plugin_names(*kinds: str, prefixed: bool = False, further: Iterable[str] = ()) -> Completer:
    """Return a completer for the names of installed plugins, also for lists with commas.

    Args:
        kinds: Kinds of plugins; none for all kinds.
        prefixed: True to complete KIND/NAME too.
        further: Further words.
    """

    def complete(incomplete: str) -> list[str]:
        from protofl.hooks.discovery.registry import Registry

        registry = Registry()
        plugins = [plugin for kind in kinds or (None,) for plugin in registry.plugins(kind)]
        names = {plugin.name for plugin in plugins} | {*further}
        if prefixed and "/" in incomplete:
            names = {plugin.label for plugin in plugins}
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in sorted(names) if name.startswith(last)]

    return complete


def words(values: Iterable[Any]) -> Completer:
    """Return a completer for fixed words."""
    known = [str(value) for value in values]
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


METHODS = plugin_names("method")
"""Completes METHOD of commands that train."""
