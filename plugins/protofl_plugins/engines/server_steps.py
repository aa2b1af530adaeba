"""Training on the server: a loop of small steps, recorded in a CUDA graph where that is faster.

    steps(server, step, batches, of=(P, labels), changes=weights)

calls ``step(P[rows], labels[rows])`` for the rows of each mini-batch. A step of a few vectors is
some twenty kernels, which a GPU computes faster than a program launches them. So where the run's
engine replays clients' steps (``server.replays``), the server's are recorded as well: the step runs
once for each size of a batch under CUDA's eye, and each further step is one launch, later several
in a row (`CHAIN`). Everywhere else the step's code runs each time.

**What keeps results right.** A recorded step reads and changes memory at fixed places: the next
mini-batches, which are copied there some thousand rows at a time, a copy of ``given``, and
``changes``, which stay where they are. The first steps are steps as any other, during which all
operations are noted and compared (`protofl.backends.StepTrace`); and in each later call the first
step of each size is again compared with the recorded one. A step that now computes something else
(another learning rate) is recorded anew. One that can't be recorded (it waits for values, it draws
from its own generator, it changes what ``changes`` does not list) runs its code, and a note says
why. All steps of a call are launched on one stream, which other work of the run waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

import protofl as pf
from protofl_plugins.engines.stepping import outline
from protofl_plugins.engines.updates import Update

Batch: TypeAlias = "Tensor | Sequence[Tensor]"
"""Tensors of a mini-batch for a step, with B rows each; or one such tensor."""

Changes: TypeAlias = "Iterable[Tensor | nn.Module]"
"""Tensors that steps change, and modules whose weights and buffers they change."""

ROWS = 4096
"""Rows of mini-batches that are gathered together. Fixed, as rounding may depend on it."""

PAYS = 20
"""Steps from which a recording pays: it costs about as much as so many steps launched one kernel
at a time. That is an estimate, as that of `protofl_plugins.engines.cuda_graphs`. A rule that waits
for as many steps as a recording costs takes at most twice the best time, whatever is to come."""

CHAIN = 8
"""Steps with batches of one size that are one graph, once that pays: a chain."""

CHAIN_PAYS = 400
"""Saved steps from which a chain pays. An estimate that no GPU has confirmed: its capture launches
the kernels of eight steps, some 4 ms, and saves 10 µs in each step."""

TRIES = 2
"""Failures from which a step is not tried again. One may be chance: torch's thread for the backward
pass may hold a gradient a little longer."""

CHECKED = 5
"""Steps whose time the comparison of one step takes: each kernel is looked at in Python."""


def steps(
    server: pf.Server[Any],
    step: Callable[..., object],
    batches: Iterable[Batch],
    *,
    of: Sequence[Tensor] = (),
    given: Sequence[Any] = (),
    changes: Changes,
    reads: Sequence[Tensor] = (),
    together: bool = False,
    name: str = "",
) -> None:
    """Call a step of training for each mini-batch: ``step(*batch, *given)``.

    Args:
        server: The server.
        step: The step. It changes weights in place, and leaves nothing else.
        batches: What each step is given: tensors with a row for each sample, or one tensor. They
            may be made on the way, and be in host memory.
        of: Tables of which the step takes rows: then a batch is ``rows, …``, and the step is given
            ``table[rows]`` of each table, and the rest.
        given: What every step is given in addition: tensors, or trees of them.
        changes: All that the step changes: weights, state of optimisers, BatchNorm's statistics.
        reads: Large tensors that the step reads where they are.
        together: Take the rows of all batches at once, also where steps are not recorded; batches
            are rows alone then. That is faster for very small steps, and may round otherwise.
        name: Tells loops of the method that it runs in one round from each other.
    """
    tensors = _tensors_of(changes) if server.replays else []
    if not tensors:
        _run_plainly(step, batches, of, given, server.device, together=together)
        return
    recorder = server.scratch.setdefault(f"recorded steps {name}", Recorder(server.device))
    if problem := recorder.run(step, batches, of, given, tensors, reads):
        server.note(f"the server's steps run one operation at a time: {problem}")


def _blocks(batches: Iterable[Batch]) -> Iterator[list[tuple[Tensor, ...]]]:
    """Yield batches as tuples, as many together as have at most `ROWS` rows, at least one."""
    block: list[tuple[Tensor, ...]] = []
    count = 0
    for batch in batches:
        each = (batch,) if isinstance(batch, Tensor) else tuple(batch)
        size = len(each[0]) if each else 1
        if block and count + size > ROWS:
            yield block
            block, count = [], 0
        block.append(each)
        count += size
    if block:
        yield block


def _run_plainly(
    step: Callable[..., object],
    batches: Iterable[Batch],
    of: Sequence[Tensor],
    given: Sequence[Any],
    device: torch.device,
    *,
    together: bool = False,
) -> None:
    """Run the step's code for each batch."""
    if together and of:
        chosen = [batch if isinstance(batch, Tensor) else batch[0] for batch in batches]
        if not chosen:
            return
        index, sizes = torch.cat(chosen), [*map(len, chosen)]
        parts = [torch.split(table[index], sizes) for table in of]
        for tensors in zip(*parts, strict=True):
            step(*tensors, *given)
        return
    for batch in batches:
        each: tuple[Tensor, ...] = (batch,) if isinstance(batch, Tensor) else tuple(batch)
        if of:
            rows = each[0].to(device)
            each = (*(table[rows] for table in of), *each[1:])
        step(*(tensor.to(device) for tensor in each), *given)


