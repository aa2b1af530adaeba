"""CUDA graphs: a training step is recorded once and replayed as one launch.

A net of many small kernels spends its time on launching them. Here the step (forward, loss,
gradients, update) is captured once for each architecture, shape of a batch and composition, on
fixed memory into which each client's weights, batches and tables are copied. So one capture serves
all clients of an architecture, in all rounds. Several clients train at once on CUDA streams.
Elsewhere the step itself runs again on the same memory, and every operation is compared with those
of its first run (`protofl.backends.StepTrace`): slower than ``eager``, for trying it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

import protofl as pf
from protofl_plugins.engines import stepping
from protofl_plugins.engines.eager import Fallback
from protofl_plugins.engines.stepping import Tree, tensors_of
from protofl_plugins.engines.updates import Update

PROGRAMS = 16
"""Programs that a stage keeps from client to client, and stages that differ only in plain values of
modules. With one more, all programs of all stages are dropped together: in some versions of torch,
dropping one graph frees the cuBLAS workspace of other graphs captured on its stream (pytorch issue
193402), and torch gives a stream to more than one user after 32."""

WARM_UP = 3
"""Runs before a capture; PyTorch's notes on CUDA graphs ask for a few on a side stream, in which
libraries choose their algorithms. All but the first are compared with each other, at least two."""

Inputs = tuple[Tensor, Tensor, Tensor, Tree]
"""Inputs of a step: samples, labels, rows, and the losses' ``constants``."""


