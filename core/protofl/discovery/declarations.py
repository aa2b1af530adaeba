"""What a plugin's class says beside its hooks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from protofl.errors import UsageError


def check_declared(label: str, plugin: type) -> None:
    """Hold a plugin's class against what can be said of it without its hooks.

    Args:
        label: KIND/NAME.
        plugin: The class.

    Raises:
        UsageError: ``terms``, ``uploads`` or ``downloads`` is no mapping of names to words, or the
            class can't be made without arguments.
    """
    for attribute in ("terms", "uploads", "downloads"):
        found = getattr(plugin, attribute, None)
        if not (found is None or isinstance(found, Mapping)):
            names = [found] if isinstance(found, str) else [*map(str, found)]
            words = ", ".join(f"{name!r}: 'what it is'" for name in names[:3])
            raise UsageError(
                f"{label}: {attribute} is a {type(found).__name__}: {found!r}",
                "it is a mapping of names to words for the reader",
                f"write {attribute} = {{{words}}}",
            )
    for name, parameter in inspect.signature(plugin).parameters.items():
        if parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise UsageError(
                f"{label}: its __init__ takes {name!r}, and nobody gives it",
                "a plugin is made without arguments, in each process anew",
                f"make {name!r} an option, a field of a nested Config(pf.Config): config.{name}",
            )