def _together(
    block: list[tuple[Tensor, ...]], of: Sequence[Tensor], device: torch.device
) -> list[Tensor]:
    """Return what the steps of a block are given, batch after batch: first the rows of tables."""
    columns = {str(n): torch.cat(list(c)) for n, c in enumerate(zip(*block, strict=True))}
    in_host_memory = {n: column for n, column in columns.items() if column.is_cpu}
    rest = [*(columns | pf.backends.to_device(in_host_memory, device)).values()]
    rows = [table[rest[0]] for table in of]
    return rows + rest[1:] if of else rest


def _tensors_of(changes: Changes) -> list[Tensor]:
    """Return all tensors outside of autograd."""
    each = list[Tensor]()
    for one in changes:
        each += (*one.parameters(), *one.buffers()) if isinstance(one, nn.Module) else (one,)
    return [tensor.detach() for tensor in each]


# --- recorded steps -------------------------------------------------------------------------------


class Recorder:
    """The recorded steps of one loop on the server, kept from round to round.

    Args:
        device: Where it computes; a device with streams.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device)
        # Graphs of one stream share memory of cuBLAS; engines take streams of usual priority.
        self._stream = self._module.Stream(device, priority=-1)
        self._pool = self._module.graph_pool_handle()
        self._memory: _Memory | None = None
        self._programs: dict[int, _Program] = {}
        self.problem = ""

    def run(
        self,
        step: Callable[..., object],
        batches: Iterable[Batch],
        of: Sequence[Tensor],
        given: Sequence[Any],
        changes: list[Tensor],
        reads: Sequence[Tensor],
    ) -> str:
        """Run all steps; return the reason why they are not recorded, if that has failed."""
        current = self._module.current_stream(self._device)
        self._stream.wait_stream(current)
        with self._module.device(self._device), self._module.stream(self._stream):
            for program in self._programs.values():
                program.checked = False
            for block in _blocks(batches):
                self._run(step, block, of, given, changes, reads)
        current.wait_stream(self._stream)
        return self.problem

    def _run(
        self,
        step: Callable[..., object],
        block: list[tuple[Tensor, ...]],
        of: Sequence[Tensor],
        given: Sequence[Any],
        changes: list[Tensor],
        reads: Sequence[Tensor],
    ) -> None:
        """Run the steps of a block."""
        if self.problem:
            _run_plainly(step, block, of, given, self._device)
            return
        sizes = [len(batch[0]) if batch else 1 for batch in block]
        rows, memory = _together(block, of, self._device), self._memory
        if memory is None or not memory.holds(rows, given, [*changes, *reads], max(sizes)):
            self._drop()
            memory = self._memory = _Memory(rows, given, changes, reads, max(sizes))
        memory.take(rows, given)
        for size, count in Counter(sizes).items():
            self._programs.setdefault(size, _Program()).plan(count)
        for size, alike in groupby(sizes):

            def body(memory: _Memory = memory, size: int = size) -> None:
                step(*memory.batch(size), *memory.given)

            left = sum(1 for _ in alike)
            while left:
                chain = self._chain(size, body, memory) if left >= CHAIN else None
                left -= CHAIN if chain else 1
                if chain:
                    chain.replay()
                elif self.problem:  # its memory is filled already
                    body()
                else:
                    self._step(size, body, memory)

    def _step(self, size: int, body: Callable[[], None], memory: _Memory) -> None:
        """Run a step: by its graph, by its code, or by its code under observation."""
        program = self._programs.setdefault(size, _Program())
        if not program.worth:
            body()
        elif program.graph is not None and program.checked:
            program.graph.replay()
        elif program.graph is not None:
            assert program.trace is not None
            program.checked = True
            if self._tried(program.trace.of(body, memory.all), body, memory):
                self._drop_graphs()  # the step is another one now
        elif problem := self._observed(program, body, memory):
            program.failures.append(problem)
            program.trace = None
            if len(program.failures) == TRIES:
                self.problem = problem
                self._drop()

    def _chain(self, size: int, body: Callable[[], None], memory: _Memory) -> Any:  # noqa: ANN401 - torch's graph
        """Return the graph of `CHAIN` steps; None before it pays, or if it cannot be captured.

        In each call the step's own graph has been compared with its code before.
        """
        program = self._programs.get(size)
        if program is None or not (program.worth and program.graph is not None and program.checked):
            return None
        if program.chain is None and program.saved >= CHAIN_PAYS:

            def steps() -> None:
                for _ in range(CHAIN):
                    body()

            try:
                program.chain = self._captured(steps, memory)
            except Exception as error:  # such as for lack of memory
                self.problem = _first_line(error)
                self._drop()
        return program.chain

    def _captured(self, body: Callable[[], None], memory: _Memory) -> Any:  # noqa: ANN401 - torch's graph
        """Return the graph of some code, which changes nothing by being captured."""
        graph, kept = self._module.CUDAGraph(), [tensor.clone() for tensor in memory.changed]
        try:
            with self._module.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                body()
        finally:
            torch._foreach_copy_(memory.changed, kept)  # a capture does not count
        return graph

    def _observed(self, program: _Program, body: Callable[[], None], memory: _Memory) -> str:
        """Run one of the steps before the recording; return the reason if it can't be recorded."""
        if not program.seen:
            program.seen = True
            writes = _Writes(memory.all)
            with writes:
                body()
            if writes.problem:  # another try would fail as well, and the step has run
                program.failures = [""] * (TRIES - 1)
            return writes.problem
        if program.trace is None:
            program.trace = pf.backends.StepTrace(body, memory.all)
            return self._tried(program.trace, body, memory)
        if problem := self._tried(program.trace.of(body, memory.all), body, memory):
            return problem
        try:
            program.graph, program.checked = self._captured(body, memory), True
        except Exception as error:
            return _first_line(error)
        return ""

    def _tried(
        self, trace: pf.backends.StepTrace, body: Callable[[], None], memory: _Memory
    ) -> str:
        """Run a step under a trace; where that fails, its code, and return the reason."""
        kept, cpu = [tensor.clone() for tensor in memory.changed], torch.get_rng_state()
        there = self._module.get_rng_state(self._device)
        try:
            trace()
        except Exception as error:  # one that is the method's own comes again
            torch._foreach_copy_(memory.changed, kept)
            torch.set_rng_state(cpu)
            self._module.set_rng_state(there, self._device)
            body()
            return _first_line(error)
        return ""

    def _drop_graphs(self) -> None:
        """Drop all graphs, none of which is at work any more; those to come are recorded anew."""
        self._module.synchronize(self._device)
        counts = {size: program.left for size, program in self._programs.items()}
        self._programs = {}
        for size, count in counts.items():
            self._programs.setdefault(size, _Program()).plan(count)

    def _drop(self) -> None:
        """Drop all graphs and the fixed memory."""
        if self._memory is not None:
            self._module.synchronize(self._device)
        self._programs, self._memory = {}, None