class CUDAGraphs:
    """Training steps captured in CUDA graphs, several clients at once on streams."""

    replays = True

    class Config(pf.Config):
        """Options."""

        streams: int = pf.Field(
            2, ge=1, description="clients trained at once, each on a stream in memory of its own"
        )
        last: Literal["capture", "plain"] = pf.Field(
            "capture", description="a smaller last batch: captured too, or its kernels one by one"
        )

    def __init__(self) -> None:
        self._stages: dict[tuple[stepping.Kind, int], Stage] = {}
        self._fallback = Fallback("cuda-graphs")

    @pf.hookimpl
    def choose_groups(self, architectures: list[str], config: Config) -> list[list[int]]:
        """`streams` clients at a time, of any architectures."""
        places, size = range(len(architectures)), config.streams
        return [[*places[at : at + size]] for at in range(0, len(places), size)]

    @pf.hookimpl
    def train(self, job: pf.backends.TrainJob, config: Config) -> dict[str, float]:
        """Train one client."""
        return self.train_group([job], config)[0]

    @pf.hookimpl
    def train_group(
        self, jobs: list[pf.backends.TrainJob], config: Config
    ) -> list[dict[str, float]]:
        """Train each client on its own stream."""
        if not jobs[0].plain:
            return self._fallback.by_torch(jobs)
        return self._fallback.train(jobs, partial(self._on_stages, config))

    def _on_stages(
        self, config: Config, jobs: list[pf.backends.TrainJob]
    ) -> list[dict[str, float]]:
        kinds = [stepping.kind_of(job, rates=not job.scheduled) for job in jobs]
        keys = [(kind, kinds[:place].count(kind)) for place, kind in enumerate(kinds)]
        pairs = list(zip(jobs, keys, strict=True))
        if any(stage.is_full for stage in self._stages.values()) or self._too_many(keys):
            self._drop_all(jobs[0].device)
        try:
            for job, key in pairs:
                if key not in self._stages:
                    self._stages[key] = Stage(job, plain_last=config.last == "plain")
                with job.stream():
                    self._stages[key].train(job)
            return [self._stages[key].end(job) for job, key in pairs]
        except Exception:
            self._drop_all(jobs[0].device)  # their memory is free before eager takes some
            raise

    def _too_many(self, keys: list[tuple[stepping.Kind, int]]) -> bool:
        """Return True if new stages would differ from many others only in modules' values."""
        bases = Counter((kind.base, place) for kind, place in {*self._stages, *keys})
        return max(bases.values()) > PROGRAMS

    def _drop_all(self, device: torch.device) -> None:
        """Drop all stages with their graphs, none of which is at work any more."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self._stages.clear()


class Stage:
    """Fixed memory for the training of clients of one kind, one after the other.

    It holds copies of a client's modules, an optimiser, and its steps as *programs*: one for each
    shape of a batch and of what the losses are given, with fixed memory for both.

    Args:
        job: The first client; others must be of its kind.
        plain_last: Whether batches smaller than usual have their kernels launched one by one.
    """

    def __init__(self, job: pf.backends.TrainJob, *, plain_last: bool) -> None:
        client_whole, cuda = job.whole(), job.device.type == "cuda"
        self.whole, self.precision = deepcopy(client_whole), job.precision
        names = stepping.groups_by_name(job, client_whole)
        named = dict(self.whole.named_parameters())
        groups = [([named[n] for n in each], lr) for each, lr in names]
        self.trained = [p for parameters, _ in groups for p in parameters]
        self.update = Update(job, groups, fixed=True)
        self._tensors = list(tensors_of(self.whole).values())
        self._least = job.batch_size if plain_last else 0
        self._stream: Any = torch.cuda.Stream(job.device) if cuda else None  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle() if cuda else None
        self._programs: dict[str, _Program] = {}  # none is dropped while the stage lives
        self._checks = job.checks
        self._used: list[_Program] = []

    def train(self, job: pf.backends.TrainJob) -> None:
        """Launch all steps of a client on the stage's stream, which may still be at work then."""
        if self._stream is None:
            self._launch(job)
            return
        before = torch.cuda.get_rng_state(job.device)
        self._stream.wait_stream(torch.cuda.current_stream(job.device))
        with torch.cuda.stream(self._stream):
            self._launch(job)
        # Graphs read a generator's seed in one place, where the next client's is written.
        if not torch.equal(torch.cuda.get_rng_state(job.device), before):
            self._stream.synchronize()

    def _launch(self, job: pf.backends.TrainJob) -> None:
        torch._foreach_copy_(self._tensors, list(tensors_of(job.whole()).values()))
        for tensor in self.update.state:
            tensor.zero_()
        self.update.set_rates([lr for _, lr in job.groups])
        chosen: dict[torch.Size, _Program] = {}  # within a phase only the batches' shapes differ
        for number, batch in enumerate(job.batches()):
            inputs = batch.x, batch.y, batch.index, job.loss.constants(number)
            program = chosen.get(batch.x.shape)
            if program is None:
                program = chosen[batch.x.shape] = self._program(job, inputs)
            program.run(inputs)
            if job.after_batch is not None:
                output = program.output
                seen = pf.Output(output.features.clone(), output.logits.clone())
                job.after_batch(batch, seen)  # which may keep what it sees
        self._used = list(chosen.values())

    def end(self, job: pf.backends.TrainJob) -> dict[str, float]:
        """Give the client its weights; each loss term's sum over its samples."""
        if self._stream is not None:
            torch.cuda.current_stream(job.device).wait_stream(self._stream)
        torch._foreach_copy_(list(tensors_of(job.whole()).values()), self._tensors)
        sums: dict[str, Tensor] = {}
        for program in self._used:
            for label, value in program.sums.items():
                sums[label] = sums.get(label, 0) + value
        return stepping.numbers(sums)

    def _program(self, job: pf.backends.TrainJob, inputs: Inputs) -> _Program:
        """Return the program for a step's inputs, recorded if necessary, with zero sums."""
        key = stepping.outline(inputs)
        result = self._programs.get(key) or _Program(self, job, inputs)
        self._programs[key] = result
        for value in result.sums.values():
            value.zero_()
        return result

    @property
    def is_full(self) -> bool:
        """True if the stage has more programs than it should keep."""
        return len(self._programs) > PROGRAMS

    def recorded(
        self, step: Callable[[], None], memory: Callable[[], list[Tensor]], x: Tensor
    ) -> Callable[[], None]:
        """Record a step and leave the stage as it was; a call of the result runs the step.

        Args:
            step: The step; what it keeps is created when it first runs.
            memory: Returns the fixed memory that it uses besides that of the stage.
            x: Its samples.

        Raises:
            NotReplayable: A replay would compute something else than the step.
        """
        changed = [*self._tensors, *self.update.state]
        kept = [tensor.clone() for tensor in changed]

        def fixed() -> list[Tensor]:
            return [*self._tensors, *self.update.memory, *memory()]

        run: Callable[[], None] = step
        with torch.random.fork_rng(devices=[x.device] * x.is_cuda):
            if x.is_cuda and len(x) >= self._least and not self._checks:
                with torch.cuda.device(x.device):
                    run = _Graph(step, fixed, self._pool)
            else:
                step()
                if self._checks or not x.is_cuda:
                    run = pf.backends.StepTrace(step, fixed())
        torch._foreach_copy_(changed, kept)
        return run


