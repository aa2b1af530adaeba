"""The dry step: two short rounds on throw-away copies, before the first round.

It finds what a composition lacks while it costs nothing: a loss term that never comes into being,
a key that a hook reads and nobody sends, shapes that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch

from protofl.errors import (
    MissingKey,
    MissingModule,
    ProtoflError,
    Refused,
    UsageError,
    WrongShape,
    part_of,
)
from protofl.hosts.host import Host
from protofl.hosts.jobs import Job, Reply
from protofl.plan.plan import Plan
from protofl.plugin.composition import Composition
from protofl.plugin.members import Term
from protofl.plugin.registry import Registry
from protofl.runs.federation import Federation
from protofl.wire.payload import Payload


class _DryPool:
    """A host here, whose clients train on client 0's first batch; what crosses last is kept."""

    report: Callable[[str], None]

    def __init__(self, plan: Plan) -> None:
        self.host = Host(plan, dry=True)
        self.down, self.up = b"", b""

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, Reply]]:
        for job in jobs:
            if not job.values.get("keep_received"):
                self.down = job.blob
            reply = self.host.handle(job)
            if job.op == "train" and job.values["when"] == "before_upload":
                self.up = reply.blob
            yield job, reply

    def broadcast(self, job: Job) -> None:
        self.host.handle(job)

    def close(self) -> None:
        pass


def dry_step(plan: Plan) -> None:
    """Run two rounds of two clients with one batch each; leave no trace.

    Raises:
        Refused: A term or key is missing in the second round, or a tensor has the wrong shape.
        UsageError: A hook failed.
    """
    two = min(2, plan.info.num_clients)
    # The composition is shared: methods keep no state on themselves, so nothing is left behind.
    small = replace(
        plan,
        info=replace(plan.info, num_clients=two, participants=two),
        settings=plan.settings.model_copy(update={"eval_every": 1, "on_bad_upload": "stop"}),
    )
    pool = _DryPool(small)
    federation = Federation(small, pool, dry=True)
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            federation.start_trial(0)
            federation.round(0)
            line, _ = federation.round(1)
    except ProtoflError as error:
        raise _explained(error, plan, pool) from error
    missing = [term for term in plan.composition.terms if term.label not in line["loss_terms"]]
    if missing:
        raise _without_term(missing[0], pool.host.trainer.asked, plan.registry)
    if pool.host.missed:
        raise _without_key(pool.host.missed, plan.registry)


def _without_term(term: Term, asked: dict[str, str], registry: Registry) -> UsageError:
    """The error for a loss term that did not come into being."""
    what = f"the loss term {term.label!r} did not come into being in two rounds"
    drop = f"drop it: --drop local_loss.{term.label}"
    # What its own method looked for, or its loss, which is not told apart from others' losses.
    own = [key for key, reader in asked.items() if reader.partition(".")[0] in ("", term.method)]
    keys = sorted(own or asked)
    if not keys:
        near = "its method looked for nothing in the download that is not there"
        return UsageError(what, near, drop)
    near = f"its method looked in the download for: {', '.join(map(repr, keys))}"
    do = "; ".join(_senders(key, "downloads", registry) for key in keys)
    return Refused(what, near, do, lacks="key", name=keys[0])


def _without_key(missed: dict[str, str], registry: Registry) -> Refused:
    """The error for keys that evaluation looks for."""
    key = min(missed)
    method, _, hook = missed[key].rpartition(".")
    return Refused(
        f"{hook} of {method} looks for {key!r}, which no download brings in two rounds",
        do="; ".join(_senders(key, "downloads", registry) for key in sorted(missed)),
        lacks="key",
        name=key,
    )


def _explained(error: ProtoflError, plan: Plan, pool: _DryPool) -> UsageError:
    """An error of the dry step, found before training: exit code 2."""
    what, composition = f"the dry step failed: {error.what}", plan.composition
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, (MissingKey, WrongShape, MissingModule)):
        cause = cause.__cause__
    hook = error.place.partition(",")[0].partition(" ")[0]
    on_server = hook.startswith("server_")
    sender = "upload_payload" if on_server else "download_payload"
    sent = Payload.from_bytes(pool.up if on_server else pool.down)
    came = f"{sender} of {composition.owner(sender)} sends: {_shapes(sent)}"
    if cause is None:
        return UsageError(what, error.near or came, error.do)
    known = {"lacks": cause.lacks, "name": part_of(cause.key)}
    if isinstance(cause, MissingModule):
        return Refused(what, error.near, error.do, **known)
    method, read_by = _reader(hook, cause, composition)
    near = f"{read_by} of {method} reads it; {came}" if method else came
    if isinstance(cause, WrongShape) and method:
        do = f"take it from the method that reads it: --use {sender}={method}"
    else:
        do = _senders(cause.key, "uploads" if on_server else "downloads", plan.registry)
    return Refused(what, near, do, **known)


def _reader(hook: str, cause: ProtoflError, composition: Composition) -> tuple[str, str]:
    """The method and the hook that read a key; empty where that is not known."""
    if hook in composition.providers and hook != "local_loss":
        return composition.owner(hook), hook
    method, _, hook = getattr(cause, "reader", "").rpartition(".")
    return method, hook


def _shapes(sent: Payload) -> str:
    """What a payload holds, with the shapes of what is no part of many tensors."""
    words: Iterable[str] = (
        part_of(key) if "/" in key else f"{key} {list(tensor.shape)}"
        for key, tensor in sent.items()
    )
    return ", ".join(dict.fromkeys(words)) or "nothing"


def _senders(key: str, direction: str, registry: Registry) -> str:
    """Which methods could send a key."""
    plain = part_of(key)
    names = []
    for plugin in registry.plugins("method"):
        try:
            declared = getattr(registry.load("method", plugin.name), direction, {})
        except ProtoflError:
            continue
        if any(part_of(sent) == plain for sent in declared):
            names.append(plugin.name)
    hook = "download_payload" if direction == "downloads" else "upload_payload"
    if not names:
        return f"no installed method sends {key!r} in {hook}"
    return f"{key!r} is sent by {hook} of: {', '.join(names)} (--use {hook}=METHOD)"
