"""A device with streams and graphs for tests on a CPU; all copies, waits and launches are noted.

The device is called ``simgpu``. Its tensors are wrappers of CPU tensors, so results equal those of
a CPU to the bit, and code that mixes devices fails as on a GPU. A captured graph repeats the
operations of its capture on the same memory, with the numbers of the capture, as a CUDA graph
does; draws come from the generator state that was the device's at the capture. A stream that uses
memory which another stream has written, without having waited for it, is a `Race`, and so is a
write into memory that another stream may still read. If memory is freed, and its stream creates the
next tensor, which may get that memory, while another stream may still use it, this is noted in
``freed_early``. What it can't show: seconds, and rounding of a GPU's kernels.

``pytest_plugins`` names this file; a test takes the fixture ``gpu``.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import Counter
from contextlib import contextmanager
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.utils import backend_registration

from protofl.system.randomness import _accelerated

NAME = "simgpu"

aten = torch.ops.aten


class Race(Exception):
    """A stream uses memory that another stream may still write."""


class Simulated(Tensor):
    """A tensor on the simulated device; ``raw`` is the CPU tensor that holds its values."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw):
        if raw.dtype == torch.float64 and not GPU.float64:
            raise TypeError("Cannot convert a tensor to float64, which this device doesn't have")
        made = Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        GPU.took(raw.untyped_storage())
        made.raw, made.block = raw, GPU.block(raw)
        return made

    def untyped_storage(self):
        return self.raw.untyped_storage()

    def __deepcopy__(self, memo):
        made = memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        made._is_param = getattr(self, "_is_param", False)
        return made

    def __repr__(self, **_):
        return f"Simulated({self.raw!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return GPU.carry_out(func, args, kwargs or {})


class Stream:
    """A stream: what is launched on it, and which launches of others it has waited for."""

    _numbers = itertools.count()
    every = []

    def __init__(self, device=None, priority=0):
        self.number = next(self._numbers)
        self.seen = Counter()  # {stream: launches of it that come before all later ones here}
        self.every.append(self)

    def wait_stream(self, other):
        self.seen |= other.seen

    def wait_event(self, event):
        self.seen |= event.seen

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self):
        GPU.expect_no_capture("synchronize")
        GPU.note("synchronize")
        GPU.host_has_seen(self)

    def query(self):
        return True


class Block:
    """Memory of tensors that share it; noted when it is freed while another stream may use it."""

    def __init__(self, place, machine):
        self.place, self.machine, self.stream = place, machine, machine.stream
        self.recorded = set()  # streams by record_stream

    def __del__(self):
        self.machine.freed(self)


class State:
    """A generator's seed and offset, which several generators can share."""

    def __init__(self, values):
        self.values = values


class Generator:
    """A generator of the device, with the interface of one of CUDA."""

    def __init__(self, state):
        self.state = state

    def manual_seed(self, seed):
        self.state.values = torch.Generator().manual_seed(seed).get_state()
        return self

    def get_state(self):
        return self.state.values.clone()

    def set_state(self, values):
        GPU.expect_no_capture("set_state")
        self.state.values = values.clone()
        return self

    def clone_state(self):
        return Generator(State(self.get_state()))

    def graphsafe_get_state(self):
        return Generator(self.state)

    def graphsafe_set_state(self, other):
        self.state = other.state
        return self


class Event:
    """A moment on a stream."""

    def __init__(self, enable_timing=False, **_):
        self.seen = Counter()

    def record(self, stream=None):
        self.seen = Counter((stream or GPU.stream).seen)

    def wait(self, stream=None):
        (stream or GPU.stream).wait_event(self)

    def synchronize(self):
        GPU.note("synchronize")

    def query(self):
        return True

    def elapsed_time(self, other):
        return 1.0


class Graph:
    """A captured graph: the operations of its capture, on the memory of its capture."""

    def __init__(self, keep_graph=False):
        self.steps, self.stream, self.state, self.replayed_on = [], None, None, set()
        GPU.graphs.append(self)

    def replay(self):
        GPU.launched("graph", self)
        self.replayed_on.add(GPU.stream)
        with GPU.generator_has(self.state):
            for func, args, kwargs, out in self.steps:
                GPU.run_again(func, args, kwargs, out)

    def reset(self):
        self.steps = []


