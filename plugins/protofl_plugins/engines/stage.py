"""Stages: fixed memory on which clients of one kind are trained, one after the other.

A stage holds copies of a client's modules, an optimiser and the sums of loss terms. A client's
weights are copied in before its training and out after it. The steps on a stage are *programs*:
one for each shape of a batch and for all else that a step depends on, each with fixed memory for
its batch, its draws and the entries that its loss reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import protofl as pf
import torch
from torch import Tensor
from torch.nn import Module

from protofl_plugins.engines.recorder import Recorder
from protofl_plugins.engines.stepping import Draws, forward, kind_of, trained_names
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
        self.stand_in = job.stand_in(self.whole)
        self.stand_in.stand_for()
        self.precision = job.precision
        self.random = False
        """Whether a step draws from torch's global generators."""
        self.sums: dict[str, Tensor] = {}
        names = dict(self.whole.named_parameters())
        groups = [([names[n] for n in own], lr) for own, lr in trained_names(job, own)]
        self.trained = [p for parameters, _ in groups for p in parameters]
        self.update = TensorUpdate(groups, job.optimizer, job.momentum, clip=job.clip)
        self._record = record
        self._programs: OrderedDict[Hashable, list[_Program]] = OrderedDict()
        self._chosen: dict[Hashable, _Program] = {}
        self._seen: set[str] = set()
        self.turn = 0
        """Counts the clients that the stage has held."""
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
        self.stand_in.stand_for(job)
        self._modes, self._seen, self._chosen = own.modes, set(), {}
        self.turn += 1

    def program(self, job: pf.TrainJob, batch: pf.Batch, draws: Draws) -> _Program:
        """The program for a batch, recorded where there is none yet."""
        chosen = self._chosen.get(batch.x.shape)
        if chosen is None or (job.after_batch is not None and not chosen.serves()):
            chosen = self._chosen[batch.x.shape] = self._find(job, batch, draws)
        return chosen

    def _find(self, job: pf.TrainJob, batch: pf.Batch, draws: Draws) -> _Program:
        shapes = pf.StandIn.outline([batch.x, batch.y, batch.index, draws])
        key = repr((job.phase, job.loss.kind, self._modes, shapes))
        found = self._programs.setdefault(key, [])
        self._programs.move_to_end(key)
        for program in found:
            if program.serves():
                return program
        program = _Program(self, job, batch, draws)
        program.record(self._record)
        found.append(program)
        while sum(map(len, self._programs.values())) > PROGRAMS:
            oldest = next(iter(self._programs.values()))
            oldest.pop(0)
            if not oldest:
                self._programs.popitem(last=False)
        return program

    def step(self, job: pf.TrainJob, batch: pf.Batch, number: int) -> None:
        """One step of the client that the stage holds."""
        draws = job.loss.draws(number)
        program = self.program(job, batch, draws)
        program.feed(batch, draws, changing=job.after_batch is not None)
        program.replay()
        self._seen |= program.labels
        if job.after_batch is not None:
            job.after_batch(batch, program.output)

    @torch.no_grad()
    def end(self, job: pf.TrainJob) -> tuple[list[str], Tensor]:
        """Give the client its weights back; its loss terms and their sums, on the device."""
        torch._foreach_copy_(_tensors(job.whole()), _tensors(self.whole))
        self.stand_in.stand_for()
        labels = sorted(self._seen)
        return labels, torch.stack([self.sums[label] for label in labels])

    def mutable(self) -> list[Tensor]:
        """All that a step changes."""
        return [*self.trained, *self.whole.buffers(), *self.update.state, *self.sums.values()]


