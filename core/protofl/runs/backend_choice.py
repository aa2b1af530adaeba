"""Backend of a run with ``--backend auto``: chosen by the work, or that of an interrupted run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.federation.plan import Plan
from protofl.federation.stages import Workload
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.members import choose
from protofl.records.layout import SESSION
from protofl.records.row import Row
from protofl.system.files.checksums import read_json
from protofl.system.machine import usable_cores

STARTUP = 10.0
"""Seconds by which worker processes delay a run: they import torch and all plugins."""

TRAINING = ("train", "prototypes")
"""Stages of a round that grow with the mini-batches of training."""


def recorded_backend(
    folder: Path, given: Mapping[str, Any], note: Callable[[str], None]
) -> dict[str, str]:
    """Return the backend with which an interrupted run began, as an option.

    The option is empty if the user chooses again, if the run does not say, or if the backend is not
    installed, which a note says.

    Args:
        folder: The run folder.
        given: The given options.
        note: Takes lines for the user.
    """
    if {"backend", "workers"} & {key for key, value in given.items() if value is not None}:
        return {}
    try:
        name = str(read_json(folder / SESSION).get("backend", ""))
    except (OSError, UsageError):
        return {}
    if name in {plugin.name for plugin in Registry().plugins("backend")}:
        return {"backend": name}
    note(f"the run began with --backend {name}, which is not installed; another one is chosen")
    return {}


def seconds_of_dry_step(plan: Plan, row: Row) -> float:
    """Return the seconds of all training in one process, from the second round of the dry step.

    Args:
        plan: The run.
        row: The line of that round, in which clients trained on one mini-batch of each phase.
    """
    info, s = plan.info, plan.settings
    phases = [p for p in plan.composition.phases(info) if plan.composition.terms_of(p)]
    tried = sum(plan.cost(info.architecture_of(c)) for c in range(min(2, info.num_clients)))
    each = sum(row.seconds[stage] for stage in TRAINING) / (tried * max(1, len(phases)))
    load = Workload(plan, 0)
    clients = range(info.num_clients)
    work = sum(load.training(c) * plan.cost(info.architecture_of(c)) for c in clients)
    return each * work * s.rounds * s.trials * info.participants / info.num_clients


def seconds_left(plan: Plan, rows: Sequence[Row]) -> float:
    """Return the seconds of the remaining training in one process, from the finished rounds."""
    each = sum(row.seconds[stage] for row in rows for stage in TRAINING) / len(rows)
    return each * max(0, plan.settings.rounds * plan.settings.trials - len(rows))


def choose_backend(
    plan: Plan, rows: Sequence[Row], tried: Sequence[Row], note: Callable[[str], None]
) -> None:
    """Set the backend of a plan whose backend is ``auto``.

    Args:
        plan: The run.
        rows: Its finished rounds.
        tried: The second round of the dry step, if it was measured. Without it and without finished
            rounds the backend is ``process``.
        note: Takes a line about the choice.
    """
    name, hosts = "process", min(len(usable_cores()), plan.info.participants)
    if rows or tried:
        seconds = seconds_left(plan, rows) if rows else seconds_of_dry_step(plan, tried[0])
        about = f"about {seconds:.0f} s of training"
        if seconds * (1 - 1 / hosts) > STARTUP:
            note(f"backend process: {about} in {hosts} worker processes")
        else:
            name = "local"
            note(f"backend local: {about}; worker processes take {STARTUP:.0f} s to start")
    plan.choices["backend"] = choose(plan.registry, "backend", name, {})
    plan.settings = plan.settings.model_copy(update={"backend": name})