class Machine:
    """The simulated device.

    Attributes:
        copies: (``to device`` or ``to host``, bytes) of each copy.
        copy_streams: The number of the stream of each copy.
        waits: Counts of reasons for which the program waited: ``item``, ``synchronize``.
        launches: (stream's number, operation) in the order of launches; see `watched`.
        freed_early: Notes of memory that was taken again while another stream might use it.
        shown: Whether torch finds the device.
        total: Bytes of its memory; what needs more raises `torch.OutOfMemoryError`.
        used: Bytes that a test says others use.
        live: Bytes of all tensors on the device.
        peak: The most of them at a time.
        number: Number of GPUs; only the first one computes.
        float64: Whether it has float64; Apple's GPUs (``mps``) don't.
    """

    shown = False
    live = peak = 0

    def __init__(self):
        self.reset()

    def reset(self):
        self.copies, self.waits, self.launches = [], Counter(), []
        self.copy_streams = []
        self.graphs, self.capturing = [], None
        Stream.every.clear()
        self.default = Stream()
        self.stream = self.default
        self.written, self.check_races, self.watch = {}, True, False
        self.readers, self.freed_early, self.blocks = {}, [], weakref.WeakValueDictionary()
        self.free = {}  # {stream of freed memory: {another stream that used it: its last use}}
        self.generator = Generator(State(torch.Generator().get_state()))
        self.total, self.used, self.number, self.float64 = 80 << 30, 0, 1, True
        self.storages, self.live, self.peak = {}, 0, 0

    # --- what tests ask -------------------------------------------------------------------------

    def bytes(self, direction):
        return sum(size for way, size in self.copies if way == direction)

    def count(self, direction):
        return sum(way == direction for way, _ in self.copies)

    @contextmanager
    def watched(self):
        """Note launches in a block; yields the list of (stream's number, operation)."""
        self.launches, self.watch = [], True
        try:
            yield self.launches
        finally:
            self.watch = False

    # --- its memory -----------------------------------------------------------------------------

    def took(self, storage):
        """Count the memory of a tensor, once, until nothing uses it."""
        key, size = storage._cdata, storage.nbytes()
        if key in self.storages:
            return
        # torch's thread for backward passes ends the program with an error of Python's.
        here = threading.current_thread() is threading.main_thread()
        if here and self.live + size > self.total - self.used:
            self.note("out of memory")
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        self.storages[key] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.gone, key, self.storages).atexit = False

    def gone(self, key, storages):
        self.written.pop(key, None)
        size = storages.pop(key)
        if storages is self.storages:  # not of a test before
            self.live -= size

    # --- what the device does -------------------------------------------------------------------

    def note(self, why):
        self.waits[why] += 1

    def host_has_seen(self, stream):
        for other in Stream.every:  # the program launches everything after its wait
            other.seen |= stream.seen

    def launched(self, what, graph=None):
        if self.watch and self.capturing is None:
            self.launches.append((self.stream.number, what))

    def carry_out(self, func, args, kwargs):
        tensors = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        to, name = kwargs.get("device"), _name(func)
        if func is aten._to_copy.default and to is not None:
            there = torch.device(to).type == NAME
            if isinstance(args[0], Simulated) != there:
                return self.copied(args[0], {k: v for k, v in kwargs.items() if k != "device"})
        if func is aten.copy_.default:
            return self.copied_onto(*args[:2])
        if func is aten._local_scalar_dense.default:
            self.expect_no_capture("item")
            self.note("item")
        for tensor in tensors:
            here = isinstance(tensor, Simulated) or tensor.dim() == 0 or tensor.is_meta
            if not here and "index" not in name:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found {NAME}:0 and "
                    f"{tensor.device} ({name})"
                )
        for tensor in tensors:
            if isinstance(tensor, Simulated):
                self.read(tensor.raw, name)
        if "_fused_" in name:
            self.expect_alike(args)
        out = self.computed(func, args, kwargs)
        if func is aten._local_scalar_dense.default:
            self.host_has_seen(self.stream)
        if to is not None and torch.device(to).type != NAME:
            return out  # empty_like(…, device="cpu")
        known = {id(t.raw): t for t in tensors if isinstance(t, Simulated)}
        result = _mapped(lambda each: _simulated(each, known), out)
        self.book_writes(func, tensors, result)
        if self.capturing is not None:
            self.capturing.steps.append((func, args, kwargs, result))
        self.launched(name)
        return result

    def computed(self, func, args, kwargs):
        """Carry out an operation on the CPU; draws come from the device's generator."""
        args, kwargs = _mapped(_raw, args), _mapped(_raw, kwargs)
        if not _draws(func) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        before = torch.get_rng_state()
        torch.set_rng_state(self.generator.state.values)
        try:
            return func(*args, **kwargs)
        finally:
            self.generator.state.values = torch.get_rng_state()
            torch.set_rng_state(before)

    @contextmanager
    def generator_has(self, state):
        before, self.generator.state = self.generator.state, state
        try:
            yield
        finally:
            self.generator.state = before

    def expect_alike(self, args):
        """Check what torch's fused kernels of CUDA ask of parameters, gradients and moments."""
        lists = [each for each in args[:4] if each]
        for tensors in zip(*lists, strict=True):
            if len({(t.stride(), t.dtype) for t in tensors}) > 1:
                raise RuntimeError("params and grads must have same dtype, device, and layout")
        if len({t.dtype for t in args[0]}) > 1:
            raise RuntimeError("params must have the same dtype")

    def expect_no_capture(self, what):
        if self.capturing is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing ({what})")

    def copied(self, tensor, options):
        there = not isinstance(tensor, Simulated)
        self.expect_no_capture("copy")
        size = tensor.numel() * tensor.element_size()
        self.copies.append(("to device" if there else "to host", size))
        self.copy_streams.append(self.stream.number)
        if not options.get("non_blocking"):
            self.note("copy")
        options = {k: v for k, v in options.items() if k != "pin_memory"}
        raw = aten._to_copy.default(_raw(tensor), **options)
        if there:
            made = Simulated(raw)
            self.write(raw, fresh=True)
            return made
        self.read(tensor.raw, "a copy to the host")
        if not options.get("non_blocking"):
            self.host_has_seen(self.stream)
        return raw

    def copied_onto(self, target, source):
        if isinstance(target, Simulated) != isinstance(source, Simulated):
            if source.dim() or not isinstance(target, Simulated):
                self.expect_no_capture("copy")
            way = "to device" if isinstance(target, Simulated) else "to host"
            self.copies.append((way, source.numel() * source.element_size()))
            self.copy_streams.append(self.stream.number)
        if isinstance(source, Simulated):
            self.read(source.raw, "copy_")
        if isinstance(target, Simulated):
            self.write(target.raw)
            if self.capturing is not None:
                self.capturing.steps.append((aten.copy_.default, (target, source), {}, target))
        _raw(target).copy_(_raw(source))
        self.launched("aten.copy_.default")
        return target

    def run_again(self, func, args, kwargs, out):
        """Run a captured operation again, and put its results where they were."""
        tensors = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for tensor in tensors:
            if isinstance(tensor, Simulated):
                self.read(tensor.raw, _name(func))
        fresh = self.computed(func, args, kwargs)
        for old, new in zip(_leaves(out), _leaves(fresh), strict=True):
            if isinstance(old, Simulated) and _place(old.raw) != _place(new):
                old.raw.copy_(new)
        self.book_writes(func, tensors, out)

    # --- order of streams -----------------------------------------------------------------------

    def book_writes(self, func, tensors, out):
        places = {_place(_raw(tensor)) for tensor in tensors}
        changes = _mutates(func)
        for tensor in _leaves(out):
            if isinstance(tensor, Simulated) and (changes or _place(tensor.raw) not in places):
                self.write(tensor.raw, fresh=_place(tensor.raw) not in places)

    def read(self, raw, what):
        self.after_writes(raw, what)
        stream = self.stream
        stream.seen[stream.number] += 1
        self.readers.setdefault(_place(raw), {})[stream] = stream.seen[stream.number]

    def after_writes(self, raw, what):
        stream, number = self.written.get(_place(raw), (None, 0))
        current = self.stream
        if not self.check_races or stream is None or stream is current:
            return
        if current.seen[stream.number] < number:
            raise Race(
                f"{what} on stream {current.number} uses what stream {stream.number} writes; "
                "wait_stream or an event is missing"
            )

    def write(self, raw, *, fresh=False):
        place, stream = _place(raw), self.stream
        if fresh:  # in memory that may have been another tensor's
            self.written.pop(place, None)
            self.readers.pop(place, None)
        self.after_writes(raw, "a write")
        for other, number in self.readers.pop(place, {}).items():
            if self.check_races and other is not stream and stream.seen[other.number] < number:
                raise Race(
                    f"stream {stream.number} writes what stream {other.number} may still read; "
                    "wait_stream or an event is missing"
                )
        stream.seen[stream.number] += 1
        self.written[place] = stream, stream.seen[stream.number]

    # --- memory ---------------------------------------------------------------------------------

    def block(self, raw):
        """Return the block of a tensor's memory."""
        found = self.blocks.get(_place(raw))
        if found is None:
            self.expect_free()
            found = self.blocks[_place(raw)] = Block(_place(raw), self)
        return found

    def freed(self, block):
        """Note memory that its stream may give away while another stream still uses it."""
        if block.stream not in Stream.every:
            return  # of an earlier test
        uses = dict(self.readers.pop(block.place, {}))
        writer, number = self.written.pop(block.place, (None, 0))
        if writer is not None:
            uses[writer] = max(number, uses.get(writer, 0))
        for stream, number in uses.items():
            if stream is not block.stream and stream not in block.recorded:
                free = self.free.setdefault(block.stream, {})
                free[stream] = max(number, free.get(stream, 0))

    def expect_free(self):
        """Note freed memory that the current stream may take now, while another one uses it."""
        for other, number in self.free.pop(self.stream, {}).items():
            if self.stream.seen[other.number] < number:
                self.freed_early.append(
                    f"freed memory of stream {self.stream.number} is taken while stream "
                    f"{other.number} may use it; record_stream or a wait is missing"
                )