class _Program:
    """A step on a stage for one shape of batch."""

    def __init__(self, stage: Stage, job: pf.TrainJob, batch: pf.Batch, draws: Draws) -> None:
        self._stage = stage
        self._loss = job.loss.seen_by(stage.stand_in.view)
        self._batch = pf.Batch(_fixed(batch.x), _fixed(batch.y), _fixed(batch.index), batch.phase)
        leaves = pf.StandIn.leaves(draws)
        self._draws: Draws = pf.StandIn.with_leaves(draws, map(_fixed, leaves))
        self._values: dict[Any, Any] = {}
        self._outlines: dict[Any, str] = {}
        self._facts: dict[Any, Any] = {}
        self._stamp: object = None
        self._turn = -1
        self._recorder: Recorder
        self.labels: set[str] = set()
        self.output: pf.Output

    def serves(self) -> bool:
        """Whether the client that the stage holds finds here all that its loss reads."""
        stand_in = self._stage.stand_in
        if not stand_in.true(self._facts):
            return False
        return all(_outline(stand_in, path) == seen for path, seen in self._outlines.items())

    def record(self, record: Record) -> None:
        """Find out what the step reads, run it for warming up, record it; change nothing."""
        stage, batch = self._stage, self._batch
        devices = [batch.x.device] if batch.x.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            state = _random_state(devices)
            with _unchanged([*stage.whole.buffers()]):
                self._discover(batch, self._draws)
            after = _random_state(devices)
            stage.random |= state != after
            stage.stand_in.values, stage.stand_in.recorded = self._values, self._facts
            try:
                with _unchanged(stage.mutable()):
                    self._recorder = record(self._step, len(batch.x))
            finally:
                stage.stand_in.values, stage.stand_in.recorded = {}, None

    def _discover(self, batch: pf.Batch, draws: Draws) -> None:
        """Run the forward pass until the loss finds all entries that it asks for."""
        stand_in = self._stage.stand_in
        stand_in.values, stand_in.facts = self._values, {}
        while True:
            try:
                found = forward(
                    self._stage.whole.model, self._loss.terms, batch, draws, self._stage.precision
                )
                break
            except pf.StandIn.Wanted as wanted:
                path = wanted.path
                (tree,) = stand_in.collect(path)
                self._outlines[path] = _outline(stand_in, path)
                leaves = pf.StandIn.leaves(tree)
                self._values[path] = pf.StandIn.with_leaves(tree, map(_fixed, leaves))
        self._facts = dict(stand_in.facts)
        self.labels = set(found.terms)
        for label, term in found.terms.items():
            if label not in self._stage.sums:
                self._stage.sums[label] = torch.zeros((), dtype=torch.float64, device=term.device)

    def _step(self) -> None:
        """The step itself: reads and writes fixed memory only."""
        stage = self._stage
        found = forward(
            stage.whole.model, self._loss.terms, self._batch, self._draws, stage.precision
        )
        gradients = torch.autograd.grad(found.total, stage.trained, allow_unused=True)
        stage.update(gradients)
        size = len(self._batch.x)
        for label, term in found.terms.items():
            stage.sums[label].add_(term.detach().double(), alpha=size)
        output = found.output
        self.output = pf.Output(output.features.detach(), output.logits.detach())

    @torch.no_grad()
    def feed(self, batch: pf.Batch, draws: Draws, *, changing: bool) -> None:
        """Copy in what belongs to this step, and entries that are not those of the last one.

        Args:
            batch: The step's batch.
            draws: The step's draws.
            changing: Whether entries may change from step to step.
        """
        self._batch.x.copy_(batch.x)
        self._batch.y.copy_(batch.y)
        self._batch.index.copy_(batch.index)
        _copy(self._draws, draws)
        if self._turn == self._stage.turn and not changing:
            return
        stand_in = self._stage.stand_in
        trees = {path: stand_in.collect(path)[0] for path in self._values}
        stamp = [(id(leaf), leaf._version) for leaf in pf.StandIn.leaves(trees)]
        if self._turn != self._stage.turn or stamp != self._stamp:
            _copy(self._values, trees)
            self._turn, self._stamp = self._stage.turn, stamp

    def replay(self) -> None:
        """Run the recorded step."""
        stand_in = self._stage.stand_in
        stand_in.values, stand_in.recorded = self._values, self._facts
        try:
            self._recorder.replay()
        finally:
            stand_in.values, stand_in.recorded = {}, None


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


def _copy(target: Any, source: Any) -> None:  # noqa: ANN401 - trees of tensors
    pairs = zip(pf.StandIn.leaves(target), pf.StandIn.leaves(source), strict=True)
    for old, new in pairs:
        old.copy_(new)


def _outline(stand_in: pf.StandIn, path: Any) -> str:  # noqa: ANN401 - a path of `StandIn`
    (tree,) = stand_in.collect(path)
    return repr(pf.StandIn.outline(tree))


def _random_state(devices: list[torch.device]) -> list[bytes]:
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
    return [state.numpy().tobytes() for state in states]
