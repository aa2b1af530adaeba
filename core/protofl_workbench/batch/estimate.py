"""Estimate the time of a run from its workload and a short measurement."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from protofl.data.batches import batch_bounds
from protofl.federation.clients.host import Host
from protofl.federation.jobs.jobs import Evaluate, Job, Reply, Train
from protofl.federation.plan.plan import Plan
from protofl.federation.round.round_stages import Workload
from protofl.runs.dry_run.short_rounds import for_dry_rounds, measured_rounds

STAGES = ("train", "prototypes", "payload", "evaluate")
"""Stages of a client's work with measured seconds."""

BATCHES = 4
"""Mini-batches of the longer one of the two measured rounds."""

ONCE = "once"
"""Prefix of a stage: time that does not depend on its batches, such as hooks."""


def workload(plan: Plan) -> dict[str, float]:
    """Return the workload of all rounds of all trials, as far as it is known before a run.

    All clients are assumed to participate equally often.

    Returns:
        {``train ARCHITECTURE``: mini-batches of local training, ``prototypes …``: mini-batches of a
        pass over the training data in each round, ``payload …``: uploads, ``evaluate …``: batches
        of test samples, ``server``: rounds}, and the number of trainings and evaluations: ``once
        train …``, ``once evaluate …``.
    """
    s, info = plan.settings, plan.info
    phases = [p for p in plan.composition.phases(info) if plan.composition.terms_of(p)]
    asked = s.rounds * info.participants / info.num_clients
    evaluations = -(-s.rounds // s.eval_every)
    scored = 1.0 if s.eval_clients == "all" else info.participants / info.num_clients
    load: dict[str, float] = defaultdict(float)
    for trial in range(s.trials):
        clients, sizes = Workload(plan, trial), plan.split(trial).offsets.diff().tolist()
        load["server"] += s.rounds
        for client in range(info.num_clients):
            name = info.architecture_of(client).name
            train_size, test = sizes[2 * client], sizes[2 * client + 1]
            batches = len(batch_bounds(train_size, s.batch_size, s.drop_last))
            load[f"train {name}"] += asked * clients.training(client)
            load[f"{ONCE} train {name}"] += asked * len(phases)
            load[f"prototypes {name}"] += asked * batches
            load[f"payload {name}"] += asked
            load[f"evaluate {name}"] += evaluations * scored * (test / s.batch_size)
            load[f"{ONCE} evaluate {name}"] += evaluations * scored
    return dict(load)


def steps_in(load: dict[str, float]) -> int:
    """Return the mini-batches of local training."""
    return round(sum(amount for key, amount in load.items() if key.startswith("train ")))


class _Timed(Host):
    """A host that records the seconds of its last jobs by stage and architecture."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.spent: dict[str, float] = {}

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
    """Return the seconds of each unit of `workload` on this machine.

    Measured in the second of two dry rounds with a client of each architecture: with one mini-batch
    and with `BATCHES`. The difference is the time of a batch; the rest does not depend on batches.
    """
    one, few = _measured(plan, 1), _measured(plan, BATCHES)
    seconds = dict(one.spent)
    for key, first in one.spent.items():
        stage = key.partition(" ")[0]
        if stage != "payload" and few.batches > one.batches:
            each = max(0.0, few.spent[key] - first) / (few.batches - one.batches)
            seconds[key] = min(each, first / one.batches)
            once = min(first, few.spent[key]) - seconds[key] * one.batches
            seconds[f"{ONCE} {key}"] = max(0.0, once)
    return seconds | {"server": one.spent["server"]}


class _Measured(NamedTuple):
    """The time of a dry round.

    Attributes:
        spent: Seconds by stage and architecture, for training those of one phase; ``server`` is
            scaled to the uploads of a round of the run.
        batches: Mini-batches of a phase, and of the test samples.
    """

    spent: dict[str, float]
    batches: int


def _measured(plan: Plan, batches: int) -> _Measured:
    """Measure a round in which every client has at most this many mini-batches."""
    uploads = max(1, len(plan.info.architectures))
    dry = for_dry_rounds(plan, uploads, batches)
    host = _Timed(dry)
    row = measured_rounds(host)
    info, s = plan.info, plan.settings
    phases = [p for p in plan.composition.phases(info) if plan.composition.terms_of(p)]
    spent = dict(host.spent)
    for key in spent:
        if key.startswith("train "):
            spent[key] /= max(1, len(phases))
    spent["server"] = row.seconds["server"] * info.participants / uploads
    train_size = int(dry.split(0).offsets[1])
    return _Measured(spent, max(1, len(batch_bounds(train_size, s.batch_size, s.drop_last))))


def seconds_of(load: dict[str, float], paces: dict[str, float]) -> float:
    """Return the seconds of a workload with one host."""
    return sum(amount * paces.get(key, 0.0) for key, amount in load.items())
