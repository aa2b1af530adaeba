"""Stages: fixed memory on which clients of one kind are trained, one after the other.

A stage holds copies of a client's modules, an optimiser and the sums of loss terms. A client's
weights are copied in before its training and out after it. The steps on a stage are *programs*:
one for each shape of a batch and for all else that a step depends on, each with fixed memory for
its batch and what its loss is given.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy

import protofl as pf
import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_leaves, tree_map_only

from protofl_plugins.engines.recorder import Recorder
from protofl_plugins.engines.stepping import (
    Forward,
    Last,
    Tree,
    forward,
    kind_of,
    outline,
    trained_names,
)
from protofl_plugins.engines.updates import TensorUpdate

Record = Callable[[Callable[[], None], int], Recorder]
"""Makes a recorder of a step on batches of so many samples."""

PROGRAMS = 16
"""Programs that a stage keeps; the one that was not used for longest goes first."""


class Stage:
    """Fixed memory for the training of clients of one kind.

    Args:
        job: The first client; others must be of its kind (`fits`).
        record: Makes a recorder of a step; it may run the step for warming up.
        prepare: Called with the stage's copies of the modules (to compile them).
    """

    def __init__(
        self, job: pf.TrainJob, record: Record, prepare: Callable[[Module], None] | None = None
    ) -> None:
        own = job.whole()
        self.kind = kind_of(job, own)
        self.whole = deepcopy(own)
        self.precision = job.precision
        self.random = False
        """Whether a step draws from torch's global generators."""
        self.sums: dict[str, Tensor] = {}
        names = dict(self.whole.named_parameters())
        groups = [([names[n] for n in own], lr) for own, lr in trained_names(job, own)]
        self.trained = [p for parameters, _ in groups for p in parameters]
        self.update = TensorUpdate(groups, job.optimizer, job.momentum, clip=job.clip)
        self._record = record
        self._programs: OrderedDict[str, _Program] = OrderedDict()
        self._chosen: dict[torch.Size, _Program] = {}
        self._seen: set[str] = set()
        if prepare is not None:
            prepare(self.whole.model)
            for module in self.whole.slots.values():
                prepare(module)

    def fits(self, job: pf.TrainJob) -> bool:
        """Whether a client is of the stage's kind."""
        return kind_of(job, job.whole()) == self.kind

    # --- a client, from first to last -----------------------------------------------------------

    @torch.no_grad()
    def begin(self, job: pf.TrainJob) -> None:
        """Take in a client: its weights, its modes; a fresh optimiser."""
        own = job.whole()
        torch._foreach_copy_(_tensors(self.whole), _tensors(own))
        for mine, given in zip(self.whole.modules(), own.modules(), strict=True):
            mine.training = given.training
        for tensor in (*self.update.state, *self.sums.values()):
            tensor.zero_()
        self._modes, self._seen, self._chosen = own.modes, set(), {}

    def program(self, job: pf.TrainJob, batch: pf.Batch, given: Tree) -> _Program:
        """The program for a batch, recorded where there is none yet."""
        # Within a phase of a client only the batches' shapes differ.
        chosen = self._chosen.get(batch.x.shape)
        if chosen is None:
            chosen = self._chosen[batch.x.shape] = self._find(job, batch, given)
        return chosen

    def _find(self, job: pf.TrainJob, batch: pf.Batch, given: Tree) -> _Program:
        shapes = outline([batch.x, batch.y, batch.index, given])
        key = repr((job.phase, job.loss.kind, self._modes, shapes))
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = _Program(self, job, batch, given)
            found.record(self._record)
            if len(self._programs) > PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        return found

    def step(self, job: pf.TrainJob, batch: pf.Batch, number: int) -> None:
        """One step of the client that the stage holds."""
        given = job.loss.given(number)
        program = self.program(job, batch, given)
        program.replay(batch, given)
        self._seen |= program.labels
        if job.after_batch is not None:
            job.after_batch(batch, program.output)

    @torch.no_grad()
    def end(self, job: pf.TrainJob) -> tuple[list[str], Tensor]:
        """Give the client its weights back; its loss terms and their sums, on the device."""
        torch._foreach_copy_(_tensors(job.whole()), _tensors(self.whole))
        labels = sorted(self._seen)
        return labels, torch.stack([self.sums[label] for label in labels])

    def mutable(self) -> list[Tensor]:
        """All that a step changes."""
        return [*self.trained, *self.whole.buffers(), *self.update.state, *self.sums.values()]


class _Program:
    """A step on a stage, for one shape of batch and one outline of what the losses are given."""

    def __init__(self, stage: Stage, job: pf.TrainJob, batch: pf.Batch, given: Tree) -> None:
        self._stage = stage
        self._terms = job.loss_on(stage.whole).terms
        self._batch = pf.Batch(_fixed(batch.x), _fixed(batch.y), _fixed(batch.index), batch.phase)
        self._given: Tree = tree_map_only(Tensor, _fixed, given)
        self._places = [leaf for leaf in tree_leaves(self._given) if isinstance(leaf, Tensor)]
        self._last = [Last() for _ in self._places]
        self._recorder: Recorder
        self.labels: set[str] = set()
        self.output: pf.Output

    def record(self, record: Record) -> None:
        """Run the step for warming up and record it; change nothing."""
        stage, batch = self._stage, self._batch
        devices = [batch.x.device] if batch.x.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            state = _random_state(devices)
            with _unchanged([*stage.whole.buffers()]):
                terms = self._forward().terms
            stage.random |= state != _random_state(devices)
            self.labels = set(terms)
            for label in self.labels - stage.sums.keys():
                device = terms[label].device
                stage.sums[label] = torch.zeros((), dtype=torch.float64, device=device)
            with _unchanged(stage.mutable()):
                self._recorder = record(self._step, len(batch.x))

    def _forward(self) -> Forward:
        model, precision = self._stage.whole.model, self._stage.precision
        return forward(model, self._terms, self._batch, self._given, precision)

    def _step(self) -> None:
        """The step itself: reads and writes fixed memory only."""
        stage, found = self._stage, self._forward()
        gradients = torch.autograd.grad(found.total, stage.trained, allow_unused=True)
        stage.update(gradients)
        size = len(self._batch.x)
        for label, term in found.terms.items():
            stage.sums[label].add_(term.detach().double(), alpha=size)
        output = found.output
        self.output = pf.Output(output.features.detach(), output.logits.detach())

    @torch.no_grad()
    def replay(self, batch: pf.Batch, given: Tree) -> None:
        """Copy in what belongs to this step and is not there yet, and run the recorded step."""
        self._batch.x.copy_(batch.x)
        self._batch.y.copy_(batch.y)
        self._batch.index.copy_(batch.index)
        leaves = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
        for place, last, leaf in zip(self._places, self._last, leaves, strict=True):
            if not last.same(leaf):
                place.copy_(leaf)
        with torch.enable_grad():
            self._recorder.replay()


@contextmanager
def _unchanged(tensors: list[Tensor]) -> Iterator[None]:
    """Put tensors back as they were after the block, in their own memory."""
    before = [tensor.detach().clone() for tensor in tensors]
    yield
    with torch.no_grad():
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(old)


def _tensors(whole: Module) -> list[Tensor]:
    return [t.detach() for t in (*whole.parameters(), *whole.buffers())]


def _fixed(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.preserve_format)


def _random_state(devices: list[torch.device]) -> list[bytes]:
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
    return [state.numpy().tobytes() for state in states]