# torch's own functions for trees take longer than the operations of these small tensors.


def _leaves(tree):
    """Return the leaves of nested lists, tuples and dictionaries."""
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return [tree]
    found = []
    for each in tree:
        if isinstance(each, (list, tuple, dict)):
            found += _leaves(each)
        else:
            found.append(each)
    return found


def _mapped(change, tree):
    """Return nested lists, tuples and dictionaries with each leaf changed."""
    if isinstance(tree, (list, tuple)):
        return type(tree)([_mapped(change, each) for each in tree])
    if isinstance(tree, dict):
        return {key: _mapped(change, each) for key, each in tree.items()}
    return change(tree)


_name = cache(str)


@cache
def _draws(func):
    return torch.Tag.nondeterministic_seeded in func.tags


@cache
def _mutates(func):
    return func._schema.is_mutable


def _place(raw):
    return raw.untyped_storage()._cdata


def _raw(leaf):
    if isinstance(leaf, Simulated):
        return leaf.raw
    on_device = isinstance(leaf, torch.device) and leaf.type == NAME
    return torch.device("cpu") if on_device else leaf


def _simulated(leaf, known):
    if not isinstance(leaf, Tensor):
        return leaf
    return known.get(id(leaf)) if id(leaf) in known else Simulated(leaf)