class _Program:
    """The step for one size of a batch.

    Attributes:
        saved: Steps that a recording would have saved so far.
        left: Steps of the current block.
        worth: Whether the steps of this call are to be recorded, or replayed.
        seen: Whether a step has run that may create what it needs.
        failures: Reasons why it could not be recorded.
        trace: Its noted operations.
        graph: The recorded step.
        chain: `CHAIN` recorded steps in one graph; None before that pays.
        checked: Whether the graph was compared with the code in this call.
    """

    def __init__(self) -> None:
        self.saved = self.left = 0
        self.worth = self.seen = self.checked = False
        self.failures: list[str] = []
        self.trace: pf.backends.StepTrace | None = None
        self.graph: Any = None
        self.chain: Any = None

    def plan(self, count: int) -> None:
        """Decide about so many steps."""
        self.left = count
        gain = count if self.checked else count - 1 - CHECKED
        self.saved += max(gain, 0)
        self.worth = gain > 0 and (self.graph is not None or self.saved >= PAYS)


class _Memory:
    """Fixed memory of recorded steps: what a block is given, and the number of passed rows.

    Args:
        rows: What the steps of a block are given, batch after batch.
        given: What each step is given in addition.
        changes: What steps change.
        reads: What they read where it is.
        largest: Largest size of a batch.
    """

    def __init__(
        self,
        rows: list[Tensor],
        given: Sequence[Any],
        changes: list[Tensor],
        reads: Sequence[Tensor],
        largest: int,
    ) -> None:
        self._capacity = max(ROWS, largest)
        self._rows = [t.new_zeros(self._capacity, *t.shape[1:]) for t in rows]
        device = changes[0].device
        self._steps = torch.arange(self._capacity, device=device)
        self._passed = torch.zeros(1, dtype=torch.int64, device=device)
        self.given: Sequence[Any] = tree_map_only(Tensor, lambda t: t.detach().clone(), given)
        self._changes, self._reads = changes, reads

    def holds(
        self, rows: list[Tensor], given: Sequence[Any], places: list[Tensor], largest: int
    ) -> bool:
        """Return True if the memory is that of such steps."""
        return (
            largest <= self._capacity
            and [(t.shape[1:], t.dtype) for t in rows]
            == [(t.shape[1:], t.dtype) for t in self._rows]
            and outline(given) == outline(self.given)
            and [*map(_place, places)] == [*map(_place, [*self._changes, *self._reads])]
        )

    def take(self, rows: list[Tensor], given: Sequence[Any]) -> None:
        """Copy the rows of a block in."""
        self._passed.zero_()
        for place, tensor in zip(self._rows, rows, strict=True):
            place[: len(tensor)].copy_(tensor)
        for place, leaf in zip(tree_leaves(self.given), tree_flatten(given)[0], strict=True):
            if isinstance(leaf, Tensor):
                place.copy_(leaf.detach())

    def batch(self, size: int) -> list[Tensor]:
        """Return what the next step is given of its batch; a part of the step."""
        at = self._passed + self._steps[:size]
        self._passed.add_(size)
        return [rows.index_select(0, at) for rows in self._rows]

    @property
    def changed(self) -> list[Tensor]:
        """Tensors that a step changes."""
        return [*self._changes, self._passed]

    @property
    def all(self) -> list[Tensor]:
        """All tensors whose values may differ from step to step, and from round to round."""
        leaves = [leaf for leaf in tree_leaves(self.given) if isinstance(leaf, Tensor)]
        return [*self.changed, *self._rows, self._steps, *leaves, *self._reads]


