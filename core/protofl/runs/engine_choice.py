"""Engine of a run with ``--engine auto``: ``captured`` on CUDA if it proves itself, else ``eager``.

The first steps of the run are tried with both engines, as in the dry step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from protofl.federation.host import Host
from protofl.federation.plan import Plan
from protofl.hooks.plugin.members import choose
from protofl.runs.dry_step.dry_run import for_dry_rounds, two_dry_rounds

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


def choose_engine(plan: Plan, note: Callable[[str], None], fast: str = "captured") -> None:
    """Set the engine of a plan whose engine is ``auto``, and report it in a line.

    Args:
        plan: The run.
        note: Takes the line.
        fast: The engine that is compared with ``eager``.
    """
    why = "without --dry-step nothing is compared"
    if plan.settings.dry_step:
        try:
            eager = _tried(plan, "eager")
        except Exception:  # the dry step words what is wrong with the run
            why = "the run's first steps fail"
        else:
            try:
                why = refusal(eager, found := _tried(plan, fast))
            except Exception as error:  # an engine may fail in any way
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                why = f"{fast} fails: {first[:160]}"
    name = "eager" if why else fast
    if why:
        note(f"engine eager: {why}")
    else:
        ratio = eager.seconds / found.seconds
        note(f"engine {fast}: equal to eager in the first steps, {ratio:.1f} times as fast")
    plan.choices["engine"] = choose(plan.registry, "engine", name)
    options = {k: v for k, v in plan.settings.options.items() if k != "engine"}
    if own := plan.choices["engine"].dump():
        options["engine"] = own
    plan.settings = plan.settings.model_copy(update={"engine": name, "options": options})


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


def _tried(plan: Plan, name: str) -> Tried:
    """Train two clients for two short rounds with an engine."""
    choices = {**plan.choices, "engine": choose(plan.registry, "engine", name)}
    clients = min(2, plan.info.num_clients)
    host = Host(for_dry_rounds(replace(plan, choices=choices), clients, BATCHES))
    row, _ = two_dry_rounds(host)
    tensors = [t for c in range(clients) for t in host.client(c).model.state_dict().values()]
    return Tried(row.seconds["train"], [t.detach().float().cpu() for t in tensors])
