"""Training a group of clients of one kind in lock-step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import protofl as pf
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from protofl_plugins.engines.stepping import forward, trained_names
from protofl_plugins.engines.updates import TensorUpdate


@dataclass
class _Runner:
    """A client of the group: its batches, the next one, and the number of its step."""

    job: pf.TrainJob
    batches: Iterator[pf.Batch]
    batch: pf.Batch | None
    step: int = 0

    def advance(self) -> None:
        self.batch, self.step = next(self.batches, None), self.step + 1


class Lockstep:
    """A group of clients whose weights are stacked.

    The stacks are copies: the clients' own weights change when all is done.

    Args:
        jobs: Two or more, alike in all but weights, data and tensors that their losses read.
    """

    def __init__(self, jobs: list[pf.TrainJob]) -> None:
        # Clients with many steps first, so that those still training are neighbours.
        self._order = sorted(range(len(jobs)), key=lambda place: -jobs[place].steps)
        self._jobs = [jobs[place] for place in self._order]
        self._wholes = [job.whole() for job in self._jobs]
        self._whole = self._wholes[0]
        self._stand_in = self._jobs[0].stand_in(self._whole, *self._jobs[1:])
        self._parameters = _stacked([dict(w.named_parameters()) for w in self._wholes])
        self._buffers = _stacked([dict(w.named_buffers()) for w in self._wholes])
        groups = trained_names(self._jobs[0], self._whole)
        self._trained = [name for names, _ in groups for name in names]
        self._update = TensorUpdate(
            [([self._parameters[name] for name in names], lr) for names, lr in groups],
            self._jobs[0].optimizer,
            self._jobs[0].momentum,
            clients=len(jobs),
            clip=self._jobs[0].clip,
        )
        self._entries: dict[Any, tuple[Any, list[Tensor]]] = {}
        self._stamp: object = None
        self._known: set[torch.Size] = set()
        self._sums: dict[str, Tensor] = {}
        self._seen: dict[str, set[int]] = {}

    def train(self) -> list[dict[str, float]]:
        """All batches of all clients; the sums of each client's loss terms."""
        runners = []
        for job in self._jobs:
            batches = job.batches()
            runners.append(_Runner(job, batches, next(batches, None)))
        with warnings.catch_warnings():
            # Operations without a batching rule are carried out one by one: slow and right.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            while run := self._next_run(runners):
                self._step(run.start, [runners[place] for place in run])
        self._write_back()
        return self._read_sums()

    def _next_run(self, runners: list[_Runner]) -> range:
        """Neighbours whose next batches have one shape.

        Batches of another size than the usual go first, so that all clients are back in step.
        """
        live = [place for place, runner in enumerate(runners) if runner.batch is not None]
        if not live:
            return range(0)
        shapes = {place: _batch(runners[place]).x.shape for place in live}
        usual = self._jobs[0].batch_size
        odd = [place for place in live if shapes[place][0] != usual]
        start = odd[0] if odd else live[0]
        stop = start + 1
        while stop in shapes and shapes[stop] == shapes[start]:
            stop += 1
        return range(start, stop)

    def _step(self, start: int, run: list[_Runner]) -> None:
        stop = start + len(run)
        batches = [_batch(runner) for runner in run]
        x, y, index = (
            torch.stack([getattr(batch, name) for batch in batches]) for name in ("x", "y", "index")
        )
        draws = [runner.job.loss.draws(runner.step) for runner in run]
        tree = draws[0]
        leaves = [pf.StandIn.leaves(drawn) for drawn in draws]
        drawn = [torch.stack(list(same)) for same in zip(*leaves, strict=True)]
        parameters = {
            name: stack.detach()[start:stop].requires_grad_(name in self._trained)
            for name, stack in self._parameters.items()
        }
        buffers = {name: stack[start:stop] for name, stack in self._buffers.items()}

        total, terms, features, logits = self._forward(
            start, stop, parameters, buffers, (x, y, index), (tree, drawn)
        )
        gradients = torch.autograd.grad(
            total.sum(), [parameters[name] for name in self._trained], allow_unused=True
        )
        for place, runner in enumerate(run):
            if runner.job.after_batch is not None:
                seen = pf.Output(features[place].detach(), logits[place].detach())
                runner.job.after_batch(batches[place], seen)
        self._update.at(start, stop)(gradients)
        for label, value in terms.items():
            if label not in self._sums:
                self._sums[label] = torch.zeros(
                    len(self._jobs), dtype=torch.float64, device=value.device
                )
                self._seen[label] = set()
            self._sums[label][start:stop] += value.detach().double() * x.shape[1]
            self._seen[label].update(range(start, stop))
        for runner in run:
            runner.advance()

    def _forward(
        self,
        start: int,
        stop: int,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        batch: tuple[Tensor, Tensor, Tensor],
        draws: tuple[Any, list[Tensor]],
    ) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor]:
        """The mapped forward pass, again until all entries are there that the loss asks for."""
        job, stand_in, model = self._jobs[0], self._stand_in, self._whole.model
        loss = job.loss.seen_by(stand_in.view)
        self._refresh()
        fresh = batch[0].shape not in self._known
        before = {name: buffer.clone() for name, buffer in buffers.items()} if fresh else {}

        def one(
            parameters: dict[str, Tensor],
            buffers: dict[str, Tensor],
            x: Tensor,
            y: Tensor,
            index: Tensor,
            drawn: list[Tensor],
            entries: list[list[Tensor]],
        ) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor]:
            stand_in.values = {
                path: pf.StandIn.with_leaves(tree, iter(own))
                for (path, (tree, _)), own in zip(self._entries.items(), entries, strict=True)
            }
            now = pf.StandIn.with_leaves(draws[0], iter(drawn))

            def inside() -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor]:
                batch = pf.Batch(x, y, index, job.phase.name)
                found = forward(model, loss.terms, batch, now, job.precision)
                return found.total, found.terms, found.output.features, found.output.logits

            result: tuple[Tensor, dict[str, Tensor], Tensor, Tensor] = functional_call(
                self._whole, {**parameters, **buffers}, (inside,)
            )
            return result

        while True:
            entries = [[leaf[start:stop] for leaf in own] for _, own in self._entries.values()]
            try:
                found = vmap(one)(parameters, buffers, *batch, draws[1], entries)
            except pf.StandIn.Wanted as wanted:
                self._add_entry(wanted.path)
                for name, buffer in before.items():
                    buffers[name].copy_(buffer)  # the pass has moved BatchNorm's statistics
                continue
            finally:
                stand_in.values = {}
            self._known.add(batch[0].shape)
            result: tuple[Tensor, dict[str, Tensor], Tensor, Tensor] = found
            return result

    def _add_entry(self, path: Any) -> None:  # noqa: ANN401 - a path of `protofl.StandIn`
        trees = self._stand_in.collect(path)
        outlines = {repr(pf.StandIn.outline(tree)) for tree in trees}
        if len(outlines) > 1:
            raise pf.StandIn.Unfit(f"clients differ in the shape of {path[0]} {path[2]!r}")
        leaves = [pf.StandIn.leaves(tree) for tree in trees]
        same = [torch.stack([t.detach() for t in each]) for each in zip(*leaves, strict=True)]
        self._entries[path] = trees[0], same
        self._stamp = self._versions()

    def _refresh(self) -> None:
        """Stack anew what ``after_batch`` has changed."""
        if self._jobs[0].after_batch is not None and self._stamp != self._versions():
            for path in list(self._entries):
                self._add_entry(path)

    def _versions(self) -> object:
        trees = [self._stand_in.collect(path) for path in self._entries]
        return [(id(leaf), leaf._version) for tree in trees for leaf in pf.StandIn.leaves(tree)]

    @torch.no_grad()
    def _write_back(self) -> None:
        for place, whole in enumerate(self._wholes):
            parameters, buffers = dict(whole.named_parameters()), dict(whole.named_buffers())
            for name in self._trained:
                parameters[name].copy_(self._parameters[name][place])
            for name, stack in self._buffers.items():
                buffers[name].copy_(stack[place])

    def _read_sums(self) -> list[dict[str, float]]:
        """One copy from the device for all clients and terms."""
        rows = torch.stack(list(self._sums.values())).tolist() if self._sums else []
        by_label = dict(zip(self._sums, rows, strict=True))
        found: list[dict[str, float]] = [{} for _ in self._jobs]
        for place, original in enumerate(self._order):
            found[original] = {
                label: row[place] for label, row in by_label.items() if place in self._seen[label]
            }
        return found


def _batch(runner: _Runner) -> pf.Batch:
    assert runner.batch is not None
    return runner.batch


def _stacked(each: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([own[name].detach() for own in each]) for name in each[0]}
