"""Check that a replayed training step would do the same as the code that was recorded.

A replay, such as a CUDA graph's, repeats operations on the addresses of the recording. Python
numbers, values of CPU tensors and draws of other generators stay those of the recording for ever.
No device tells of this: the results are just wrong. So the operations are compared, on any device.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterable
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from protofl.errors import NotReplayable

_LIBRARIES = str(Path(torch.__file__).parent), str(Path(__file__).parents[2])
"""Folders of torch and of this package, whose lines say nothing about a step."""

ADVICE = (
    "return it from before_training, as {'name': value}, and read constants['name']; in a module, "
    "register_buffer('name', tensor); or run with --engine eager"
)
"""Advice about a value that a recorded step cannot follow."""

PATIENCE = 1.0
"""Seconds in which torch's threads may let go of the last tensors of a backward pass."""

_KEPT = "an engine that replays a step (CUDA graph) keeps the value of the first call"


class StepTrace:
    """A training step, whose operations are noted in its first call and compared in later calls.

    A step may read fixed memory, what it computes itself, and constants: Python numbers and other
    tensors that are the same in every call.

    Args:
        step: The step. It must have run once, so that lazily created tensors exist.
        memory: Tensors in fixed memory, whose values may differ between calls.
        results: Returns tensors that the step computes and that its caller reads after each call.
    """

    def __init__(
        self,
        step: Callable[[], object],
        memory: Iterable[Tensor],
        results: Callable[[], Iterable[Tensor]] = tuple,
    ) -> None:
        self._step, self._memory, self._results = step, [*memory], results
        self._calls: list[_Call] = []

    @staticmethod
    def read_outside(step: Callable[[], object], memory: Iterable[Tensor]) -> list[object]:
        """Run a step, and return everything that a recording of it has to keep alive.

        Args:
            step: The step.
            memory: Its fixed memory.

        Returns:
            Tensors outside of the memory that it reads and did not compute, and storages that it
            created and that are left after it, such as a table that a module creates in its first
            call.
        """
        mode = _Outside(memory)
        with mode:
            step()
        left = [torch.UntypedStorage._new_with_weak_ptr(ref.cdata) for ref in mode.made]
        return [*mode.outside, *(storage for storage in left if storage is not None)]

    @property
    def constants(self) -> list[Tensor]:
        """Tensors outside of the fixed memory that the step reads; a recording keeps them alive."""
        return [tensor for call in self._calls for tensor, _ in call.outside]

    def of(self, step: Callable[[], object], memory: Iterable[Tensor]) -> StepTrace:
        """Return a trace of another step, which is compared with the noted operations."""
        other = copy(self)
        other._step, other._memory = step, [*memory]
        return other

    def __call__(self) -> None:
        """Run the step.

        Raises:
            NotReplayable: A replay of the first call would compute something else.
            Waits: The step waits for tensors' values, which no recording can do.
            Keeps: The step keeps a tensor that it has computed.
        """
        mode = _Mode(self._memory, self._calls)
        with mode:
            self._step()
        mode.end()
        made, first = mode.made, mode.noting
        del mode
        if not first:  # of two calls, what the next one reads is the better explanation
            self._expect_none_kept(made)

    def _expect_none_kept(self, made: dict[StorageWeakRef, str]) -> None:
        """Check that no tensor that the step has computed is left, except its results."""
        results = {_place(tensor) for tensor in (*self._results(), *self.constants)}

        def kept() -> list[str]:
            left = {ref: op for ref, op in made.items() if ref.cdata not in results}
            return [op for ref, op in left.items() if not ref.expired()]  # type: ignore[no-untyped-call]

        if kept():
            gc.collect()  # what is left in a circle of references is not kept
        until = time.monotonic() + PATIENCE
        while kept() and time.monotonic() < until:
            time.sleep(0.01)
        if names := kept():
            raise Keeps(
                f"the step keeps a tensor that it has computed ({names[0]}), and a recorded step "
                "writes into the same memory each time"
            )


class Waits(RuntimeError):
    """A step waits for tensors' values, so it cannot be recorded; `eager` can run it."""


class Keeps(RuntimeError):
    """A step keeps a tensor that it has computed, for code outside of it; `eager` can run it."""


class _Call:
    """One operation: its name, arguments, and the tensors from outside of the step.

    Attributes:
        name: The operation.
        arguments: Its arguments without tensors' values.
        outside: Tensors that are neither in fixed memory nor computed by the step, with a copy.
    """

    def __init__(self, name: str, leaves: list[Any], outside: list[Tensor]) -> None:
        self.name = name
        self.arguments = [_described(leaf) for leaf in leaves]
        self.outside = [(tensor, tensor.detach().clone()) for tensor in outside]


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees every operation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes two seconds


