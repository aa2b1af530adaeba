"""Checks of runs with an asynchronous schedule, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import protofl as pf
from protofl_plugins.schedules.options import AsynchronousConfig

SERVER_HOOKS = ("download_payload", "upload_payload", "server_aggregate", "server_train")
"""Hooks whose providers must say whether they run without rounds."""


def check_asynchronous(plan: pf.backends.Plan, config: AsynchronousConfig, buffer: int) -> None:
    """Check that a run can do without rounds.

    Args:
        plan: The run.
        config: The options of its schedule.
        buffer: B.

    Raises:
        UsageError: A method, an option or a plugin needs rounds.
    """
    settings, name = plan.settings, plan.settings.timing
    if plan.composition.has_follow_up(plan.info):
        raise pf.UsageError(
            f"--schedule {name}: clients of {plan.composition.main} also train after the server's "
            "step, with all participants of a round",
            do="take --schedule rounds",
        )
    for member, declared in declarations(plan):
        if declared not in (True, "versions"):
            raise _refused_method(name, member, declared)
    for option, value, why in (
        ("deadline", settings.deadline, "a deadline is that of a round"),
        ("over-select", settings.over_select, "over-selection is that of a round"),
        ("participants-from", settings.participants_from, "it repeats the participants of rounds"),
    ):
        if value:
            do = "leave it out"
            if option == "deadline":
                do += "; --set timing.max_staleness=N drops uploads that come too late"
            raise pf.UsageError(f"--{option} {value} with --schedule {name}: {why}", do=do)
    if settings.devices is None:
        _check_real_time(plan)
    sampler = plan.choices["client-sampler"]
    if getattr(sampler.plugin, "any_number", False):
        raise pf.UsageError(
            f"--sampling {sampler.name} with --schedule {name}: it chooses the participants of "
            "whole rounds",
            do="take --sampling uniform",
        )
    clients = plan.info.num_clients - plan.info.unseen
    for key, count in (("concurrency", config.concurrency), ("buffer", buffer)):
        if count is not None and count > clients:
            raise pf.UsageError(
                f"--set timing.{key}={count}: the run has {clients} clients that train",
                do=f"take at most {clients}",
            )
    if settings.min_clients > buffer:
        raise pf.UsageError(
            f"--min-clients {settings.min_clients} with --schedule {name}: the server acts on "
            f"{buffer} uploads",
            do=f"take at most {buffer}",
        )
    codings = [m.name for m in plan.composition.transforms if "encode_download" in m.hooks]
    if runs_on_versions(plan) and codings:
        raise pf.UsageError(
            f"--with {codings[0]} with --schedule {name}: {plan.composition.main} needs the "
            "download from which a client trained, and the server has it encoded",
            do="leave it out, or take --schedule rounds",
        )


def _check_real_time(plan: pf.backends.Plan) -> None:
    """Check the options of a run whose clients train on machines of their own.

    Raises:
        UsageError: An option needs evaluations for which the server waits.
    """
    settings, name = plan.settings, plan.settings.timing
    for option, value in (
        ("unseen", settings.unseen),
        ("observe", ",".join(settings.observe)),
        ("record-predictions", ",".join(settings.record_predictions)),
    ):
        if value:
            raise pf.UsageError(
                f"--{option} {value} with --schedule {name}: clients on machines of their own are "
                "evaluated while the run goes on, each at another step",
                do="leave it out, or take --schedule rounds",
            )


def declarations(plan: pf.backends.Plan) -> Iterator[tuple[str, Any]]:
    """Yield the providers of the server's hooks and payloads, and what each declares."""
    composition = plan.composition
    names = dict.fromkeys(
        name
        for hook in SERVER_HOOKS
        for name in composition.makers(hook)
        if hook in composition.members[name].hooks
    )
    for name in names:
        yield name, getattr(composition.members[name].plugin, "asynchronous", None)


def runs_on_versions(plan: pf.backends.Plan) -> bool:
    """Return True if uploads count as updates of the version that was downloaded."""
    return any(declared == "versions" for _, declared in declarations(plan))


def _refused_method(schedule: str, name: str, declared: object) -> pf.UsageError:
    """Return the error for a method that needs rounds, or does not say that it doesn't."""
    do = f"take --schedule rounds, or a method that declares asynchronous ({EXAMPLES})"
    if declared is None:
        return pf.UsageError(
            f"--schedule {schedule}: {name} does not say whether it runs without rounds",
            'a method declares asynchronous = True, "versions", or the reason why not',
            do,
        )
    why = declared if isinstance(declared, str) else "its server needs all participants at once"
    return pf.UsageError(f"--schedule {schedule}: {name} needs rounds: {why}", do=do)


EXAMPLES = "fedproto, fedtgp, fedavg"
