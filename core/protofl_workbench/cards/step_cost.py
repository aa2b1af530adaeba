"""The cost of a method's training step, compared with ``local``.

Two measures of the same runs: operations, which are the same on every machine, and processor time,
for which rounds of the method and of ``local`` take turns in one process. All that a client
computes in a round is divided by the steps of its local training: also what the method computes
before and after the steps, and on public samples.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from protofl.backends import Host, Job, Plan, Reply
from protofl.federation.federation import Federation
from protofl.federation.jobs import Train
from protofl_workbench.cards.toy_runs import ToyRuns, plan_of, toy_runs

BASELINE = "local"
MODELS = "cnn4"
"""The model group of the measured runs."""

CLASSES, SAMPLES, SIDE, BATCH = 10, 8, 28, 20
"""Classes, training samples of each class on a client, pixels of a side, samples of a batch."""

CLIENTS = 2
STEPS = CLIENTS * CLASSES * SAMPLES // BATCH
"""Steps of local training in a round, of all clients."""

COUNTED = 2
"""The round, from 0, whose operations are counted; those before it warm up."""

PAIRS = 7
"""Pairs of rounds, one of the method and one of ``local``, whose times are compared."""


@dataclass(frozen=True)
class Spent:
    """What a round takes.

    Attributes:
        client_seconds: Processor seconds of the clients' training.
        server_seconds: Processor seconds of the rest of the round, without evaluation.
        client_calls: Calls of ATen in the clients' training; 0 if they were not counted.
        server_calls: The same of the server.
        client_multiply_adds: Multiply-adds of matrix products and convolutions in the clients'
            training, forward and backward; 0 if they were not counted.
        server_multiply_adds: The same of the server.
    """

    client_seconds: float
    server_seconds: float
    client_calls: int = 0
    server_calls: int = 0
    client_multiply_adds: int = 0
    server_multiply_adds: int = 0


@dataclass(frozen=True)
class StepCost:
    """The cost of a method, beside that of ``local`` on the same problem.

    Attributes:
        method: Operations of one round of the method.
        baseline: Operations of one round of ``local``.
        ratios: Processor time of the clients' training, method / local, of each pair of rounds.
        server_seconds: Median processor seconds of the server in a round of the method.
    """

    method: Spent
    baseline: Spent
    ratios: tuple[float, ...]
    server_seconds: float

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return median(self.ratios)


class _Calls(TorchDispatchMode):
    """Counts calls of ATen."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - as torch calls it
        self.count += 1
        return func(*args, **(kwargs or {}))


class _Operations:
    """Counts operations inside a block."""

    def __enter__(self) -> _Operations:
        # The calls come first: the counter of FLOPs decomposes some of them.
        self._flops = FlopCounterMode(display=False)
        self._calls = _Calls()
        self._flops.__enter__()
        self._calls.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401 - as Python calls it
        self._calls.__exit__(*error)
        self._flops.__exit__(*error)

    def now(self) -> tuple[int, int]:
        """Return the calls and the multiply-adds so far."""
        return self._calls.count, self._flops.get_total_flops() // 2


class _MeasuredPool:
    """A host in this process that measures what clients spend on training."""

    def __init__(self, plan: Plan) -> None:
        self.host = Host(plan)
        self.operations: _Operations | None = None
        self.training, self.all_jobs = [0.0, 0, 0], [0.0, 0, 0]

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Reply]]:
        """Do one job after the other."""
        for job in jobs:
            before = self._now()
            reply = self.host.handle(job)
            spent = [after - start for start, after in zip(before, self._now(), strict=True)]
            for total in (self.all_jobs, *([self.training] if isinstance(job, Train) else [])):
                total[:] = [known + more for known, more in zip(total, spent, strict=True)]
            yield job, reply

    def broadcast(self, job: Job) -> None:
        """Do a job."""
        self.host.handle(job)

    def close(self) -> None:
        """Nothing to end."""

    def _now(self) -> tuple[float, int, int]:
        calls, multiply_adds = self.operations.now() if self.operations else (0, 0)
        return time.process_time(), calls, multiply_adds


class _MeasuredRun:
    """A run of a plan in this process whose rounds are measured."""

    def __init__(self, plan: Plan) -> None:
        self.pool = _MeasuredPool(plan)
        self.federation = Federation(plan, self.pool)
        self.federation.start_trial(0)
        self.number = 0

    def round(self, *, counted: bool = False) -> Spent:
        """Run the next round; with ``counted``, count its operations, which makes it slower."""
        self.pool.training, self.pool.all_jobs = [0.0, 0, 0], [0.0, 0, 0]
        start, whole = time.process_time(), (0, 0)
        if counted:
            with _Operations() as self.pool.operations:
                self.federation.round(self.number)
                whole = self.pool.operations.now()
            self.pool.operations = None
        else:
            self.federation.round(self.number)
        seconds = time.process_time() - start
        self.number += 1
        trained, jobs = self.pool.training, self.pool.all_jobs
        return Spent(
            trained[0],
            seconds - jobs[0],
            trained[1],
            whole[0] - jobs[1],
            trained[2],
            whole[1] - jobs[2],
        )


def step_plan(runs: ToyRuns) -> Plan:
    """Plan the measured run of a method.

    Raises:
        ProtoflError: The method refuses the run.
    """
    rounds = COUNTED + 1 + PAIRS
    options = {"rounds": rounds, "eval_every": rounds, "batch_size": BATCH}
    return plan_of(runs, CLASSES, SAMPLES, SIDE, [MODELS], **options)


def measure_cost(runs: ToyRuns) -> StepCost:
    """Measure rounds of a method and of ``local`` in turn.

    Raises:
        ProtoflError: The method refuses the run, or fails.
    """
    with toy_runs(BASELINE) as baseline_runs:
        pair = [_MeasuredRun(step_plan(runs)), _MeasuredRun(step_plan(baseline_runs))]
        for _ in range(COUNTED):
            for run in pair:
                run.round()
        method, baseline = (run.round(counted=True) for run in pair)
        times = [(pair[0].round(), pair[1].round()) for _ in range(PAIRS)]
    ratios = tuple(one.client_seconds / other.client_seconds for one, other in times)
    return StepCost(method, baseline, ratios, median(one.server_seconds for one, _ in times))
