"""Training a group of clients of one kind in lock-step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import protofl as pf
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from protofl_plugins.engines.stepping import Last, Tree, forward, trained_names
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


class _Stack:
    """A tensor of each client's loss, stacked; made anew only where one has changed."""

    def __init__(self, clients: int) -> None:
        self._last = [Last() for _ in range(clients)]
        self._start = -1
        self._stack: Tensor | None = None

    def of(self, start: int, tensors: Sequence[Tensor]) -> Tensor:
        """Those of neighbours from client ``start`` on."""
        last = self._last[start : start + len(tensors)]
        same = [own.same(tensor) for own, tensor in zip(last, tensors, strict=True)]
        stack = self._stack
        if stack is None or len(stack) != len(tensors) or start != self._start or not all(same):
            stack = self._stack = torch.stack([tensor.detach() for tensor in tensors])
            self._start = start
        return stack


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
        self._terms = self._jobs[0].loss_on(self._whole).terms
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
        self._stacks: dict[int, _Stack] = {}
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
        given = self._given(start, [runner.job.loss.given(runner.step) for runner in run])
        parameters = {
            name: stack.detach()[start:stop].requires_grad_(name in self._trained)
            for name, stack in self._parameters.items()
        }
        buffers = {name: stack[start:stop] for name, stack in self._buffers.items()}

        total, terms, features, logits = self._forward(parameters, buffers, (x, y, index), given)
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

    def _given(self, start: int, trees: list[Tree]) -> tuple[Any, list[Any], list[Tensor]]:
        """What the losses are given: the structure, one client's leaves, the stacked tensors."""
        leaves, structure = tree_flatten(trees[0])
        stacks = []
        for place, same in enumerate(zip(*map(tree_leaves, trees), strict=True)):
            if isinstance(same[0], Tensor):
                stack = self._stacks.setdefault(place, _Stack(len(self._jobs)))
                stacks.append(stack.of(start, same))
        return structure, leaves, stacks

    def _forward(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        batch: tuple[Tensor, Tensor, Tensor],
        given: tuple[Any, list[Any], list[Tensor]],
    ) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor]:
        """The mapped forward pass."""
        job, model = self._jobs[0], self._whole.model
        structure, leaves, stacks = given

        def one(
            parameters: dict[str, Tensor],
            buffers: dict[str, Tensor],
            x: Tensor,
            y: Tensor,
            index: Tensor,
            own: list[Tensor],
        ) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor]:
            tensors = iter(own)
            mine = [next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            tree: Tree = tree_unflatten(mine, structure)

            def inside() -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor]:
                batch = pf.Batch(x, y, index, job.phase.name)
                found = forward(model, self._terms, batch, tree, job.precision)
                return found.total, found.terms, found.output.features, found.output.logits

            result: tuple[Tensor, dict[str, Tensor], Tensor, Tensor] = functional_call(
                self._whole, {**parameters, **buffers}, (inside,)
            )
            return result

        found: tuple[Tensor, dict[str, Tensor], Tensor, Tensor] = vmap(one)(
            parameters, buffers, *batch, stacks
        )
        return found

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
