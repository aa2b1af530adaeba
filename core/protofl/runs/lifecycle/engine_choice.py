"""The engine of a run with ``--engine auto`` on a GPU."""

from __future__ import annotations

from dataclasses import replace

from protofl.federation.clients.host import Host
from protofl.federation.plan.plan import Plan
from protofl.federation.plan.resolution import FIRST_ENGINE
from protofl.runs.dry_run.short_rounds import for_dry_rounds, two_dry_rounds

REPLAYING = "cuda-graphs"
"""The engine on a GPU, which compares each step that it records with the step itself."""


def choose_engine(plan: Plan) -> tuple[Plan, str]:
    """Return the run with an engine in place of ``auto``, and a line for the user."""
    if why := _unchecked(plan):
        return plan.choosing("engine", FIRST_ENGINE), f"engine {FIRST_ENGINE}: {why}"
    chosen = plan.choosing("engine", REPLAYING)
    try:
        _check_steps(chosen)
    except Exception as error:  # an engine may fail in any way
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        line = f"engine {FIRST_ENGINE}: {REPLAYING} can't repeat the method's steps: {reason}"
        return plan.choosing("engine", FIRST_ENGINE), line
    line = f"engine {REPLAYING}: each recorded step is compared with its own code before it serves"
    return chosen, line


def _unchecked(plan: Plan) -> str:
    """Return why the steps of a run can't be checked; empty if they can."""
    if not plan.settings.dry_run:
        return "with --no-dry-run no step is checked"
    if plan.data.x.is_meta:
        return "the data are on other machines, so no step can be checked here"
    return ""


def _check_steps(plan: Plan) -> None:
    """Check in short rounds that recorded steps can be replayed, with an engine of its own.

    Raises:
        Exception: They can't be.
    """
    choices = {**plan.choices, "engine": plan.choices["engine"].anew()}
    # The check begins with copies of the run's models.
    checked = replace(plan, built={}, checks_steps=True, choices=choices)
    two_dry_rounds(Host(for_dry_rounds(checked, min(2, plan.info.num_clients))), further=1)


def would_choose(plan: Plan) -> str:
    """Return a line about the choice that is left to the start of the run; empty if none is."""
    if plan.settings.engine != "auto":
        return ""
    if why := _unchecked(plan):
        return f"engine {FIRST_ENGINE}: {why}"
    able = "if it can repeat the method's steps, which the run's start checks"
    return f"engine auto: {REPLAYING}, {able}"
