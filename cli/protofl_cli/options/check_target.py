"""Targets of ``protofl check``: the contract of a plugin given by name, module or file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protofl.errors import UsageError, unknown
from protofl.hooks.discovery.kinds import KINDS
from protofl.hooks.discovery.registry import Registry
from protofl.runs.request.program_classes import kind_of
from protofl.system.class_places import load
from protofl.system.files.home import expand_user
from protofl.testing import CONTRACTS as OF_ONE_RUN
from protofl.testing.contract import Contract
from protofl_workbench.reproductions.finding import collection_of_file
from protofl_workbench.reproductions.reproduction_contract import ReproductionContract

CONTRACTS: dict[str, type[Contract]] = {**OF_ONE_RUN, "reproduction": ReproductionContract}
"""{kind: contract}."""


def contract_for(
    text: str,
    options: Mapping[str, Any] | None = None,
    data_dir: Path | None = None,
) -> type[Contract]:
    """Return the contract of a plugin, bound to the plugin.

    Args:
        text: ``[KIND/]NAME[:ARGUMENT]`` of an installed plugin, by default of the first kind with
            this name; ``[KIND/]MODULE:CLASS`` or ``[KIND/]FILE.py:CLASS`` of a class that is not
            installed; ``FILE.toml`` of a reproduction.
        options: Options of the plugin, merged over its ``check_options``.
        data_dir: Folder of downloads of data sets and generators.

    Raises:
        UsageError: The plugin or class is unknown, or violates the rules of its kind.
    """
    kind, rest = _split_kind(text)
    left, colon, right = rest.partition(":")
    values: dict[str, Any] = {}
    if left.endswith(".toml"):
        kind, path = "reproduction", expand_user(left)
        if not path.is_file():
            raise UsageError(f"there is no file {left}", do="give the path of a reproduction")
        values |= {"plugin": collection_of_file(path), "name": path.stem}
    elif colon and (left.endswith(".py") or _means_module(left, right)):
        if kind == "command":
            raise UsageError(
                f"{rest} is not installed, and protofl check tests installed commands only",
                do="install its package, then: protofl check command/NAME",
            )
        plugin = load(f"{left}:{right}")
        kind = kind or kind_of(plugin)
        values["plugin"] = plugin
    else:
        kind = kind or _kind_of_name(left)
        values |= {"plugin": left, "argument": right}
    if kind not in CONTRACTS:
        raise UsageError(f"protofl check cannot test a {kind}", f"it tests: {', '.join(CONTRACTS)}")
    if data_dir is not None and hasattr(CONTRACTS[kind], "data_dir"):
        values["data_dir"] = data_dir
    made: type[Contract] = type("Chosen", (CONTRACTS[kind],), values)
    if options:
        made.options = {**made().chosen, **options}
    contract = made()
    contract.choice() if kind not in ("method", "payload-transform", "command") else contract.cls
    return made


def _split_kind(text: str) -> tuple[str, str]:
    kind, slash, rest = text.partition("/")
    if not slash or Path(text.partition(":")[0]).is_file():
        return "", text
    if kind in KINDS:
        return kind, rest
    if ".py" in text:
        return "", text
    raise unknown("kind", kind, KINDS, "see: protofl list-plugins")


def _means_module(left: str, right: str) -> bool:
    """Return True if ``LEFT:RIGHT`` is a module and a class, not a plugin and its argument."""
    if not all(name.isidentifier() for name in (*left.split("."), *right.split("."))):
        return False
    return "." in left or left not in {p.name for p in Registry().plugins()}


def _kind_of_name(name: str) -> str:
    plugins = Registry().plugins()
    kinds = [p.kind for p in plugins if p.name == name]
    if not kinds:
        do = "give an installed plugin, MODULE:CLASS or FILE.py:CLASS"
        raise unknown("plugin", name, {p.name for p in plugins}, do)
    return kinds[0]