class Module:
    """The simulated device's module, as ``torch.cuda`` is CUDA's."""

    Stream, Event, CUDAGraph = Stream, Event, Graph

    def is_available(self):
        return GPU.shown

    def is_initialized(self):
        return True

    def _is_in_bad_fork(self):
        return False

    def device_count(self):
        return GPU.number

    def current_device(self):
        return 0

    def set_device(self, device):
        pass

    @contextmanager
    def device(self, device):
        yield

    @property
    def default_generators(self):
        return (GPU.generator,)

    def manual_seed(self, seed):
        GPU.generator.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device=0):
        return GPU.generator.get_state()

    def set_rng_state(self, state, device=0):
        GPU.generator.set_state(state)

    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]

    def current_stream(self, device=None):
        return GPU.stream

    def default_stream(self, device=None):
        return GPU.default

    @contextmanager
    def stream(self, stream):
        before, GPU.stream = GPU.stream, stream or GPU.stream
        try:
            yield
        finally:
            GPU.stream = before

    def synchronize(self, device=None):
        GPU.note("synchronize")
        for stream in [*Stream.every]:
            GPU.host_has_seen(stream)

    def graph_pool_handle(self):
        return object()

    @contextmanager
    def graph(self, graph, pool=None, stream=None, **_):
        assert GPU.capturing is None
        self.synchronize()
        graph.state = GPU.generator.state
        before, GPU.capturing = graph.state.values, graph
        try:
            with self.stream(stream or Stream()):
                graph.stream = GPU.stream
                yield
        finally:
            GPU.capturing = None
            graph.state.values = before  # a capture draws nothing

    def mem_get_info(self, device=None):
        return GPU.total - GPU.used - GPU.live, GPU.total

    def memory_allocated(self, device=None):
        return GPU.live

    memory_reserved = memory_allocated

    def max_memory_allocated(self, device=None):
        return GPU.peak

    def reset_peak_memory_stats(self, device=None):
        GPU.peak = GPU.live

    def empty_cache(self):
        pass

    def get_device_name(self, device=None):
        return "simulated"


