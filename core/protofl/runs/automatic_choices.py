"""Engine and backend of a run with ``--engine auto`` and ``--backend auto``: the one place.

`choose_engine` and `choose_backend` take a plan and measurements, and return the plan with the
choice. The engine is ``cuda-graphs`` on CUDA if it proves itself in the first steps of the run,
else ``eager``. The backend follows from the work that the dry run or finished rounds measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from protofl.federation.host import Host
from protofl.federation.plan import Plan
from protofl.federation.round_stages import Workload
from protofl.hooks.models.flops import seconds_of_step
from protofl.records.row import Row
from protofl.runs.dry_run.short_rounds import for_dry_rounds, two_dry_rounds
from protofl.system.machine import usable_cores

TOLERANCE = 1e-3
"""Largest difference of weights after the first steps, relative and absolute (docs: engines)."""

BATCHES = 4
"""Mini-batches of each client in a round."""


@dataclass(frozen=True)
class Tried:
    """The first steps with an engine.

    Attributes:
        seconds: Seconds of training in the second round; the first one prepares the engine.
        weights: The weights of each client after both rounds.
    """

    seconds: float
    weights: list[torch.Tensor]


def choose_engine(plan: Plan, note: Callable[[str], None], fast: str = "cuda-graphs") -> Plan:
    """Return a plan with an engine in place of ``auto``, and report the choice in a line.

    Args:
        plan: The run; unchanged if the user chose its engine.
        note: Takes the line.
        fast: The engine that is compared with ``eager``.
    """
    if plan.settings.engine != "auto":
        return plan
    why = "with --no-dry-run nothing is compared"
    if plan.settings.dry_run:
        try:
            eager = _tried(plan.choosing("engine", "eager"))
        except Exception:  # the dry run words what is wrong with the run
            why = "the run's first steps fail"
        else:
            try:
                other = plan.choosing("engine", fast)
                if other.choices["engine"].replays:
                    _tried(replace(other, checks_steps=True))
                why = refusal(eager, fast_trial := _tried(other))
            except Exception as error:  # an engine may fail in any way
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                why = f"{fast} fails: {first[:160]}"
    if why:
        note(f"engine eager: {why}")
        return plan.choosing("engine", "eager")
    ratio = eager.seconds / fast_trial.seconds
    note(f"engine {fast}: equal to eager in the first steps, {ratio:.1f} times as fast")
    return other


def refusal(eager: Tried, other: Tried) -> str:
    """Return why an engine does not replace ``eager``; empty if it does."""
    worst = 0.0
    for one, two in zip(eager.weights, other.weights, strict=True):
        if not torch.allclose(one, two, rtol=TOLERANCE, atol=TOLERANCE):
            worst = max(worst, float((one - two).abs().max()), TOLERANCE)
    if worst:
        return f"the other engine's weights differ by {worst:.2g} after the first steps"
    if other.seconds >= eager.seconds:
        return f"the other engine took {other.seconds:.2g} s, and eager {eager.seconds:.2g} s"
    return ""


def _tried(plan: Plan) -> Tried:
    """Train two clients for two short rounds; for three to check an engine's steps."""
    clients = min(2, plan.info.num_clients)
    host = Host(for_dry_rounds(plan, clients, BATCHES))
    row, _ = two_dry_rounds(host, further=int(plan.checks_steps))
    tensors = [t for c in range(clients) for t in host.client(c).model.state_dict().values()]
    return Tried(row.seconds["train"], [t.detach().float().cpu() for t in tensors])


STARTUP = 10.0
"""Seconds by which worker processes delay a run: they import torch and all plugins."""

TRAINING = ("train", "prototypes")
"""Stages of a round that grow with the mini-batches of training."""


def seconds_of_dry_run(plan: Plan, row: Row) -> float:
    """Return the seconds of all training in one process, from the second round of the dry run.

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


def begins_early(plan: Plan) -> bool:
    """Return True if the run looks long enough for worker processes, before anything is measured.

    The workers of such a run then load their libraries while the dry run works. The dry run
    measures the work, and `choose_backend` has the last word.
    """
    info, s, load = plan.info, plan.settings, Workload(plan, 0)
    try:
        seconds = [
            load.training(client)
            * seconds_of_step(
                architecture,
                *info.sizes_of(architecture),
                batch_size=min(s.batch_size, int(plan.split(0).train_sizes[client])),
            )
            for client, architecture in enumerate(
                map(info.architecture_of, range(info.num_clients))
            )
        ]
    except Exception:  # the dry run words what is wrong with a model
        return False
    share = info.participants / info.num_clients
    return _saved(sum(seconds) * s.rounds * s.trials * share, plan) > STARTUP


def _saved(seconds: float, plan: Plan) -> float:
    """Return the seconds that worker processes save of some seconds of training."""
    return seconds * (1 - 1 / _hosts(plan))


def _hosts(plan: Plan) -> int:
    return min(len(usable_cores()), plan.info.participants)


def choose_backend(
    plan: Plan, rows: Sequence[Row], tried: Sequence[Row], note: Callable[[str], None]
) -> Plan:
    """Return a plan with a backend in place of ``auto``, and report the choice in a line.

    Args:
        plan: The run; unchanged if the user chose its backend.
        rows: Its finished rounds.
        tried: The second round of the dry run, if it was measured. Without it and without finished
            rounds the backend is ``process``.
        note: Takes the line.
    """
    if plan.settings.backend != "auto":
        return plan
    if not (rows or tried):
        return plan.choosing("backend", "process")
    seconds = seconds_left(plan, rows) if rows else seconds_of_dry_run(plan, tried[0])
    about = f"about {seconds:.0f} s of training"
    if _saved(seconds, plan) > STARTUP:
        note(f"backend process: {about} in {_hosts(plan)} worker processes")
        return plan.choosing("backend", "process")
    note(f"backend local: {about}; worker processes take {STARTUP:.0f} s to start")
    return plan.choosing("backend", "local")
