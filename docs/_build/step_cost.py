"""The cost of a method's training step, compared with ``local``.

Two measures of the same runs: operations, and processor time, for which rounds of the method and of
``local`` take turns in one process. Multiply-adds are the same on every machine. All that a client
computes in a round is divided by the steps of its local training: also what the method computes
before and after the steps, and on public samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from protofl.federation.clients.host import Host
from protofl.federation.jobs.jobs import Job, Reply, Train
from protofl.federation.plan.plan import Plan
from protofl.federation.round.federation import Federation
from toy_runs import ToyRuns, plan_of, toy_runs

BASELINE = "local"
MODELS = ("cnn4", "resnet10", "depths:cnn4@3")
"""Model groups of the measured runs, in the order in which a method is asked."""

CLASSES, SAMPLES, SIDE, BATCH = 10, 8, 28, 20
"""Classes, training samples of each class on a client, pixels of a side, samples of a batch."""

CLIENTS = 2
STEPS = CLIENTS * CLASSES * SAMPLES // BATCH
"""Steps of local training in a round, of all clients."""

FIRST = 5
"""The first measured round, from 0. Some methods, such as ``fedl2g``, change in early rounds."""

PAIRS = 7
"""Pairs of rounds, one of the method and one of ``local``, whose times are compared. Operations are
counted in the round after them."""


@dataclass(frozen=True)
class Spent:
    """The cost of a round.

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
        models: The model group of both.
    """

    method: Spent
    baseline: Spent
    ratios: tuple[float, ...]
    server_seconds: float
    models: str = MODELS[0]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """The first quartile, the median and the third quartile of the ratios."""
        low, middle, high = quantiles(self.ratios, n=4, method="inclusive")
        return low, middle, high


LINEAR = "mkldnn._linear_pointwise"
"""A linear layer of oneDNN, for which torch has no formula: (input, weight, …)."""


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Counts calls of ATen and multiply-adds inside a block.

    `torch.utils.flop_counter.FlopCounterMode` has the same formulas, but its hooks on gradients
    fail inside `torch.autograd.grad`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.calls = self.multiply_adds = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - as torch calls it
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        packet = func.overloadpacket
        if str(packet) == LINEAR:  # the reference engine calls it where the processor has AVX-512
            self.multiply_adds += args[0].numel() * args[1].shape[0]
            return result
        # Operations in place are counted as those that return a new tensor.
        name = str(packet).rpartition(".")[2]
        flops = flop_registry.get(packet) or flop_registry.get(
            getattr(torch.ops.aten, name.rstrip("_"), None)
        )
        if flops is not None:
            self.multiply_adds += flops(*args, **(kwargs or {}), out_val=result) // 2
        return result


@dataclass
class _Sums:
    """Sums over the jobs so far: processor seconds, calls of ATen, multiply-adds."""

    seconds: float = 0.0
    calls: int = 0
    multiply_adds: int = 0

    def add(self, after: _Sums, before: _Sums) -> None:
        """Add what was taken between two moments."""
        self.seconds += after.seconds - before.seconds
        self.calls += after.calls - before.calls
        self.multiply_adds += after.multiply_adds - before.multiply_adds


def _now(operations: _Operations | None) -> _Sums:
    """Return what the process has taken until now; operations only if they are counted."""
    seconds = time.process_time()
    return _Sums(seconds, *((operations.calls, operations.multiply_adds) if operations else ()))


class _MeasuredPool:
    """A host in this process that measures what its jobs take."""

    report: Callable[[str], None]

    def __init__(self, plan: Plan) -> None:
        self.host = Host(plan)
        self.operations: _Operations | None = None
        self.training, self.jobs = _Sums(), _Sums()

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Reply]]:
        """Do one job after the other."""
        for job in jobs:
            before = _now(self.operations)
            reply = self.host.handle(job)
            after = _now(self.operations)
            self.jobs.add(after, before)
            if isinstance(job, Train):
                self.training.add(after, before)
            yield job, reply

    def broadcast(self, job: Job) -> None:
        """Do a job."""
        self.host.handle(job)

    def close(self) -> None:
        """Nothing to end."""


class _MeasuredRun:
    """A run of a plan in this process whose rounds are measured."""

    def __init__(self, plan: Plan) -> None:
        self.pool = _MeasuredPool(plan)
        self.federation = Federation(plan, self.pool)
        self.federation.start_trial(0)
        self.number = 0

    def round(self, *, counted: bool = False) -> Spent:
        """Run the next round; with ``counted``, count its operations, which makes it slower."""
        self.pool.training, self.pool.jobs, whole = _Sums(), _Sums(), _Sums()
        operations = _Operations() if counted else None
        self.pool.operations = operations
        with operations or nullcontext():
            before = _now(operations)
            self.federation.round(self.number)
            whole.add(_now(operations), before)
        self.number += 1
        trained, jobs = self.pool.training, self.pool.jobs
        return Spent(
            client_seconds=trained.seconds,
            server_seconds=whole.seconds - jobs.seconds,
            client_calls=trained.calls,
            server_calls=whole.calls - jobs.calls,
            client_multiply_adds=trained.multiply_adds,
            server_multiply_adds=whole.multiply_adds - jobs.multiply_adds,
        )


def step_plan(runs: ToyRuns, models: Sequence[str] = MODELS) -> Plan:
    """Plan the measured run of a method with the first model group that it takes.

    Raises:
        ProtoflError: The method refuses the run.
    """
    rounds = FIRST + PAIRS + 2  # the last one, which is evaluated, is not run
    # Costs do not depend on the learning rate, but a loss that diverges ends the run.
    options = {"rounds": rounds, "eval_every": rounds, "batch_size": BATCH, "lr": 0.001}
    return plan_of(runs, CLASSES, (SAMPLES, SAMPLES), SIDE, [*models], **options)


def measure_cost(runs: ToyRuns) -> StepCost:
    """Measure rounds of a method and of ``local`` in turn.

    Raises:
        ProtoflError: The method refuses the run, or fails.
    """
    with toy_runs(BASELINE) as baseline_runs:
        plan = step_plan(runs)
        models = plan.settings.models
        pair = [_MeasuredRun(plan), _MeasuredRun(step_plan(baseline_runs, [models]))]
        for _ in range(FIRST):
            for run in pair:
                run.round()
        times = [(pair[0].round(), pair[1].round()) for _ in range(PAIRS)]
        method, baseline = (run.round(counted=True) for run in pair)
    ratios = tuple(one.client_seconds / other.client_seconds for one, other in times)
    seconds = median(one.server_seconds for one, _ in times)
    return StepCost(method, baseline, ratios, seconds, models)
