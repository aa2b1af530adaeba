"""The options of a replay: those of the run, with changed options of the server."""

from __future__ import annotations

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
"""Settings that are replayed at once, at most."""


@dataclass(frozen=True)
class Change:
    """One setting of a replay.

    Attributes:
        label: What is changed, in words: ``tau=10``.
        plan: The run with it.
    """

    label: str
    plan: Plan


def own_plan(recorded: Mapping[str, Any]) -> Plan:
    """The plan of a run for its server's half.

    Args:
        recorded: What its ``config.json`` says.

    Raises:
        UsageError: Its data or plugins are not there any more.
    """
    return Plan.make(_own_options(recorded), report=lambda line: None)


def changes_of(
    recorded: Mapping[str, Any],
    set: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    use: Mapping[str, str],
) -> Iterator[Change]:
    """Every combination of what is to be changed.

    Args:
        recorded: What the run's ``config.json`` says.
        set: Options that all have, as ``--set`` takes them.
        grid: {option: the values that are tried}.
        use: {hook of the server: the method that provides it}.

    Raises:
        UsageError: An option is unknown or out of its range, or there are too many combinations.
    """
    count = 1
    for values in grid.values():
        count *= len(values)
    if count > MOST:
        raise UsageError(
            f"{count} settings are more than a replay takes at once",
            f"{MOST} are possible",
            "give fewer values of --grid",
        )
    for key in {**set, **grid}:
        if key.rpartition(".")[2] == "variant":
            raise UsageError(
                f"--set {key}: the run has recorded every option, whatever its variant",
                do="set the options that the variant sets (protofl show METHOD lists them)",
            )
    for hook in use:
        if not hook.startswith(("server_", "receive_")):
            raise UsageError(
                f"--use {hook}: a replay runs the server's half alone",
                "server_aggregate, server_train",
                "start a run to have clients do something else",
            )
    for values in product(*grid.values()):
        chosen = {**set, **dict(zip(grid, values, strict=True))}
        typed = parse_options({"set": chosen, "use": dict(use)}, owner=str(recorded["method"]))
        options = _without_displaced(merge_options(_own_options(recorded), typed), recorded)
        plan = Plan.make(options, report=lambda line: None)
        words = [f"{key}={value}" for key, value in (*chosen.items(), *use.items())]
        yield Change(", ".join(words), plan)


def _without_displaced(options: dict[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those of methods whose hooks others provide now."""
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
