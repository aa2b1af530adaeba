"""Groups of clients of one architecture in lock-step: one batched pass for all of them.

Their parameters are stacked, and the step of one client is mapped over the stack with
``torch.func.vmap``: a linear layer becomes a batched matrix product, a convolution a grouped one.
Many small kernels become few larger ones, which is worth it where kernels are small beside the
cost of launching them: small nets on a GPU.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import protofl as pf
from protofl_plugins.engines import stepping
from protofl_plugins.engines.eager import Fallback
from protofl_plugins.engines.stepping import Last, Sums, Tree, tensors_of
from protofl_plugins.engines.updates import Update

Found = tuple[dict[str, Tensor], Tensor, Tensor]
"""Terms, features and scores."""

ODD = "its loss is given other values or shapes than other clients' losses"


class Vmapped:
    """Groups of clients of one architecture in lock-step, by torch.func.vmap."""

    class Config(pf.Config):
        """Options."""

        group: int = pf.Field(
            8, ge=1, description="clients trained in lock-step at most; all are in memory at once"
        )

    def __init__(self) -> None:
        self._fallback = Fallback("vmapped")

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
        kinds = [stepping.kind_of(job) for job in jobs]
        alike: dict[Hashable, list[int]] = {}
        for place, job in enumerate(jobs):
            alike.setdefault((kinds[place], stepping.outline(job.loss.constants(0))), []).append(
                place
            )
        sums_by_place: dict[int, dict[str, float]] = {}
        for places in alike.values():
            # Those with many steps first, so that clients still training are neighbours.
            places.sort(key=lambda place: -jobs[place].steps)
            members = [jobs[place] for place in places]
            if len(members) > 1:
                sums = self._fallback.train(members, lambda group: Lockstep(group).train())
            else:
                odd = Counter(kinds)[kinds[places[0]]] > 1
                sums = self._fallback.by_eager(members, ODD if odd else "")
            sums_by_place |= dict(zip(places, sums, strict=True))
        return [sums_by_place[place] for place in range(len(jobs))]


class Lockstep:
    """A group of clients whose weights are stacked.

    The stacks are copies: the clients' own weights change when all is done.

    Args:
        jobs: Two or more, alike in all but weights, data and tensors that their losses are given;
            by falling number of steps.
    """

    def __init__(self, jobs: list[pf.backends.TrainJob]) -> None:
        self._jobs = jobs
        self._whole = jobs[0].whole()
        self._terms = jobs[0].loss_on(self._whole).terms
        self._client_tensors = [tensors_of(job.whole()) for job in jobs]
        self._weights = {
            n: torch.stack([tensors[n] for tensors in self._client_tensors])
            for n in self._client_tensors[0]
        }
        groups = stepping.groups_by_name(jobs[0], self._whole)
        self._trained = [name for names, _ in groups for name in names]
        stacks = [([self._weights[name] for name in names], lr) for names, lr in groups]
        self._update = Update(jobs[0], stacks, clients=len(jobs))
        self._constants: dict[int, Tensor] = {}
        self._last: defaultdict[int, Last] = defaultdict(Last)
        self._sums = [Sums() for _ in jobs]

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
            torch._foreach_copy_(list(tensors.values()), [w[place] for w in self._weights.values()])
        return [sums.read() for sums in self._sums]

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
        weights = {
            name: stack.detach()[clients].requires_grad_(name in self._trained)
            for name, stack in self._weights.items()
        }
        constants = [job.loss.constants(n) for job, (n, _) in zip(jobs, steps, strict=True)]
        terms, features, logits = self._forward(weights, batches, constants)
        trained = [weights[name] for name in self._trained]
        loss = stepping.total(terms).sum()
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        for place, (job, sums) in enumerate(zip(jobs, self._sums[clients], strict=True)):
            if job.after_batch is not None:
                seen = pf.Output(features[place].detach(), logits[place].detach())
                job.after_batch(batches[place], seen)
            sums.add({label: value[place] for label, value in terms.items()}, len(batches[0].x))
        self._update(gradients, clients)

    def _forward(
        self, weights: dict[str, Tensor], batches: list[pf.Batch], constants: Sequence[Tree]
    ) -> Found:
        """Return loss terms of each client: the step of one client, mapped over the stacks."""
        job, model = self._jobs[0], self._whole.model
        leaves, structure = tree_flatten(constants[0])
        x, y, index = (
            torch.stack([getattr(b, name) for b in batches]) for name in ("x", "y", "index")
        )

        def one(
            weights: dict[str, Tensor],
            x: Tensor,
            y: Tensor,
            index: Tensor,
            client_constants: dict[int, Tensor],
        ) -> Found:
            parts = [client_constants.get(place, leaf) for place, leaf in enumerate(leaves)]
            batch = pf.Batch(x, y, index, job.phase.name)

            def inside() -> Found:
                output = stepping.forward(model.features, model.head, x, job.precision)
                terms = self._terms(batch, output, tree_unflatten(parts, structure))
                return terms, output.features, output.logits

            result: Found = functional_call(self._whole, weights, (inside,))
            return result

        each: Found = vmap(one)(weights, x, y, index, self._stacked(constants))
        return each

    def _stacked(self, constants: Sequence[Tree]) -> dict[int, Tensor]:
        """The tensors that losses are given, by place; stacked anew only where one has changed."""
        for place, each in enumerate(zip(*map(tree_leaves, constants), strict=True)):
            if isinstance(each[0], Tensor) and not self._last[place].same(each):
                self._constants[place] = torch.stack([tensor.detach() for tensor in each])
        return self._constants
