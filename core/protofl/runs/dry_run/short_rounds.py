"""The dry run: two short rounds on throw-away copies, before the first round.

It finds errors of a composition before training: a loss term that is never returned, a key that
a hook reads and no client sends, or shapes that do not fit. `count_flops` counts FLOPs alike.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from protofl.errors import Diverged, ProtoflError, UsageError
from protofl.federation.clients.host import Host
from protofl.federation.jobs.jobs import Evaluate, Job, Reply, Train, TrainReply
from protofl.federation.plan.plan import Plan
from protofl.federation.round.federation import Federation
from protofl.hooks.models.flops import ClientFlops, flop_counter
from protofl.hooks.plugin.members import choose
from protofl.records.row import Row
from protofl.runs.dry_run.hook_checks import HookChecks
from protofl.runs.dry_run.state_checks import MissingKeys


class _DryHost(Host):
    """A host that keeps the last payloads and watches missing keys."""

    def __init__(self, plan: Plan, missing_keys: MissingKeys, watching: HookChecks) -> None:
        super().__init__(plan, read=missing_keys.read)
        self._missing_keys, self._watching = missing_keys, watching
        self.down, self.up = b"", b""

    def handle(self, job: Job) -> Reply:
        self._missing_keys.begin(job)
        if isinstance(job, Train) and job.client == 0 and job.when == "before_upload":
            self._watching.begin_round()
        if isinstance(job, Evaluate) or (isinstance(job, Train) and not job.keep_received):
            self.down = job.blob
        reply = super().handle(job)
        if isinstance(job, Train) and job.when == "before_upload":
            self.up = reply.blob
        return reply


def dry_run(
    plan: Plan,
    note: Callable[[str], None] = lambda line: None,
    beside_models: Callable[[int], None] = lambda size: None,
) -> dict[str, Any]:
    """Run two rounds of two clients with one batch each; leave no trace.

    Args:
        plan: The run.
        note: Takes lines about what is allowed and hurts.
        beside_models: Takes the bytes that a client keeps beside its model, the most of them.

    Returns:
        What clients send, as payload validation keeps it.

    Raises:
        Refused: A term or key is missing in the second round, or a tensor has the wrong shape.
        UsageError: A hook failed, or does what no hook may do.
    """
    missing_keys = MissingKeys()
    watching = HookChecks(plan, missing_keys)
    engine = plan.choices["engine"]
    watched = replace(
        plan,
        composition=plan.composition.watched(watching),
        # A recorded step keeps the watched hooks, so the run has an engine of its own.
        choices={**plan.choices, "engine": engine.anew()},
        checks_steps=True,
    )
    host = _DryHost(for_dry_rounds(watched, min(2, plan.info.num_clients)), missing_keys, watching)
    sizes: list[int] = []

    def try_schedule(federation: Federation) -> None:
        sizes.append(host.beside_models())
        if "try_out" in (schedule := plan.choices["schedule"]).hooks:
            schedule.call("try_out", coordinator=federation.coordinator(), note=note)

    try:
        with watching.randomness.noticed():
            line, learned = two_dry_rounds(host, int(engine.replays), try_schedule)
        watching.conclude()
    except ProtoflError as error:
        if isinstance(error, UsageError) and not error.place:
            raise  # not of a hook, such as a weights file: payloads explain nothing
        from protofl.runs.dry_run.refusals import explained

        raise explained(error, plan, host.down, host.up, missing_keys.reader) from error
    composition = plan.composition
    trains = any(composition.terms_of(phase) for phase in composition.phases(plan.info))
    missing = [t for t in composition.terms if trains and t.label not in line.loss_terms]
    if missing or missing_keys.evaluation:
        from protofl.runs.dry_run.refusals import without_key, without_term

        if missing:
            raise without_term(missing[0], missing_keys.training, plan)
        raise without_key(missing_keys.evaluation, plan)
    for text in watching.notes.values():
        note(text)
    beside_models(*sizes)
    return learned


def for_dry_rounds(plan: Plan, clients: int, batches: int = 1) -> Plan:
    """Return the plan of a dry host with some clients, which all take part in every round.

    All have client 0's first batch, or batches, as far as it has so many, and there are no more
    public or global test samples than that. If samples lie on other machines, they are drawn.
    """
    # Methods keep no state on themselves, so nothing is left behind by sharing them.
    changes: dict[str, Any] = {"eval_every": 1, "on_bad_upload": "stop", "measure": []}
    changes |= {"unseen": 0.0, "join_round": None, "min_clients": 1}
    few, public = plan.settings.batch_size * batches, plan.public_data
    data, split = plan.data, lambda seed: plan.splits(seed).first_batch(few, clients)
    if data.x.is_meta:
        from protofl.data.remote_data import drawn, drawn_split

        few = min(few, 256)
        data, split = drawn(data, few), lambda seed: drawn_split(few, clients)
    if public is not None:
        public = replace(public, x=public.x[:few], y=public.y[:few])
    return replace(
        plan,
        data=data,
        splits=split,
        public_data=public,
        images=plan.images and plan.images.unopened(),
        info=replace(plan.info, num_clients=clients, participants=clients, places=()),
        settings=plan.settings.model_copy(update=changes),
        dry=True,
    )


def two_dry_rounds(
    host: Host, further: int = 0, after: Callable[[Federation], None] = lambda federation: None
) -> tuple[Row, dict[str, Any]]:
    """Run two rounds on a dry host; in the second round all payloads have been sent once.

    Args:
        host: The host.
        further: Rounds after these, in which an engine runs the steps of the second round again.
        after: Called after all rounds.

    Returns:
        The line of the second, and what payload validation has learned of uploads.
    """
    federation = Federation(host.plan, host)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        federation.start_trial(0)
        federation.round(0)
        result = federation.round(1)[0], federation.server.learned
        for number in range(2, 2 + further):
            federation.round(number)
        after(federation)
        return result


def measured_rounds(host: Host) -> Row:
    """Run two rounds on a dry host whose time or work is measured; return the line of the last.

    A net may diverge on the few samples that it has here, which says nothing about the run. Then
    the line is that of the first round. The clients have trained in both.
    """
    federation = Federation(host.plan, host)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        federation.start_trial(0)
        line = federation.round(0)[0]
        with suppress(Diverged):
            line = federation.round(1)[0]
        return line


class _CountingHost(Host):
    """A host that counts the FLOPs of its clients' training, {client: those of each round}."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.flops: dict[int, list[ClientFlops]] = {}

    def handle(self, job: Job) -> Reply:
        if not isinstance(job, Train):
            return super().handle(job)
        rounds = self.flops.setdefault(job.client, [])
        if job.when == "before_upload":
            rounds.append(ClientFlops())
        with flop_counter() as counter:
            reply = super().handle(job)
        assert isinstance(reply, TrainReply)
        flops = rounds[-1]
        flops.counted += counter.get_total_flops()
        flops.samples += reply.samples
        return reply


def count_flops(plan: Plan) -> list[ClientFlops]:
    """Count the FLOPs of a client of each architecture, in the order of the architectures.

    They are tried in two rounds, as in the dry run; the second counts, as its downloads are those
    of the run. If a net diverges on the one batch that it has here, the larger of both counts.
    """
    count = len(plan.info.architectures)
    eager = {**plan.choices, "engine": choose(plan.registry, "engine", "eager")}
    host = _CountingHost(for_dry_rounds(replace(plan, choices=eager), count))
    finished = measured_rounds(host)["round"] == 1
    counted = [
        rounds[-1] if finished else max(rounds, key=lambda one: one.counted)
        for rounds in (host.flops[client] for client in range(count))
    ]
    for client, flops in enumerate(counted):
        flops.forward = host.client(client).forward_flops()
    return counted
