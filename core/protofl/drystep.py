"""The dry step: two short rounds on throw-away copies, before the first round.

It finds what a composition lacks while it costs nothing: a loss term that never comes into being,
a key that a hook reads and nobody sends, shapes that do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from protofl.errors import MissingKey, ProtoflError, UsageError
from protofl.federation import Federation
from protofl.host import Host
from protofl.jobs import Job, Reply
from protofl.plan import Plan
from protofl.registry import Registry


class _DryPool:
    """A host here, whose clients train on client 0's first batch."""

    def __init__(self, plan: Plan) -> None:
        self.host = Host(plan, dry=True)

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, Reply]]:
        for job in jobs:
            yield job, self.host.handle(job)

    def broadcast(self, job: Job) -> None:
        self.host.handle(job)

    def close(self) -> None:
        pass


def dry_step(plan: Plan) -> None:
    """Run two rounds of two clients with one batch each; leave no trace.

    Raises:
        UsageError: A term or key is missing in the second round, or a hook failed.
    """
    two = min(2, plan.info.num_clients)
    # The composition is shared: methods keep no state on themselves, so nothing is left behind.
    small = replace(
        plan,
        info=replace(plan.info, num_clients=two, participants=two),
        settings=plan.settings.model_copy(update={"eval_every": 1, "on_bad_upload": "stop"}),
    )
    small.__dict__["split"] = plan.split
    pool = _DryPool(small)
    federation = Federation(small, pool, dry=True)
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            federation.start_trial(0)
            federation.round(0)
            line, _ = federation.round(1)
    except ProtoflError as error:
        raise _explained(error, plan.registry) from error
    labels = [term.label for term in plan.composition.terms]
    missing = [label for label in labels if label not in line["loss_terms"]]
    missed = sorted(pool.host.missed)
    if missed and not missing:
        raise UsageError(
            f"inference looks for {missed[0]!r}, which no download brings in two rounds",
            do="; ".join(_senders(key, "downloads", plan.registry) for key in missed),
        )
    if missing:
        asked = sorted(pool.host.asked)
        keys = ", ".join(repr(key) for key in asked) or "nothing that was looked for in vain"
        raise UsageError(
            f"the loss term {missing[0]!r} did not come into being in two rounds",
            f"its method looked in the download for: {keys}",
            "; ".join(_senders(key, "downloads", plan.registry) for key in asked)
            or f"drop it: --drop local_loss.{missing[0]}",
        )


def _explained(error: ProtoflError, registry: Registry) -> ProtoflError:
    """An error of the dry step, found before training: exit code 2."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, MissingKey):
        cause = cause.__cause__
    do = error.do
    if isinstance(cause, MissingKey):
        side = "uploads" if "server_" in error.what else "downloads"
        do = _senders(cause.key, side, registry)
    found = UsageError(f"the dry step failed: {error.what}", error.near, do)
    return found


def _senders(key: str, direction: str, registry: Registry) -> str:
    """Which methods could send a key."""
    plain = key.split("/")[0]
    names = []
    for plugin in registry.plugins("method"):
        try:
            declared = getattr(registry.load("method", plugin.name), direction, {})
        except ProtoflError:
            continue
        if any(sent.split("/")[0] == plain for sent in declared):
            names.append(plugin.name)
    hook = "download_payload" if direction == "downloads" else "upload_payload"
    if not names:
        return f"no installed method sends {key!r} in {hook}"
    return f"{key!r} is sent by {hook} of: {', '.join(names)} (--use {hook}=METHOD)"
