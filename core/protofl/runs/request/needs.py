"""What a recipe needs installed: the plugins that it names, and where they come from."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.hooks.discovery.kinds import Plugin
from protofl.hooks.discovery.registry import Registry
from protofl.system.options.parsing import names_in
from protofl.system.options.table import CHOOSING, SEVERAL

Named = set[tuple[str, str]]
"""Plugins by kind and name."""


def named_in(options: Mapping[str, Any]) -> Named:
    """The plugins that options of a run name.

    Args:
        options: Options by the names of `protofl.system.options.settings`.
    """
    methods = {str(options.get("method") or ""), *options.get("use", {}).values()}
    for text in options.get("add", ()):
        hook, sign, method = text.partition("=")
        methods.add(method.partition(".")[0] if sign else hook.partition(".")[0])
    found = {("method", name) for name in methods if name}
    found |= {("wrapper", name) for name in options.get("wrappers", ())}
    for option, kind in SEVERAL.items():
        found |= {(kind, name) for name in names_in(options.get(option, []))}
    for option, kind in CHOOSING.items():
        name = str(options.get(option) or "").partition(":")[0]
        found |= {(kind, name)} if name not in ("", "auto", "none") else set()
    return found


def missing(named: Named) -> list[tuple[str, str]]:
    """Those that no installed distribution has."""
    registry = Registry()
    return sorted((k, n) for k, n in named if n not in {p.name for p in registry.plugins(k)})


def lacking(distribution: str) -> list[str]:
    """The requirements of a distribution that are not installed, as it writes them."""
    found = []
    try:
        requirements = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    for text in requirements:
        wanted, _, marker = text.partition(";")
        name = re.split(r"[\s<>=!~\[(]", wanted.strip())[0]
        if "extra" not in marker and not _is_installed(name):
            found.append(wanted.strip())
    return found


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def check_needs(recipe: Plugin, needs: Mapping[str, str], named: Iterable[tuple[str, str]]) -> None:
    """Whether the plugins that a recipe names are installed.

    Args:
        recipe: The recipe.
        needs: {plugin: the distribution that has it}, as far as the recipe says.
        named: The plugins.

    Raises:
        UsageError: One is not; it says what to install.
    """
    owner = f"recipe {recipe.name!r} of {recipe.distribution} {recipe.version}"
    for kind, name in missing({*named}):
        required = " ".join(lacking(recipe.distribution))
        near = f"{recipe.distribution} requires {required}" if required else ""
        install = needs.get(name) or required
        if not install:
            install = f"protofl-{name}"
            near = f"the recipe does not say who has it; {install} is what it would be called"
        raise _not_installed(owner, kind, name, near, install)


def check_needs_of_file(
    path: Path, needs: Mapping[str, str], named: Iterable[tuple[str, str]]
) -> None:
    """Whether the plugins that a recipe's file says what to install for are installed.

    Args:
        path: The file.
        needs: {plugin: the distribution that has it}.
        named: The plugins that the run names.

    Raises:
        UsageError: One is not; it says what to install.
    """
    for kind, name in missing({(kind, name) for kind, name in named if name in needs}):
        raise _not_installed(f"--config {path}", kind, name, "", needs[name])


def _not_installed(owner: str, kind: str, name: str, near: str, install: str) -> UsageError:
    return UsageError(
        f"{owner} needs the {kind} {name!r}, which is not installed",
        near,
        f"install it: pip install {install!r}" if " " in install else f"pip install {install}",
    )


def read_needs(values: Mapping[str, Any]) -> dict[str, str]:
    """The table ``needs`` of a recipe; empty where it has none.

    Raises:
        UsageError: It is no table of texts.
    """
    needs = values.get("needs", {})
    if not (isinstance(needs, dict) and all(isinstance(v, str) for v in needs.values())):
        do = 'write [needs] and NAME = "DISTRIBUTION"'
        raise UsageError("its needs are no table of plugins and distributions", do=do)
    return needs
