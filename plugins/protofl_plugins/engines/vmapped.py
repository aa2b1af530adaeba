"""Groups of clients of one architecture in lock-step: one batched pass for all of them.

Their parameters are stacked, and the step of one client is mapped over the stack with
``torch.func.vmap``: a linear layer becomes a batched matrix product, a convolution a grouped one.
Many small kernels become few larger ones, which is worth it where kernels are small beside the
cost of launching them: small nets. On a CPU the mapped step is recorded once and then repeated
without the map (`protofl_plugins.engines.recording`).
"""

from __future__ import annotations

import operator
import warnings
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

import protofl as pf
from protofl_plugins.engines import stepping
from protofl_plugins.engines.cuda_graphs import CUDAGraphs
from protofl_plugins.engines.eager import Fallback
from protofl_plugins.engines.recording import Programs
from protofl_plugins.engines.stepping import Last, Parts, Tree
from protofl_plugins.engines.updates import Update

Found = tuple[dict[str, Tensor], Tensor, Tensor, list[Tensor | None]]
"""Terms, features, scores, and gradients of the trained weights."""

STACKED = 1 << 28
"""Bytes of the weights of a group at most; gradients and features of a step come in addition."""

ODD = "its loss is given other values or shapes than other clients' losses"


class Vmapped:
    """Groups of clients of one architecture in lock-step, by torch.func.vmap."""

    replays = True

    class Config(pf.Config):
        """Options."""

        group: int = pf.Field(
            32, ge=1, description="clients trained in lock-step at most; all are in memory at once"
        )

    def __init__(self) -> None:
        self._fallback = Fallback("vmapped")
        self._programs, self._checked = Programs(), CUDAGraphs()

    @pf.hookimpl
    def choose_groups(self, architectures: list[str], config: Config) -> list[list[int]]:
        """Clients of one architecture, `group` at a time."""
        places: dict[str, list[int]] = {}
        for place, name in enumerate(architectures):
            places.setdefault(name, []).append(place)
        size = config.group
        return [
            members[at : at + size]
            for members in places.values()
            for at in range(0, len(members), size)
        ]

    @pf.hookimpl
    def train(self, job: pf.backends.TrainJob) -> dict[str, float]:
        """Train a single client like `eager`."""
        return self._fallback.by_eager([job])[0]

    @pf.hookimpl
    def train_group(self, jobs: list[pf.backends.TrainJob]) -> list[dict[str, float]]:
        """Train clients of the same kind together, step by step."""
        if not jobs[0].plain:
            return self._fallback.by_torch(jobs)
        if jobs[0].checks and jobs[0].device.type == "cpu":
            # That engine compares each step with a recording, as the dry run should here, too.
            return self._checked.train_group(jobs, CUDAGraphs.Config())
        parts = {id(job): Parts(job.whole()) for job in jobs}
        kinds = [stepping.kind_of(job, parts[id(job)]) for job in jobs]
        kind_by_id = {id(job): kind for job, kind in zip(jobs, kinds, strict=True)}

        def together(members: list[pf.backends.TrainJob]) -> list[dict[str, float]]:
            owned = [parts[id(job)] for job in members]
            kind = kind_by_id[id(members[0])]
            return Lockstep(members, owned, kind, self._programs).train()

        alike: dict[Hashable, list[int]] = {}
        for place, job in enumerate(jobs):
            alike.setdefault((kinds[place], stepping.outline(job.loss.constants(0))), []).append(
                place
            )
        sums_by_place: dict[int, dict[str, float]] = {}
        for places in alike.values():
            # Those with many steps first, so that clients still training are neighbours.
            places.sort(key=lambda place: -jobs[place].steps)
            weights = parts[id(jobs[places[0]])].tensors.values()
            size = max(1, STACKED // sum(tensor.nbytes for tensor in weights))
            for at in range(0, len(places), size):
                group = places[at : at + size]
                members = [jobs[place] for place in group]
                if len(members) > 1:
                    sums = self._fallback.train(members, together)
                else:
                    odd = Counter(kinds)[kinds[group[0]]] > 1 and len(places) == 1
                    sums = self._fallback.by_eager(members, ODD if odd else "")
                sums_by_place |= dict(zip(group, sums, strict=True))
        return [sums_by_place[place] for place in range(len(jobs))]


class Lockstep:
    """A group of clients as one tensor for each parameter: a stack with an axis over clients.

    The stacks are copies: the clients' own weights change when all is done. A forward pass uses the
    modules of the first client, which hold its part of the stacks meanwhile.

    Args:
        jobs: Two or more, alike in all but weights, data and tensors that their losses are given;
            by falling number of steps.
        parts: Those of each job's modules.
        key: What the step is the same for, besides shapes and what losses are given.
        programs: Recorded steps.
    """

    def __init__(
        self,
        jobs: list[pf.backends.TrainJob],
        parts: list[Parts],
        key: Hashable,
        programs: Programs,
    ) -> None:
        self._jobs, self._places = jobs, parts[0].places
        self._model = parts[0].whole.model
        self._terms = jobs[0].loss_on(parts[0].whole).terms
        self._client_tensors = [each.tensors for each in parts]
        self._stacks = {
            n: torch.stack([tensors[n] for tensors in self._client_tensors])
            for n in self._client_tensors[0]
        }
        groups = parts[0].groups(jobs[0])
        self._trained = [name for names, _ in groups for name in names]
        stacks = [([self._stacks[name] for name in names], lr) for names, lr in groups]
        self._update = Update(jobs[0], stacks, clients=len(jobs))
        self._key, self._programs = key, programs
        self._trees: list[Tree] = []
        self._leaves: list[list[object]] = []
        self._structure, self._outline = tree_flatten(None)[1], ""
        self._constants: dict[int, Tensor] = {}
        self._last: defaultdict[int, Last] = defaultdict(Last)
        self._seen: list[tuple[range, int, dict[str, Tensor]]] = []
        self._own = [held[key] for _, held, key in self._places]
        self._is_mapped = False

    def train(self) -> list[dict[str, float]]:
        """All batches of all clients; the sums of each client's loss terms."""
        batches = [enumerate(job.batches()) for job in self._jobs]
        ahead = [next(remaining, None) for remaining in batches]
        with warnings.catch_warnings():
            # Operations without a batching rule are carried out one by one: slow and right.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            while run := self._next_run(
                [len(upcoming[1].x) if upcoming else 0 for upcoming in ahead]
            ):
                clients = slice(run.start, run.stop)
                self._step(clients, [upcoming for upcoming in ahead[clients] if upcoming])
                ahead[clients] = [next(remaining, None) for remaining in batches[clients]]
        for place, tensors in enumerate(self._client_tensors):
            torch._foreach_copy_(list(tensors.values()), [w[place] for w in self._stacks.values()])
        return self._sums()

    def _next_run(self, sizes: list[int]) -> range:
        """Return neighbours whose next batches have one size; finished clients have size 0.

        Batches of another size than the usual go first, so that all clients are back in step.
        """
        live, usual = [size for size in sizes if size], self._jobs[0].batch_size
        if not live:
            return range(0)
        size = next((size for size in live if size != usual), usual)
        start = stop = sizes.index(size)
        while stop < len(sizes) and sizes[stop] == size:
            stop += 1
        return range(start, stop)

    def _step(self, clients: slice, steps: list[tuple[int, pf.Batch]]) -> None:
        """One step of neighbours, each with its own number and batch."""
        jobs, batches = self._jobs[clients], [batch for _, batch in steps]
        constants: list[Tree] = [
            job.loss.constants(n) for job, (n, _) in zip(jobs, steps, strict=True)
        ]
        # Alone, a client's step takes half the time on a CPU without the map. The first step has
        # it, as only the map refuses random operations, whose streams belong to clients.
        alone = len(jobs) == 1 and self._is_mapped and jobs[0].device.type == "cpu"
        self._is_mapped = True
        weights = [stack[clients.start if alone else clients] for stack in self._stacks.values()]
        step = self._alone if alone else self._together
        terms, features, logits, gradients = step(weights, batches, constants)
        for place, (job, batch) in enumerate(zip(jobs, batches, strict=True)):
            if job.after_batch is not None:
                job.after_batch(batch, pf.Output(features[place], logits[place]))
        self._seen.append((range(clients.start, clients.stop), len(batches[0].x), terms))
        self._update(gradients, clients)

    def _together(
        self, weights: list[Tensor], batches: list[pf.Batch], constants: list[Tree]
    ) -> Found:
        """Return what a step of each client gives: the step of one, mapped over the stacks."""
        samples = [torch.stack([getattr(b, name) for b in batches]) for name in ("x", "y", "index")]
        leaves, structure = self._walk(constants)
        stacked, each = self._stacked(), len(weights)

        def one(
            weights: list[Tensor], samples: list[Tensor], tensors: list[Tensor]
        ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
            given = dict(zip(stacked, tensors, strict=True))
            parts = [given.get(place, leaf) for place, leaf in enumerate(leaves)]
            return self._one(weights, samples, tree_unflatten(parts, structure))

        def step(*tensors: Tensor) -> Found:
            held = self._ready(tensors[:each])
            found = vmap(one)(held, [*tensors[each : each + 3]], [*tensors[each + 3 :]])
            return self._differentiated(held, *found)

        tensors = [*weights, *samples, *stacked.values()]
        key = self._key, self._outline, samples[0].shape
        found: Found = self._programs.run(key, step, tensors)
        return found

    def _alone(
        self, weights: list[Tensor], batches: list[pf.Batch], constants: list[Tree]
    ) -> Found:
        """Return the same for a single client."""
        batch, held = batches[0], self._ready(weights)
        found = self._one(held, [batch.x, batch.y, batch.index], constants[0])
        terms, features, logits, gradients = self._differentiated(held, *found)
        terms = {label: value.unsqueeze(0) for label, value in terms.items()}
        stacked = [None if g is None else g.unsqueeze(0) for g in gradients]
        return terms, features.unsqueeze(0), logits.unsqueeze(0), stacked

    def _ready(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Return weights and buffers as leaves of the loss."""
        return [
            tensor.detach().requires_grad_(name in self._trained)
            for name, tensor in zip(self._stacks, weights, strict=True)
        ]

    def _differentiated(
        self, weights: list[Tensor], terms: dict[str, Tensor], features: Tensor, logits: Tensor
    ) -> Found:
        """Return a step's results with the gradients of the trained weights."""
        named = dict(zip(self._stacks, weights, strict=True))
        trained = [named[name] for name in self._trained]
        loss = stepping.total(terms).sum()
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        means = {label: value.detach() for label, value in terms.items()}
        return means, features.detach(), logits.detach(), [*gradients]

    def _one(
        self, weights: list[Tensor], samples: list[Tensor], constants: Tree
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return the loss terms of one client, with its weights in the modules."""
        job, model = self._jobs[0], self._model
        x, y, index = samples
        batch = pf.Batch(x, y, index, job.phase.name)
        named = dict(zip(self._stacks, weights, strict=True))
        try:
            for name, held, key in self._places:
                held[key] = named[name]
            output = stepping.forward(model.features, model.head, x, job.precision)
            return self._terms(batch, output, constants), output.features, output.logits
        finally:
            for (_, held, key), tensor in zip(self._places, self._own, strict=True):
                held[key] = tensor

    def _walk(self, constants: list[Tree]) -> tuple[list[object], TreeSpec]:
        """Return the leaves of the first tree and its structure, walked anew only where changed."""
        if len(constants) != len(self._trees) or any(map(operator.is_not, constants, self._trees)):
            self._trees, self._leaves = constants, [tree_leaves(tree) for tree in constants]
            self._structure = tree_flatten(constants[0])[1]
            outline, self._outline = self._outline, stepping.outline(constants[0])
            if outline != self._outline:
                self._constants.clear()
                self._last.clear()
        return self._leaves[0], self._structure

    def _stacked(self) -> dict[int, Tensor]:
        """The tensors that losses are given, by place; stacked anew only where one has changed."""
        for place, each in enumerate(zip(*self._leaves, strict=True)):
            if isinstance(each[0], Tensor) and not self._last[place].same(each):
                self._constants[place] = torch.stack([tensor.detach() for tensor in each])
        return self._constants

    def _sums(self) -> list[dict[str, float]]:
        """Return each client's sums of its loss terms over samples."""
        sums: list[dict[str, float]] = [{} for _ in self._jobs]
        for label in dict.fromkeys(label for *_, terms in self._seen for label in terms):
            seen = [each for each in self._seen if label in each[2]]
            means = pf.functional.in_float64(torch.cat([terms[label] for *_, terms in seen]))
            sizes = means.new_tensor([size for clients, size, _ in seen for _ in clients])
            places = torch.tensor([i for clients, *_ in seen for i in clients])
            totals = means.new_zeros(len(sums)).index_add_(
                0, places.to(means.device), means * sizes
            )
            for each, total in zip(sums, totals.tolist(), strict=True):
                each[label] = total
        return sums
