"""CUDA graphs: a training step is recorded once and replayed as one launch.

A net of many small kernels spends its time on launching them. Here the step (batch, forward, loss,
gradients, update) is captured once for each architecture, shape of a batch and composition, on
fixed memory into which each client's weights, tables and order of samples are copied. So one
capture serves all clients of an architecture, in all rounds. Several clients train at once on CUDA
streams, whose steps are launched in turn. In long runs, several steps in a row are one graph: a
*chain*. On a CPU the step itself runs again on the same memory, and every operation is compared
with those of its first run (`protofl.backends.StepTrace`): slower than ``eager``, for trying it
out.

**A capture is compared.** The graph and the step's own code run from the same weights, which are
not those of the capture. If they differ by more than rounding, ``eager`` trains the architecture
(`protofl_plugins.engines.captured_steps`). The work of both is undone. A chain is compared with
launches of its step in the same way.

**What keeps results right.** All work of a client, from the copy of its weights to its last step,
is launched on the stream of its stage, so nothing overtakes a replay: neither the copy of the next
inputs nor the next client's weights. A stage waits for the current stream before it starts, and the
current stream waits for the stage before weights are copied back; so memory of either stream is
used by the other only between the two waits, and none of it is freed there. Graphs of a stage share
a memory pool and run one after the other; what one leaves for later lies outside of the pool, or is
copied before the next one runs.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

import protofl as pf
from protofl_plugins.engines import captured_steps, stepping
from protofl_plugins.engines.eager import Fallback
from protofl_plugins.engines.stepping import Parts, Tree
from protofl_plugins.engines.updates import Update

PROGRAMS = 16
"""Captured programs that a stage keeps from client to client, and stages that differ only in plain
values of modules. With one more, all programs of all stages are dropped together: in some versions
of torch, dropping one graph frees the cuBLAS workspace of other graphs captured on its stream
(pytorch issue 193402), and torch gives a stream to more than one user after 32. Programs without a
graph are dropped one by one."""

WARM_UP = 3
"""Runs before the first capture on a device; PyTorch's notes on CUDA graphs ask for a few, in which
libraries choose their algorithms. All but the first are compared with each other, at least two.
Later captures have one: it loads the kernels of the architecture, and shows what the graph reads
besides its fixed memory."""

PAYS = 20
"""Uses of a step from which its capture pays. A capture costs about as much as 20 eager steps (on
an H200 0.4 s, and 5 to 35 ms), and saves one with each use. A rule that waits for as many uses as a
capture costs takes at most twice the best time.

Batches of other sizes cannot be padded to the usual one with a mask instead. BatchNorm's statistics
are means over all B rows, so r padded rows change them for the other rows, whatever the loss masks.
And a method's own terms (class means, pairs of samples, ranks) take means over the rows they see;
no weight of the whole batch undoes that."""

CHAIN = 8
"""Steps of a chain: a graph with the step captured so many times. Each takes its batch from the
stage's table, no method sees it (``after_batch``), and the constants are the same in all. A longer
chain leaves more single steps, and its capture costs more."""

CHAIN_PAYS = 3000
"""Uses of a step from which its chain pays. An estimate that no GPU has confirmed: a chain costs
eight captures, 15 to 100 ms, and saves 15 µs in each step, a third of it in Python."""

AHEAD = 16_384
"""Samples whose places a stage holds on the device, 24 bytes each. Longer orders are copied in
parts of that length, so that one capture serves clients of any size."""

Inputs = tuple[tuple[Tensor, ...], Tree]
"""Inputs of a step that are copied before it: samples, labels and rows, or nothing where the step
takes them from the stage's table; and the losses' ``constants``."""


class CUDAGraphs:
    """Training steps captured in CUDA graphs, several clients at once on streams."""

    replays = True

    class Config(pf.Config):
        """Options."""

        streams: int = pf.Field(
            8, ge=1, description="clients trained at once, each on a stream in separate memory"
        )
        capture: Literal["auto", "always"] = pf.Field(
            "auto",
            description=f"auto: a step is captured from its {PAYS}th use on, and until then its "
            f"kernels are launched one by one; from the {CHAIN_PAYS}th use on, {CHAIN} steps are "
            "one launch; always: both from the first use on",
        )

    def __init__(self) -> None:
        self._stages: dict[tuple[stepping.Kind, int], Stage] = {}
        self._fallback = Fallback("cuda-graphs")
        self._warm: set[torch.device] = set()

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
        owned = [Parts(job.whole()) for job in jobs]
        kinds = [
            stepping.kind_of(job, parts, rates=not job.scheduled)
            for job, parts in zip(jobs, owned, strict=True)
        ]
        keys = [(kind, kinds[:place].count(kind)) for place, kind in enumerate(kinds)]
        if any(stage.is_full for stage in self._stages.values()) or self._too_many(keys):
            self._drop_all(jobs[0].device)
        try:
            for job, key in zip(jobs, keys, strict=True):
                if key not in self._stages:
                    self._stages[key] = Stage(
                        job, always=config.capture == "always", warm=self._warm
                    )
            stages = [self._stages[key] for key in keys]
            for stage, parts in zip(stages, owned, strict=True):
                stage.take(parts.tensors)
            _launch(jobs, stages)
            found = [stage.sums() for stage in stages]  # one wait for all clients
            flat = {(n, label): s for n, sums in enumerate(found) for label, s in sums.items()}
            numbers = stepping.numbers(flat)
            for stage in stages:
                stage.give()
            return [{label: numbers[n, label] for label in sums} for n, sums in enumerate(found)]
        except Exception:
            self._drop_all(jobs[0].device)  # their memory is free before eager takes some
            raise

    def _too_many(self, keys: list[tuple[stepping.Kind, int]]) -> bool:
        """Return True if new stages would differ from many others only in modules' values."""
        bases = Counter((kind.base, place) for kind, place in {*self._stages, *keys})
        return max(bases.values()) > PROGRAMS

    def _drop_all(self, device: torch.device) -> None:
        """Drop all stages with their graphs, none of which is at work any more."""
        if pf.backends.has_streams(device):
            torch.get_device_module(device).synchronize(device)
        self._stages.clear()


