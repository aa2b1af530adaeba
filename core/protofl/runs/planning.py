"""The plan of a requested run: one door for training, resuming, reusing and ``--plan``."""

from __future__ import annotations

from collections.abc import Callable

from protofl.data.dataset import Dataset
from protofl.federation.participation import check_participation
from protofl.federation.plan import Plan
from protofl.federation.round_totals import check_measures
from protofl.runs.request import Request
from protofl.system.torch_state import standard_torch


@standard_torch()
def plan_run(request: Request, note: Callable[[str], None], data: Dataset | None = None) -> Plan:
    """Return the plan of a request, checked: what it asks for can be done with these data.

    ``--engine auto`` on a GPU and ``--backend auto`` remain until the run measures them, after the
    dry run (`protofl.runs.automatic_choices`).

    Args:
        request: What is asked for.
        note: Takes lines for the user.
        data: Data to use instead of loading the data set.

    Raises:
        UsageError: An option that was asked for is impossible with these data.
    """
    plan = Plan.make(
        request.settings,
        report=note,
        registry=request.registry,
        said=request.said,
        home=request.home,
        data=data,
        set_by=request.set_by,
        recorded=request.recorded,
    )
    plan.split(0)  # data that can't be split this way are found before there is a folder
    check_measures(plan)
    check_participation(plan)
    if observes(plan):
        from protofl.federation.observer import check_observing

        check_observing(plan)
    for tracker in plan.trackers:
        tracker.call("check")
    if (line := plan.check_initial_weights()) and not request.resume:
        note(line)
    return plan


def observes(plan: Plan) -> bool:
    """Return True if the run records observations or uploads."""
    return bool(plan.settings.observe or plan.settings.record_uploads)
