"""How long a run will take: what it has to do, by what a little of it takes here."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from protofl.data.batches import batch_bounds
from protofl.dry_step.step import for_dry_rounds, two_dry_rounds
from protofl.hosts.host import Host
from protofl.hosts.jobs import Evaluate, Job, Reply, Train
from protofl.plan.plan import Plan

STAGES = ("train", "prototypes", "payload", "evaluate")
"""Stages of a client's work, by which a reply tells seconds."""


def workload(plan: Plan) -> dict[str, float]:
    """What all rounds of all trials have to do, as far as it is known beforehand.

    Every client is taken to be asked as often as the others, and a phase that trains on rows which
    the server chooses to train on all of them.

    Returns:
        {``train ARCHITECTURE``: mini-batches that clients of it train on, ``prototypes …``: those
        of a pass over training data in each round, ``payload …``: uploads, ``evaluate …``: batches
        of test samples, ``server``: rounds}.
    """
    s, info = plan.settings, plan.info
    phases = [p for p in plan.composition.phases(info) if plan.composition.terms_of(p)]
    asked = s.rounds * info.participants / info.num_clients
    evaluations = -(-s.rounds // s.eval_every)
    scored = 1.0 if s.eval_clients == "all" else info.participants / info.num_clients
    load: dict[str, float] = defaultdict(float)
    for trial in range(s.trials):
        split = plan.split(trial)
        public = plan.public_data.y if plan.public_data is not None else split.public
        shared = 0 if public is None else len(public)
        sizes = split.offsets.diff().tolist()
        load["server"] += s.rounds
        for client in range(info.num_clients):
            name = info.architecture_of(client).name
            own, test = sizes[2 * client], sizes[2 * client + 1]
            batches = len(batch_bounds(own, s.batch_size, s.drop_last))
            for phase in phases:
                count = own if phase.data == "private" else shared
                each = len(batch_bounds(count, s.batch_size, s.drop_last))
                load[f"train {name}"] += asked * (phase.epochs or s.local_epochs) * each
            load[f"prototypes {name}"] += asked * batches
            load[f"payload {name}"] += asked
            load[f"evaluate {name}"] += evaluations * scored * (test / s.batch_size)
    return dict(load)


def steps_in(load: dict[str, float]) -> int:
    """Mini-batches that clients train on."""
    return round(sum(amount for key, amount in load.items() if key.startswith("train ")))


class _Timed(Host):
    """A host that keeps the seconds of its last jobs by stage and architecture."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.spent: dict[str, float] = {}
        self.phases: Counter[str] = Counter()

    def handle(self, job: Job) -> Reply:
        reply = super().handle(job)
        if isinstance(job, (Train, Evaluate)):
            name = self.plan.info.architecture_of(job.client).name
            again = isinstance(job, Train) and job.when == "after_server"
            for stage in STAGES:
                if stage in reply.seconds:
                    before = self.spent.get(f"{stage} {name}", 0.0) if again else 0.0
                    self.spent[f"{stage} {name}"] = before + reply.seconds[stage]
        return reply


def pace(plan: Plan) -> dict[str, float]:
    """Seconds of each part of `workload` here: of the second of two dry rounds.

    There is a client of each architecture, with one mini-batch.
    """
    host = _Timed(for_dry_rounds(plan, len(plan.info.architectures)))
    row: dict[str, Any] = two_dry_rounds(host)[0]
    info = plan.info
    phases = [p for p in plan.composition.phases(info) if plan.composition.terms_of(p)]
    spent = dict(host.spent)
    for key in spent:
        if key.startswith("train "):
            spent[key] /= max(1, len(phases))
    uploads = max(1, len(info.architectures))
    return spent | {"server": row["seconds"]["server"] * info.participants / uploads}


def seconds_of(load: dict[str, float], paces: dict[str, float]) -> float:
    """Seconds of a workload with one host."""
    return sum(amount * paces.get(key, 0.0) for key, amount in load.items())