def _launch(jobs: Sequence[pf.backends.TrainJob], stages: Sequence[Stage]) -> None:
    """Launch all steps of the clients, long clients first, one launch of each stream in turn.

    All steps of one client at once would fill the launch queue, and clients would run one after the
    other. Without streams they do, each inside the stream of its own draws.
    """
    if not pf.backends.has_streams(jobs[0].device):
        for job, stage in zip(jobs, stages, strict=True):
            with job.stream():
                for _ in stage.steps(job):
                    pass
        return
    pairs = sorted(zip(jobs, stages, strict=True), key=lambda pair: -pair[0].steps)
    running = [stage.started(job) for job, stage in pairs]
    while running:
        running = [step for step in running if step()]


class Stage:
    """Fixed memory for the training of clients of one kind, one after the other.

    It holds copies of a client's modules, an optimiser, and its steps as *programs*: one for each
    shape of a batch and of what the losses are given, with fixed memory for both. On a device with
    streams, all of a client's steps are launched on the stage's own stream, and its random draws
    come from a generator state of the stage, which each client seeds.

    Args:
        job: The first client; others must be of its kind.
        always: Whether every step is captured in its first use.
        warm: Devices on which a step has been captured before; a new one is added.
    """

    def __init__(
        self,
        job: pf.backends.TrainJob,
        *,
        always: bool = False,
        warm: set[torch.device] | None = None,
    ) -> None:
        client_parts = Parts(job.whole())
        self.whole, self.precision = deepcopy(client_parts.whole), job.precision
        names = client_parts.groups(job)
        named = dict(self.whole.named_parameters())
        groups = [([named[n] for n in each], lr) for each, lr in names]
        self.trained = [p for parameters, _ in groups for p in parameters]
        self.update = Update(job, groups, fixed=True)
        self.device, self.order = job.device, _Order(job)
        self._tensors, self._client = list(Parts(self.whole).tensors.values()), list[Tensor]()
        self._always, self._checks = always or job.checks, job.checks
        self._warm = set() if warm is None else warm
        self._programs: dict[str, _Program] = {}  # no captured one is dropped while the stage lives
        self._used: list[_Program] = []
        self._module: Any = None
        if pf.backends.has_streams(job.device):
            self._module = module = torch.get_device_module(job.device)
            self._stream, self._pool = module.Stream(job.device), module.graph_pool_handle()
            index = job.device.index
            self._default = module.default_generators[
                module.current_device() if index is None else index
            ]
            self._own = self._default.clone_state()
            self._cpu_state = torch.get_rng_state()

    # --- a client -------------------------------------------------------------------------------

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Take a client's weights and buffers, from which its training starts."""
        self._client = [*tensors.values()]

    def started(self, job: pf.backends.TrainJob) -> Callable[[], bool]:
        """Return a function that launches a client's next step or chain, or returns False."""
        self._stream.wait_stream(self._module.current_stream(job.device))
        with job.stream():  # its seeds, on the host alone
            self._own.set_state(self._default.get_state())
            self._cpu_state = torch.get_rng_state()
        steps = self.steps(job)

        def step() -> bool:
            with self._module.stream(self._stream):
                return next(steps, None) is not None

        return step

    def steps(self, job: pf.backends.TrainJob) -> Iterator[int]:
        """Launch a client's steps; yield the size of a batch after each launch."""
        torch._foreach_copy_(self._tensors, self._client)
        for tensor in self.update.state:
            tensor.zero_()
        self.update.set_rates([lr for _, lr in job.groups])
        self._used = []
        chosen: dict[torch.Size | int, _Program] = {}  # in a phase only the batches' shapes differ
        number = 0
        for count, size, batch in self._batches(job):
            inputs: Inputs = (), job.loss.constants(number)
            if batch is not None:
                inputs = (batch.x, batch.y, batch.index), inputs[1]
            shape = size if batch is None else batch.x.shape
            program = chosen.get(shape)
            if program is None:
                program = chosen[shape] = self._program(job, size, inputs)
                self._used.append(program)
            chain = self._chain(program) if count > 1 else None
            for _ in range(1 if chain else count):
                program.run(inputs, chain)
                if job.after_batch is not None:
                    self._after_batch(job, program, batch)
                yield size
            number += count

    def _batches(self, job: pf.backends.TrainJob) -> Iterator[tuple[int, int, pf.Batch | None]]:
        """Yield a number of steps, the size of their batches, and the batch of a single step.

        Several steps may be a chain. The batch is None where the stage takes it by itself.
        """
        table = job.table()
        if table is None or not self.order.takes(table.data, table.read, table.picks, job.sizes):
            for batch in job.batches():
                yield 1, len(batch.x), batch
            return
        chains = job.after_batch is None and len(job.sizes) >= CHAIN
        # They are the same object in all steps, or another one in each.
        chains = chains and job.loss.constants(0) is job.loss.constants(1)
        for size, alike in groupby(job.sizes):
            left = sum(1 for _ in alike)
            while left:
                count = CHAIN if chains and left >= CHAIN and size * CHAIN <= AHEAD else 1
                self.order.reach(size * count)
                yield count, size, None
                left -= count

    def _after_batch(
        self, job: pf.backends.TrainJob, program: _Program, batch: pf.Batch | None
    ) -> None:
        """Show a step to the methods, which may keep what they see."""
        made = program.batch if batch is None else batch
        lent = _LentBatch(made) if batch is None else batch
        output = _LentOutput(program.output)
        left = [weakref.ref(each) for each in (lent, output) if isinstance(each, _Lent)]
        with self._own_draws() if self._module else nullcontext():
            job.after_batch(lent, output)
        del lent, output
        for each in left:
            if (kept := each()) is not None:
                kept.copied()

    def sums(self) -> dict[str, Tensor]:
        """Return each loss term's sum over a client's samples; the current stream waits for it."""
        if self._module:
            self._module.current_stream(self.device).wait_stream(self._stream)
        sums: dict[str, Tensor] = {}
        for program in self._used:
            for label, value in program.sums.items():
                sums[label] = sums.get(label, 0) + value
        return sums

    def give(self) -> None:
        """Give the client its weights, after `sums`; forget what it brought."""
        torch._foreach_copy_(self._client, self._tensors)
        self._client = []
        for program in self._used:
            program.forget()
        self.order.forget()

    # --- programs -------------------------------------------------------------------------------

    def _program(self, job: pf.backends.TrainJob, size: int, inputs: Inputs) -> _Program:
        """Return the program for a step's inputs, recorded if necessary, with zero sums."""
        key = stepping.outline((size, inputs))
        program = self._programs.pop(key, None) or _Program(self, job, size, inputs)
        if not program.recorded:
            plain = [other for other, each in self._programs.items() if not each.recorded]
            for other in plain[: -PROGRAMS or None]:
                del self._programs[other]
        self._programs[key] = program
        program.uses += job.sizes.count(size)
        if not program.recorded and (self._always or not self._module or program.uses >= PAYS):
            self._record(program)
        for value in program.sums.values():
            value.zero_()
        return program

    @property
    def is_full(self) -> bool:
        """True if the stage has more captured programs than it should keep."""
        return sum(program.recorded for program in self._programs.values()) > PROGRAMS

    def _restorer(self, program: _Program) -> Callable[[], None]:
        """Return a function that gives all tensors that steps change the values of now."""
        changed = [*self._tensors, *self.update.state, *self.order.state, *program.sums.values()]
        kept = [tensor.clone() for tensor in changed]

        def restore() -> None:
            torch._foreach_copy_(changed, kept)

        return restore

    def _record(self, program: _Program) -> None:
        """Record a program's step, and leave the stage as it was.

        Raises:
            NotReplayable: A replay computes something else than the step.
        """
        restore = self._restorer(program)

        def memory() -> list[Tensor]:
            return [*self._tensors, *self.update.memory, *self.order.memory, *program.memory()]

        step = program.step
        with self._draws_undone():
            if self._module and not self._checks:
                with self._module.device(self.device):
                    graph = self._captured(program, memory, restore)
                    self._compare(program, program.step, graph, restore)
                    program.recorded_step = graph
            else:
                step()
                program.recorded_step = pf.backends.StepTrace(step, memory(), program.results)
        restore()

    def _captured(
        self, program: _Program, memory: Callable[[], list[Tensor]], restore: Callable[[], None]
    ) -> _Graph:
        """Warm up and capture a program's step."""
        constants = pf.backends.StepTrace.read_outside(program.step, memory())
        restore()
        if self.device not in self._warm:
            trace = pf.backends.StepTrace(program.step, memory(), program.results)
            for _ in range(WARM_UP - 1):
                trace()
                restore()
            constants += trace.constants
        graph = _Graph(program.step, self._module, self._stream, self._pool, constants)
        self._warm.add(self.device)
        return graph

    def _chain(self, program: _Program) -> _Graph | None:
        """Return the graph of `CHAIN` steps, captured if it pays now; None as long as it does not.

        Raises:
            NotReplayable: It computes something else than its steps.
        """
        step, pays = program.recorded_step, self._always or program.uses >= CHAIN_PAYS
        if program.chain is None and isinstance(step, _Graph) and pays:
            restore, shown = self._restorer(program), (program.batch, program.output)
            with self._draws_undone(), self._module.device(self.device):
                repeated = partial(_repeat, program.step)
                chain = _Graph(repeated, self._module, self._stream, self._pool, [])
                program.batch, program.output = shown  # of the step, which is also replayed alone
                self._compare(program, partial(_repeat, step), chain, restore)
            restore()
            program.chain = chain
        return program.chain

    def _compare(
        self,
        program: _Program,
        code: Callable[[], None],
        graph: _Graph,
        restore: Callable[[], None],
    ) -> None:
        """Compare a graph with the code of its step, from weights other than the capture's.

        Args:
            program: The step.
            code: Its code, or for a chain its steps.
            graph: The capture.
            restore: Gives all tensors that a step changes the values from before the capture.

        Raises:
            NotReplayable: A loss term, weight, buffer or moment differs by more than rounding.
        """
        tensors = dict(zip(Parts(self.whole).tensors, self._tensors, strict=True))
        tensors |= {f"moment {n} of the optimiser": t for n, t in enumerate(self.update.state)}
        tensors = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        draws, cpu = self._own.get_state(), torch.get_rng_state()
        shown = program.batch, program.output  # in the graph's memory

        def run(step: Callable[[], None], noise: float = 0.0) -> captured_steps.Step:
            restore()
            self._own.set_state(draws)
            torch.set_rng_state(cpu)
            for weight in self.trained:
                weight.detach().copy_(captured_steps.moved(weight.detach(), noise))
            for value in program.sums.values():
                value.zero_()
            before = {name: tensor.clone() for name, tensor in tensors.items()}
            step()
            losses = {label: value / program.size for label, value in program.sums.items()}
            return captured_steps.Step(losses, before, {n: t.clone() for n, t in tensors.items()})

        wanted, rounded = run(code), run(code, captured_steps.NOISE)
        if differs := captured_steps.difference(wanted, rounded, run(graph)):
            raise pf.backends.NotReplayable(f"its graph does not compute the step: {differs}")
        program.batch, program.output = shown

    # --- random draws ---------------------------------------------------------------------------

    @contextmanager
    def _draws_undone(self) -> Iterator[None]:
        """Leave torch's generators as they were before a block; on streams, it uses the stage's."""
        with torch.random.fork_rng(devices=[]):
            if not self._module:
                yield
                return
            own, cpu = self._own.get_state(), self._cpu_state
            with self._own_draws():
                yield
            self._own.set_state(own)
            self._cpu_state = cpu

    @contextmanager
    def _own_draws(self) -> Iterator[None]:
        """Let torch's default generators be the client's own, which other clients don't draw from.

        A capture notes the state of the default generator, not the generator: replays draw from the
        state that was there, and a client that writes its seed there draws its own numbers.
        """
        cpu, device = torch.get_rng_state(), self._default.graphsafe_get_state()
        torch.set_rng_state(self._cpu_state)
        self._default.graphsafe_set_state(self._own)
        try:
            yield
        finally:
            self._default.graphsafe_set_state(device)
            self._cpu_state = torch.get_rng_state()
            torch.set_rng_state(cpu)

    def plainly(self, step: Callable[[], None]) -> None:
        """Run a step's own code."""
        context: AbstractContextManager[None] = self._own_draws() if self._module else nullcontext()
        with context:
            step()