GPU = Machine()

RESIZING = ("arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace")
"""Functions that make an empty tensor and let it grow, which a wrapper of a tensor can't."""


def _filled(op):
    name, _, overload = op.partition(".")
    func = getattr(getattr(aten, name), overload or "default")
    return lambda *args, **kwargs: GPU.carry_out(func, args, kwargs)


@cache
def _registered():
    """Register the device with torch, once in a process."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, Module())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda op, *args, **kwargs: GPU.carry_out(op, args, kwargs), "PrivateUse1")
    growing = torch.library.Library("aten", "IMPL")
    for op in RESIZING:
        growing.impl(op, _filled(op), "PrivateUse1")
    return library, growing


def pytest_collection_finish(session):
    """Register the device before torch starts its threads for the backward pass, one a device."""
    if any("gpu" in getattr(item, "fixturenames", ()) for item in session.items):
        if hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
            _registered()


@pytest.fixture
def gpu(monkeypatch):
    """The simulated device; ``torch.device("simgpu")`` computes there."""
    yield from installed(monkeypatch)


def installed(monkeypatch):
    """Show the device until it goes on; a worker process of a test never does."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no devices in Python")
    _registered()
    GPU.reset()
    _accelerated.cache_clear()  # torch.manual_seed seeds the device, too
    made, listed, ranged = torch.tensor, Tensor.tolist, torch.arange

    def tensor(data, *, dtype=None, device=None, requires_grad=False, **_):
        result = made(data, dtype=dtype)
        result = result if device is None else result.to(device)
        return result.requires_grad_(requires_grad)

    def arange(*args, device=None, **rest):  # torch's would resize an empty wrapper
        there = device is not None and torch.device(device).type == NAME
        return Simulated(ranged(*args, **rest)) if there else ranged(*args, device=device, **rest)

    def new_tensor(self, data, *, dtype=None, device=None, **rest):
        return tensor(data, dtype=dtype or self.dtype, device=device or self.device, **rest)

    def tolist(self):
        if not isinstance(self, Simulated):
            return listed(self)
        GPU.expect_no_capture("tolist")
        GPU.note("item")
        GPU.read(self.raw, "tolist")
        GPU.host_has_seen(GPU.stream)
        return listed(self.raw)

    def record_stream(self, stream):
        self.block.recorded.add(stream)

    # torch.manual_seed takes a stack trace for each kind of device that has not started yet.
    for kind in ("cuda", "mps", "xpu", "mtia"):
        monkeypatch.setattr(getattr(torch, kind), "_is_in_bad_fork", lambda: True, raising=False)
    # torch's own go around the dispatch of operations.
    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(torch, "arange", arange)
    monkeypatch.setattr(Tensor, "new_tensor", new_tensor)
    monkeypatch.setattr(Tensor, "tolist", tolist)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self, *_: self)
    monkeypatch.setattr(Tensor, "record_stream", record_stream)
    GPU.shown = True
    yield GPU
    GPU.shown = False
    GPU.reset()
    _accelerated.cache_clear()