def _place(tensor: Tensor) -> object:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()


class _Writes(TorchDispatchMode):
    """Notes whether a step changes other tensors than it should.

    Args:
        memory: What it may change.
    """

    def __init__(self, memory: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {tensor.untyped_storage()._cdata: tensor for tensor in memory}
        self.problem = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's
        """Look at what an operation changes, and carry it out."""
        if func._schema.is_mutable:
            pairs = zip(func._schema.arguments, args, strict=False)
            written = [value for a, value in pairs if a.alias_info and a.alias_info.is_write]
            for leaf in tree_leaves(written):
                known = not isinstance(leaf, Tensor) or self._place(leaf) in self._known
                if not known and not self.problem:
                    self.problem = f"{func} changes a tensor {list(leaf.shape)} outside of changes"
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._known.setdefault(self._place(leaf), leaf)
        return result

    @staticmethod
    def _place(tensor: Tensor) -> int:
        return int(tensor.untyped_storage()._cdata)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# --- gradient steps -------------------------------------------------------------------------------


def minimise(
    server: pf.Server[Any],
    loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    *,
    of: Sequence[Tensor] = (),
    given: Sequence[Any] = (),
    changes: Changes = (),
    reads: Sequence[Tensor] = (),
    clip: float = 0.0,
    rates: Iterable[float] | None = None,
    name: str = "",
) -> None:
    """Minimise ``loss(*batch, *given)`` by an optimiser of torch, one step for each mini-batch.

    Args:
        server: The server.
        loss: The loss of a mini-batch, a scalar.
        optimizer: Adam or SGD over the trained weights. Its state goes on from what it holds, and
            is there at the end.
        batches: See `steps`.
        of: See `steps`.
        given: See `steps`.
        changes: What the loss changes besides the trained weights: BatchNorm's statistics.
        reads: See `steps`.
        clip: Largest norm of the gradient of each of the optimiser's groups; 0 for any.
        rates: The learning rate of each step; None for the optimiser's.
        name: See `steps`.
    """
    groups: list[list[Tensor]] = [group["params"] for group in optimizer.param_groups]
    weights = [weight for group in groups for weight in group]
    rule = _rule(optimizer, clip, server.device, scheduled=rates is not None)
    if server.replays and rule is None:
        server.note(f"the server's steps run one operation at a time: {type(optimizer).__name__}")
    if not server.replays or rule is None:
        upcoming = iter(rates or ())

        def step(*batch: Any) -> None:  # noqa: ANN401
            if rates is not None:
                optimizer.param_groups[0]["lr"] = next(upcoming)
            value = loss(*batch)
            gradients = torch.autograd.grad(value, weights, allow_unused=True)
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient
            for group in groups if clip else ():
                nn.utils.clip_grad_norm_(group, clip)
            optimizer.step()
            optimizer.zero_grad()

        steps(server, step, batches, of=of, given=given, changes=(), name=name)
        return
    key, places = f"update {name}", (rule, [*map(_place, weights)])
    kept = server.scratch.get(key)
    if kept is None or kept[0] != places:
        pairs = [(group["params"], group["lr"]) for group in optimizer.param_groups]
        kept = server.scratch[key] = places, Update(cast(Any, rule), pairs, fixed=True)
    update: Update = kept[1]
    _load(update, optimizer, weights)

    def recorded(*batch: Any) -> None:  # noqa: ANN401
        if rates is not None:
            place = len(batch) - len(given) - 1
            update.memory[-1].copy_(batch[place][:1])  # the learning rate, which is on the device
            batch = (*batch[:place], *batch[place + 1 :])
        update(torch.autograd.grad(loss(*batch), weights, allow_unused=True))

    each = batches if rates is None else _with_rates(batches, rates)
    changed = _tensors_of([*weights, *update.memory, *changes])
    steps(server, recorded, each, of=of, given=given, changes=changed, reads=reads, name=name)
    _store(update, optimizer, weights)


def _with_rates(batches: Iterable[Batch], rates: Iterable[float]) -> Iterator[Batch]:
    """Yield each batch with its learning rate as a further tensor."""
    for batch, rate in zip(batches, rates, strict=False):
        each = (batch,) if isinstance(batch, Tensor) else tuple(batch)
        yield (*each, each[0].new_full((len(each[0]),), rate, dtype=torch.float64))


class _Rule(NamedTuple):
    """An update rule, as `Update` reads it of a training job."""

    optimizer: str
    momentum: float
    clip: float | None
    device: torch.device
    scheduled: bool
    lr: tuple[float, ...]
    weight_decay: float = 0.0


def _rule(
    optimizer: torch.optim.Optimizer, clip: float, device: torch.device, *, scheduled: bool
) -> _Rule | None:
    """Return the rule of an optimiser that `Update` knows; None for others."""
    kinds = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam"}
    kind = kinds.get(type(optimizer))
    usual = {"betas": (0.9, 0.999), "eps": 1e-8}
    off = "weight_decay", "amsgrad", "nesterov", "maximize", "dampening", "decoupled_weight_decay"
    for group in optimizer.param_groups:
        if any(group.get(name, value) != value for name, value in usual.items()):
            return None
        if any(group.get(name) for name in off):
            return None
    if kind is None:
        return None
    momentum = float(optimizer.param_groups[0].get("momentum", 0.0))
    lr = () if scheduled else tuple(float(group["lr"]) for group in optimizer.param_groups)
    return _Rule(kind, momentum, clip or None, device, scheduled, lr)


def _load(update: Update, optimizer: torch.optim.Optimizer, weights: list[Tensor]) -> None:
    """Copy the state of an optimiser into that of an update."""
    for tensor in update.state:
        tensor.zero_()
    for number, weight in enumerate(weights):
        state = optimizer.state.get(weight, {})
        if "exp_avg" in state:
            first, second, counts = _moments(update, len(weights))
            first[number].copy_(state["exp_avg"])
            second[number].copy_(state["exp_avg_sq"])
            counts[number].fill_(float(state["step"]))
        elif state.get("momentum_buffer") is not None:
            update.state[number].copy_(state["momentum_buffer"])


def _store(update: Update, optimizer: torch.optim.Optimizer, weights: list[Tensor]) -> None:
    """Copy the state of an update into that of an optimiser."""
    if not update.state:
        return
    if len(update.state) == len(weights):
        for weight, buffer in zip(weights, update.state, strict=True):
            optimizer.state[weight]["momentum_buffer"] = buffer.clone()
        return
    first, second, counts = _moments(update, len(weights))
    for number, (weight, count) in enumerate(zip(weights, counts.tolist(), strict=True)):
        if count:
            optimizer.state[weight] |= {
                "step": torch.tensor(float(count)),
                "exp_avg": first[number].clone(),
                "exp_avg_sq": second[number].clone(),
            }


def _moments(update: Update, count: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return both moments of Adam's weights, and the number of steps of each."""
    return update.state[:count], update.state[count : 2 * count], update.state[-1]