class _Order:
    """The order of a client's samples in fixed memory, from which a step takes its next batch.

    Args:
        job: The first client of a stage.

    Attributes:
        state: What a step changes: the number of samples that it has passed.
    """

    def __init__(self, job: pf.backends.TrainJob) -> None:
        self._device = job.device
        self.state: list[Tensor] = []
        self._data: Tensor | None = None
        self._read: Callable[[Tensor], Tensor]
        self._picks = self._steps = torch.empty(0)
        self._all: Tensor | None = None
        self._next = self._filled = self._end = 0

    @property
    def memory(self) -> list[Tensor]:
        """All tensors that a step reads."""
        return [] if self._data is None else [self._data, self._picks, self._steps, *self.state]

    def takes(
        self,
        data: Tensor,
        read: Callable[[Tensor], Tensor],
        picks: Tensor,
        sizes: Sequence[int],
    ) -> bool:
        """Hold a client's samples and order from now on, if they fit.

        They don't if the stage's programs read the samples of another tensor.
        """
        if not sizes or max(sizes) > AHEAD or sum(sizes) != picks.shape[1]:
            return False
        if self._data is None:
            self._data, self._read = data, read
            shape = len(picks), AHEAD
            self._picks = torch.zeros(shape, dtype=torch.int64, device=self._device)
            self._steps = torch.arange(AHEAD, device=self._device)
            self.state = [torch.zeros(1, dtype=torch.int64, device=self._device)]
        elif data is not self._data or len(picks) != len(self._picks):
            return False
        self._all, self._next, self._filled = picks, 0, 0
        return True

    def reach(self, size: int) -> None:
        """Make the next ``size`` samples available to the next step."""
        if self._next + size > self._filled:
            assert self._all is not None
            part = self._all[:, self._next : self._next + AHEAD]
            self._picks[:, : part.shape[1]].copy_(part)
            self.state[0].zero_()
            self._filled = self._next + part.shape[1]
        self._next += size

    def forget(self) -> None:
        """Forget a client's order."""
        self._all = None

    def batch(self, size: int, phase: str) -> pf.Batch:
        """Return the next batch; a part of a step."""
        (passed,) = self.state
        assert self._data is not None
        row, index, *labels = self._picks.index_select(1, passed + self._steps[:size]).unbind()
        passed.add_(size)
        y = labels[0] if labels else self._picks.new_empty(0)
        return pf.Batch(self._read(self._data[row]), y, index, phase)


