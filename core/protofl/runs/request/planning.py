"""The plan of a requested run: one door for training, resuming, reusing and ``--plan``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from protofl.data.dataset import Dataset
from protofl.federation.plan.plan import Plan
from protofl.federation.round.participation import check_participation
from protofl.runs.request.request import Request
from protofl.system.torch_state import standard_torch
from protofl.system.transfers import free_memory, has_streams


@standard_torch()
def plan_run(request: Request, note: Callable[[str], None], data: Dataset | None = None) -> Plan:
    """Return the plan of a request, checked: what it asks for can be done with these data.

    ``--engine auto`` on a GPU and ``--backend auto`` remain until the run chooses them, after the
    dry run (`protofl.runs.lifecycle`).

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
    if "public-logits" in plan.settings.measure:
        from protofl.federation.round.public_logits import check_public_logits

        check_public_logits(plan)
    check_participation(plan)
    if "open_schedule" in plan.choices["schedule"].hooks:
        from protofl.federation.round.schedules import check_schedule

        check_schedule(plan)
    if plan.settings.keep_weights:
        from protofl.runs.results.kept_weights import check_kept_weights

        check_kept_weights(plan)
    if observes(plan):
        from protofl.federation.round.observer import check_observing

        check_observing(plan)
    if plan.settings.record_predictions:
        from protofl.federation.round.predictions import check_recording

        check_recording(plan)
    for tracker in plan.trackers:
        tracker.call("check")
    if (line := plan.check_initial_weights()) and not request.resume:
        note(line)
    return plan


def with_store(plan: Plan, beside_models: Sequence[int], note: Callable[[str], None]) -> Plan:
    """Return a plan with a storage of clients in place of ``auto``, and report where things lie.

    Args:
        plan: The run; unchanged on a CPU.
        beside_models: Bytes that a client keeps beside its model, as the dry run has measured them;
            empty without a dry run.
        note: Takes the lines.
    """
    if not has_streams(plan.device):
        return plan
    from protofl.federation.plan.store_choice import about_samples, choose_store

    if plan.settings.backend == "local":
        _ = plan.stored  # the line about samples comes before the first round
    if plan.settings.client_store == "auto":
        free = free_memory(plan.device) + plan.resident.size
        beside = max(beside_models, default=None)
        store, line = choose_store(plan.info, plan.settings, free, beside)
        note(line)
        plan = replace(plan, settings=plan.settings.model_copy(update={"client_store": store}))
    if plan.resident.left_out:
        note(about_samples(*plan.resident.left_out))
    return plan


def observes(plan: Plan) -> bool:
    """Return True if the run records observations or uploads."""
    return bool(plan.settings.observe or plan.settings.record_uploads)