class _Program:
    """A step on a stage, for one outline of its inputs.

    Attributes:
        sums: Each loss term's sum over samples; grows with every run.
        output: What the model made of the last batch; the next run may write into its memory.
    """

    def __init__(self, stage: Stage, job: pf.backends.TrainJob, inputs: Inputs) -> None:
        self.sums: dict[str, Tensor] = {}
        self.output: pf.Output
        self._stage, self._terms = stage, job.loss_on(stage.whole).terms
        fixed: Inputs = tree_map_only(Tensor, lambda t: t.detach().clone(), inputs)
        self._places = [(tensor, stepping.Last()) for tensor in _tensors(fixed)]
        self._inputs = [tensor for tensor, _ in self._places]
        x, y, index, self._constants = fixed
        self._batch = pf.Batch(x, y, index, job.phase.name)
        self._replay = stage.recorded(self._step, self._memory, self._batch.x)

    def _memory(self) -> list[Tensor]:
        return [*self._inputs, *self.sums.values()]

    def _step(self) -> None:
        """The step itself: reads and writes fixed memory only."""
        stage, batch, model = self._stage, self._batch, self._stage.whole.model
        output = stepping.forward(model.features, model.head, batch.x, stage.precision)
        terms = self._terms(batch, output, self._constants)
        stage.update(torch.autograd.grad(stepping.total(terms), stage.trained, allow_unused=True))
        for label, term in terms.items():
            if label not in self.sums:  # in the first run, before any is captured
                self.sums[label] = torch.zeros((), dtype=torch.float64, device=term.device)
            self.sums[label].add_(term.detach().double(), alpha=len(batch.x))
        self.output = pf.Output(output.features.detach(), output.logits.detach())

    def run(self, inputs: Inputs) -> None:
        """Copy in what belongs to this step and is not there yet, and run the recorded step."""
        for (place, last), tensor in zip(self._places, _tensors(inputs), strict=True):
            if not last.same([tensor]):
                place.copy_(tensor.detach())
        self._replay()


class _Graph:
    """A step captured in a CUDA graph on the current stream; a call replays it there.

    It reads and writes fixed memory alone and never waits; graphs of a pool never run together.
    The capture is on the stream of the replays: a cuBLAS workspace belongs to a stream, and graphs
    that share one destroy each other's sums when they run at the same time.

    Args:
        step: The step.
        fixed: Returns its fixed memory, once it has run.
        pool: The graph's memory pool.

    Raises:
        NotReplayable: A replay would compute something else than the step.
    """

    def __init__(
        self,
        step: Callable[[], None],
        fixed: Callable[[], list[Tensor]],
        pool: Any,  # noqa: ANN401 - torch's
    ) -> None:
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            step()
            trace = pf.backends.StepTrace(step, fixed())
            for _ in range(WARM_UP - 1):
                trace()
        current.wait_stream(side)
        self._constants = trace.constants  # whose memory must not become that of others
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=current):
            step()

    def __call__(self) -> None:
        """Launch the step on the current stream."""
        self._graph.replay()


def _tensors(tree: Inputs) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
