"""The backend of a run with ``--backend auto``, from an estimate of its work."""

from __future__ import annotations

from collections.abc import Callable

from protofl.federation.plan.plan import Plan
from protofl.federation.round.round_stages import Workload
from protofl.hooks.models.flops import seconds_of_step
from protofl.system.machine import usable_cores

STARTUP = 10.0
"""Seconds by which worker processes delay a run: they import torch and all plugins."""


def choose_backend(plan: Plan, note: Callable[[str], None], *, keeps_workers: bool = False) -> Plan:
    """Return a plan with a backend in place of ``auto``, and report the choice in a line.

    Args:
        plan: The run.
        note: Takes the line.
        keeps_workers: True for a series of runs, whose workers start once.
    """
    if plan.settings.backend != "auto":
        return plan
    if keeps_workers:
        return plan.choosing("backend", "process")
    hosts = min(len(usable_cores()), plan.info.participants)
    start = f"than their start takes ({STARTUP:.0f} s)"
    if _training_seconds(plan) * (1 - 1 / hosts) > STARTUP:
        note(f"backend process: {hosts} worker processes, which save more time {start}")
        return plan.choosing("backend", "process")
    note(f"backend local: worker processes would save less time {start}")
    return plan.choosing("backend", "local")


def _training_seconds(plan: Plan) -> float:
    """Estimate the seconds of all training in one process from the FLOPs of the models."""
    info, s, load = plan.info, plan.settings, Workload(plan, 0)
    sizes, seconds = plan.split(0).train_sizes, 0.0
    try:
        for client, architecture in enumerate(map(info.architecture_of, range(info.num_clients))):
            batch_size = min(s.batch_size, int(sizes[client]))
            model = info.sizes_of(architecture)
            step = seconds_of_step(architecture, *model, batch_size=batch_size)
            seconds += load.training(client) * step
    except Exception:  # the dry run words what is wrong with a model
        return 0.0
    return seconds * s.rounds * s.trials * info.participants / info.num_clients
