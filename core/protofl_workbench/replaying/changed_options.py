"""Options of a replay: the options of the run with changes of the server."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from protofl.errors import UsageError
from protofl.federation.plan import Plan
from protofl.system.device import device_of
from protofl.system.options.parsing import merge_options, options_in, parse_options
from protofl.system.options.table import portable

MOST = 200
"""Largest number of settings in one replay."""


@dataclass(frozen=True)
class Change:
    """One setting of a replay.

    Attributes:
        label: Description of the changes: ``tau=10``.
        plan: Plan of the run with the changes.
    """

    label: str
    plan: Plan


def own_plan(recorded: Mapping[str, Any]) -> Plan:
    """Return the plan of a recorded run.

    Args:
        recorded: Content of its ``config.json``.

    Raises:
        UsageError: Data or plugins of the run are missing.
    """
    return Plan.make(_own_options(recorded), report=lambda line: None)


def changes_of(
    recorded: Mapping[str, Any],
    set: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    use: Mapping[str, str],
) -> Iterator[Change]:
    """Yield every combination of changes.

    Args:
        recorded: Content of the run's ``config.json``.
        set: Options of all settings, as for ``--set``.
        grid: {option: values}.
        use: {hook of the server: method that provides it}.

    Raises:
        UsageError: An option is unknown or out of range, or there are too many combinations.
    """
    if (count := math.prod(map(len, grid.values()))) > MOST:
        raise UsageError(f"expected at most {MOST} settings, got {count}", do="use fewer values")
    for key in {**set, **grid}:
        if key.rpartition(".")[2] == "variant":
            raise UsageError(
                f"--set {key}: a run records the options of its variant, not the variant",
                do="set the options of the variant (see: protofl show METHOD)",
            )
    for hook in use:
        if not hook.startswith(("server_", "receive_")):
            raise UsageError(
                f"--use {hook}: a replay runs hooks of the server only",
                "expected server_aggregate or server_train",
                "start a run to change hooks of clients",
            )
    for values in product(*grid.values()):
        chosen = {**set, **dict(zip(grid, values, strict=True))}
        typed = parse_options({"set": chosen, "use": dict(use)}, owner=str(recorded["method"]))
        options = _without_displaced(merge_options(_own_options(recorded), typed), recorded)
        plan = Plan.make(options, report=lambda line: None)
        words = [f"{key}={value}" for key, value in (*chosen.items(), *use.items())]
        yield Change(", ".join(words), plan)


def _without_displaced(options: dict[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Remove options of methods whose hooks are replaced."""
    added = {text.rpartition("=")[2].partition(".")[0] for text in options.get("add", ())}
    gone = {*recorded.get("use", {}).values()} - {*options.get("use", {}).values()} - added
    kept = {name: own for name, own in options["options"].items() if name not in gone}
    return options | {"options": kept}


def _own_options(recorded: Mapping[str, Any]) -> dict[str, Any]:
    return portable(options_in(recorded)) | {"device": _device(str(recorded["device"]))}


def _device(of_run: str) -> str:
    """Return the device of the run, or the CPU if this machine does not have it."""
    try:
        device_of(of_run)
    except UsageError:
        return "cpu"
    return of_run
