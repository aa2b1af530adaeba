"""Public modules whose names are loaded on first use, so that a run loads what it uses."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any


def on_first_use(
    module: str, names: Mapping[str, str], modules: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module.

    Args:
        module: Its name.
        names: {module: its public names, divided by spaces}.
        modules: {public name of a module: the module}.
    """
    homes = {name: home for home, words in names.items() for name in words.split()}

    def load(name: str) -> Any:  # noqa: ANN401 - the public names are of many types
        if name in modules:
            value: Any = importlib.import_module(modules[name])
        elif name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
        else:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        setattr(sys.modules[module], name, value)
        return value

    return load, lambda: sorted({*homes, *modules})