class _Program:
    """A step on a stage, for one outline of its inputs.

    Attributes:
        size: Samples of a batch.
        sums: Each loss term's sum over samples; grows with every run.
        batch: The last batch; the next run may write into its memory.
        output: What the model made of it, as well.
        uses: Steps of all clients so far, and of the current one.
        recorded_step: The recorded step; None as long as it is not recorded.
        chain: The graph of `CHAIN` steps; None as long as there is none.
    """

    def __init__(self, stage: Stage, job: pf.backends.TrainJob, size: int, inputs: Inputs) -> None:
        self.sums: dict[str, Tensor] = {}
        self.batch: pf.Batch
        self.output: pf.Output
        self.uses = 0
        self.recorded_step: Callable[[], None] | None = None
        self.chain: _Graph | None = None
        self._stage, self._terms = stage, job.loss_on(stage.whole).terms
        self.size, self._phase = size, job.phase.name
        fixed: Inputs = tree_map_only(Tensor, lambda t: t.detach().clone(), inputs)
        self._inputs = _tensors(fixed)
        self._copied, self._constants = fixed
        self._last: list[stepping.Last]
        self._tree: Tree | None
        self._leaves: list[Tensor]
        self.forget()

    @property
    def recorded(self) -> bool:
        """True if the step is recorded."""
        return self.recorded_step is not None

    def memory(self) -> list[Tensor]:
        """Fixed memory of the step besides that of the stage."""
        return [*self._inputs, *self.sums.values()]

    def results(self) -> list[Tensor]:
        """Return the tensors of the last step that `after_batch` may read."""
        batch, output = self.batch, self.output
        return [batch.x, batch.y, batch.index, output.features, output.logits]

    def step(self) -> None:
        """The step itself: reads and writes fixed memory only."""
        stage, model = self._stage, self._stage.whole.model
        if self._copied:
            x, y, index = self._copied
            batch = pf.Batch(x, y, index, self._phase)
        else:
            batch = stage.order.batch(self.size, self._phase)
        output = stepping.forward(model.features, model.head, batch.x, stage.precision)
        terms = self._terms(batch, output, self._constants)
        stage.update(torch.autograd.grad(stepping.total(terms), stage.trained, allow_unused=True))
        for label, term in terms.items():
            if label not in self.sums:  # in the first run, before any is captured
                self.sums[label] = torch.zeros((), dtype=torch.float64, device=term.device)
            self.sums[label].add_(term.detach().double(), alpha=len(batch.x))
        self.batch = batch
        self.output = pf.Output(output.features.detach(), output.logits.detach())

    def run(self, inputs: Inputs, chain: _Graph | None = None) -> None:
        """Copy in what belongs to this step and is not there yet; run the step, or the chain."""
        batch, constants = inputs
        if constants is not self._tree:  # walking through it takes as long as the rest of a step
            self._tree, self._leaves = constants, _tensors(constants)
        given = (*batch, *self._leaves)
        for place, last, tensor in zip(self._inputs, self._last, given, strict=True):
            if not last.same([tensor]):
                place.copy_(tensor.detach())
        if isinstance(self.recorded_step, _Graph):
            (chain or self.recorded_step)()
        else:
            self._stage.plainly(self.recorded_step or self.step)

    def forget(self) -> None:
        """Forget a client's tensors, which are copied."""
        self._last = [stepping.Last() for _ in self._inputs]
        self._tree, self._leaves = None, []