class _Outside(_Watching):
    """Notes the tensors that a step reads and has not computed, without a copy of their values."""

    def __init__(self, memory: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {_place(tensor) for tensor in memory}
        self.outside: list[Tensor] = []
        self.made: set[StorageWeakRef] = set()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Note the arguments and results of an operation, and carry it out."""
        for leaf in tree_leaves((args, kwargs or {})):
            if isinstance(leaf, Tensor) and _place(leaf) not in self._known:
                self._known.add(_place(leaf))
                self.outside.append(leaf)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and _place(leaf) not in self._known:
                self._known.add(_place(leaf))
                self.made.update(_weak(leaf))
        return result


class _Mode(_Watching):
    """Notes the operations of one call of a step, or compares them with those noted before.

    Attributes:
        noting: Whether it notes them.
        made: The memory of the step's results, with the operation that made each.
    """

    def __init__(self, memory: list[Tensor], calls: list[_Call]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Storages are kept, so that no other tensor can take the place of one in memory.
        self._known = {_place(tensor): tensor for tensor in memory}
        self._calls, self.noting, self._at = calls, not calls, 0
        self.made: dict[StorageWeakRef, str] = {}

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Check an operation, and carry it out."""
        leaves = tree_leaves((args, kwargs or {}))
        _expect_no_wait(func, leaves)
        for leaf in leaves:
            if isinstance(leaf, torch.Generator):
                raise NotReplayable(
                    f"the step draws from a generator of its own ({func}, {_caller()})",
                    "an engine that replays a step follows torch's default generator alone",
                    "draw in before_training from client.generator, and return "
                    "pf.per_step(tensor); or run with --engine eager",
                )
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        outside = [tensor for tensor in tensors if _place(tensor) not in self._known]
        call = _Call(str(func), leaves, outside) if self.noting else None
        if call is not None:
            self._calls.append(call)
        else:
            self._compare(str(func), leaves, outside)
        self._at += 1
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and _place(tensor) not in self._known:
                self._known[_place(tensor)] = tensor
                self.made |= dict.fromkeys(_weak(tensor), str(func))
        return result

    def _compare(self, name: str, leaves: list[Any], outside: list[Tensor]) -> None:
        first = self._calls[self._at] if self._at < len(self._calls) else None
        if first is None or first.name != name or len(first.arguments) != len(leaves):
            raise self._another_way(name)
        for before, leaf in zip(first.arguments, leaves, strict=True):
            now = _described(leaf)
            if before == now:
                continue
            if isinstance(leaf, Tensor):
                raise self._another_way(name)
            raise NotReplayable(
                f"the step uses {before} in its first call and {now} in a later one ({name}, "
                f"{_caller()})",
                _KEPT,
                ADVICE,
            )
        for (_, old), tensor in zip(first.outside, outside, strict=False):
            if not _equal(old, tensor):
                values = f" ({old.item()}, later {tensor.item()})" if old.dim() == 0 else ""
                raise NotReplayable(
                    f"the step reads a tensor {list(tensor.shape)} whose values change between "
                    f"calls{values}, and which is neither in given nor a parameter or buffer "
                    f"({name}, {_caller()})",
                    _KEPT,
                    ADVICE,
                )
        if len(first.outside) != len(outside):
            raise self._another_way(name)

    def _another_way(self, name: str) -> NotReplayable:
        before = self._calls[self._at].name if self._at < len(self._calls) else "its end"
        return NotReplayable(
            f"the step computes {before} in its first call, and {name} in a later one "
            f"({_caller()})",
            "an engine that replays a step (CUDA graph) repeats the operations of the first call",
            "let before_training decide, and return the decision as a number or string in given; "
            "or run with --engine eager",
        )

    def end(self) -> None:
        """Check that the whole step was run."""
        if self._at < len(self._calls):
            raise self._another_way("its end")


def _expect_no_wait(func: Any, leaves: list[Any]) -> None:  # noqa: ANN401 - torch's
    """Refuse operations that wait for tensors' values, as a capture does on a GPU.

    Raises:
        Waits: The operation is one of them.
    """
    tags = func.tags
    waits = torch.Tag.data_dependent_output in tags
    if torch.Tag.dynamic_output_shape in tags:
        narrow = torch.bool, torch.uint8
        masks = any(isinstance(leaf, Tensor) and leaf.dtype in narrow for leaf in leaves[1:])
        waits = masks or not str(func).startswith("aten.index.")
    if waits:
        raise Waits(f"the step makes numbers or shapes of tensors' values: {func} ({_caller()})")


def _described(leaf: Any) -> str:  # noqa: ANN401 - an argument of an operation
    """Return an argument in words; of a tensor, all but its values."""
    if isinstance(leaf, Tensor):
        return f"{leaf.dtype} {tuple(leaf.shape)} on {leaf.device}"
    return repr(leaf)


def _place(tensor: Tensor) -> int:
    """Return what tells a tensor's memory from others."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a sparse tensor has no storage
        return id(tensor)


def _weak(tensor: Tensor) -> list[StorageWeakRef]:
    """Return a weak reference to a tensor's memory; none for a sparse tensor."""
    try:
        return [StorageWeakRef(tensor.untyped_storage())]  # type: ignore[no-untyped-call]
    except (NotImplementedError, RuntimeError):
        return []


def _equal(one: Tensor, two: Tensor) -> bool:
    """Return True if two tensors have the same bits (NaN equals NaN)."""
    same = one.dtype == two.dtype and one.shape == two.shape and one.device == two.device
    return same and bool(torch.allclose(one, two, rtol=0, atol=0, equal_nan=True))


def _caller() -> str:
    """Return the file and line of a plugin or an engine that called torch."""
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(_LIBRARIES)]
    if not frames:  # on a GPU, torch's own threads run the backward pass
        return "in the backward pass"
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
