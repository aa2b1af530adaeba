"""Stages: fixed memory on which clients of one kind are trained, one after the other.

A stage holds copies of a client's modules and an optimiser. A client's weights are copied in before
its training and out after it. The steps on a stage are *programs*: one for each shape of a batch
and of what the losses are given, with fixed memory for both. On a CUDA device a program is captured
in a CUDA graph; elsewhere the step itself runs again on the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import protofl as pf
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from protofl_plugins.engines.stepping import (
    Last,
    Tree,
    forward,
    groups_by_name,
    numbers,
    outline,
    tensors_of,
    total,
)
from protofl_plugins.engines.updates import Update

PROGRAMS = 16
"""Programs that a stage keeps; the one that was not used for longest goes first."""

WARM_UP = 3
"""Runs before a capture; PyTorch's notes on CUDA graphs ask for a few on a side stream, in which
libraries choose their algorithms and take their workspaces."""


Inputs = tuple[Tensor, Tensor, Tensor, Tree]
"""What a step reads: samples, labels, rows, and what the losses are given."""


class Stage:
    """Fixed memory for the training of clients of one kind.

    Args:
        job: The first client; others must be of its kind.
        plain_last: Whether batches smaller than usual have their kernels launched one by one.
    """

    def __init__(self, job: pf.TrainJob, *, plain_last: bool) -> None:
        own, cuda = job.whole(), job.device.type == "cuda"
        self.whole, self.precision = deepcopy(own), job.precision
        parameters = dict(self.whole.named_parameters())
        groups = [([parameters[n] for n in names], lr) for names, lr in groups_by_name(job, own)]
        self.trained = [p for parameters, _ in groups for p in parameters]
        self.update = Update(job, groups, fixed=True)
        self._tensors = list(tensors_of(self.whole).values())
        self._least = job.batch_size if plain_last else 0
        self._stream: Any = torch.cuda.Stream(job.device) if cuda else None  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle() if cuda else None
        self._programs: dict[str, _Program] = {}
        self._used: list[_Program] = []

    def train(self, job: pf.TrainJob) -> None:
        """Launch all steps of a client on the stage's stream, which may still be at work then."""
        before = _random_state(job.device)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(job.device))
        with torch.cuda.stream(self._stream):
            self._launch(job)
        # Graphs read a generator's seed in one place, where the next client's is written.
        if self._stream is not None and not torch.equal(_random_state(job.device), before):
            self._stream.synchronize()

    def _launch(self, job: pf.TrainJob) -> None:
        torch._foreach_copy_(self._tensors, list(tensors_of(job.whole()).values()))
        for tensor in self.update.state:
            tensor.zero_()
        chosen: dict[torch.Size, _Program] = {}  # within a phase only the batches' shapes differ
        for number, batch in enumerate(job.batches()):
            inputs = batch.x, batch.y, batch.index, job.loss.given(number)
            program = chosen.get(batch.x.shape)
            if program is None:
                program = chosen[batch.x.shape] = self._program(job, inputs)
            program.run(inputs)
            if job.after_batch is not None:
                job.after_batch(batch, program.output)
        self._used = list(chosen.values())

    def end(self, job: pf.TrainJob) -> dict[str, float]:
        """Give the client its weights; each loss term's sum over its samples."""
        if self._stream is not None:
            torch.cuda.current_stream(job.device).wait_stream(self._stream)
        torch._foreach_copy_(list(tensors_of(job.whole()).values()), self._tensors)
        sums: dict[str, Tensor] = {}
        for program in self._used:
            for label, value in program.sums.items():
                sums[label] = sums.get(label, 0) + value
        return numbers(sums)

    def _program(self, job: pf.TrainJob, inputs: Inputs) -> _Program:
        """The program for a step's inputs, recorded where there is none; its sums are zero."""
        key = outline(inputs)
        found = self._programs.pop(key, None) or _Program(self, job, inputs)
        self._programs[key] = found
        if len(self._programs) > PROGRAMS:
            del self._programs[next(iter(self._programs))]
        for value in found.sums.values():
            value.zero_()
        return found

    def recorded(self, step: Callable[[], None], x: Tensor) -> Callable[[], None]:
        """Record a step on samples and leave the stage as it was; a call runs the step."""
        changed = [*self._tensors, *self.update.state]
        kept = [tensor.clone() for tensor in changed]
        with torch.random.fork_rng(devices=[x.device] * x.is_cuda):
            if x.is_cuda and len(x) >= self._least:
                with torch.cuda.device(x.device):
                    step = _captured(step, self._pool)
            else:
                step()
        torch._foreach_copy_(changed, kept)
        return step


class _Program:
    """A step on a stage, for one outline of its inputs.

    Attributes:
        sums: Each loss term's sum over samples; grows with every run.
        output: What the model made of the last batch.
    """

    def __init__(self, stage: Stage, job: pf.TrainJob, inputs: Inputs) -> None:
        self.sums: dict[str, Tensor] = {}
        self.output: pf.Output
        self._stage, self._terms = stage, job.loss_on(stage.whole).terms
        fixed: Inputs = tree_map_only(Tensor, _fixed, inputs)
        self._places = [(tensor, Last()) for tensor in _tensors(fixed)]
        x, y, index, self._given = fixed
        self._batch = pf.Batch(x, y, index, job.phase.name)
        self._replay = stage.recorded(self._step, self._batch.x)

    def _step(self) -> None:
        """The step itself: reads and writes fixed memory only."""
        stage, batch, model = self._stage, self._batch, self._stage.whole.model
        output = forward(model.features, model.head, batch.x, stage.precision)
        terms = self._terms(batch, output, self._given)
        stage.update(torch.autograd.grad(total(terms), stage.trained, allow_unused=True))
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


def _captured(step: Callable[[], None], pool: Any) -> Callable[[], None]:  # noqa: ANN401
    """A step captured in a CUDA graph; a call launches it on the current stream.

    Args:
        step: Reads and writes fixed memory alone, launches kernels and never waits for them.
        pool: The memory pool of graphs that never run at the same time.
    """
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()
    return graph.replay


def _tensors(tree: Inputs) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _fixed(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.preserve_format)


def _random_state(device: torch.device) -> Tensor:
    """Of a device's generator."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