class _Graph:
    """A step captured in a CUDA graph on the stream of its replays; a call replays it there.

    It reads and writes fixed memory alone and never waits; graphs of a pool never run together. A
    cuBLAS workspace belongs to a stream, and graphs that share one destroy each other's sums when
    they run at the same time. Another thread, such as one that writes a checkpoint, may use the
    device during the capture.

    Args:
        step: The step, which has run on the stream before.
        module: The device's module, such as `torch.cuda`.
        stream: The current stream.
        pool: The graph's memory pool.
        constants: What the step reads outside of its fixed memory, and must not become the memory
            of others.
    """

    def __init__(
        self,
        step: Callable[[], None],
        module: Any,  # noqa: ANN401 - torch's
        stream: Any,  # noqa: ANN401
        pool: Any,  # noqa: ANN401
        constants: list[object],
    ) -> None:
        self._constants, self._graph = constants, module.CUDAGraph()
        with module.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            step()

    def __call__(self) -> None:
        """Launch the step on the current stream."""
        self._graph.replay()


class _Lent:
    """A batch or output in a graph's memory, which the next replay overwrites.

    A tensor is copied when it is read, because most calls of ``after_batch`` read none.

    Args:
        made: The batch or output in the graph's memory.
    """

    def __init__(self, made: pf.Batch | pf.Output) -> None:
        self._made = made

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of a field that is not there yet
        if name.startswith("_") or name not in type(self._made).__slots__:
            raise AttributeError(name)
        value = getattr(self._made, name)
        value = value.clone() if isinstance(value, Tensor) else value
        setattr(self, name, value)
        return value

    def copied(self) -> None:
        """Copy all tensors, because the object is kept."""
        for name in type(self._made).__slots__:
            getattr(self, name)
        del self._made


class _LentBatch(_Lent, pf.Batch):
    """A batch in a graph's memory."""


class _LentOutput(_Lent, pf.Output):
    """An output in a graph's memory."""


def _repeat(step: Callable[[], None]) -> None:
    """Run a step as many times as a chain has steps."""
    for _ in range(CHAIN):
        step()


def _tensors(tree: Inputs | Tree) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
