"""A step as the list of its tensor operations, which repeats without Python and autograd.

On a CPU a step of small nets costs more in `torch.func.vmap` and autograd than in its kernels. So
its operations are noted once, below both, and repeated by TorchScript: the same kernels on the same
shapes, so the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

REFUSED = {torch.Tag.data_dependent_output, torch.Tag.nondeterministic_seeded}
"""Tags of operations whose repetition may need other numbers, or draws at random."""

PAYS = 20
"""Runs of a step from which its recording pays. It costs about as much as so many runs save: for a
small perceptron 27 ms, where a run of five clients saves 1.2 ms and one of twenty 1.6 ms."""

KEPT = 64
"""Recordings that are kept at most; with one more, all go."""

FORMATS = {"torch.contiguous_format": 0, "torch.preserve_format": 1, "torch.channels_last": 2}
"""Memory formats as TorchScript numbers them."""


class Programs:
    """Steps by their keys, each recorded on a CPU once it has run often."""

    def __init__(self) -> None:
        self._runs: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, Callable[..., Any]] = {}

    def run(self, key: Hashable, step: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:  # noqa: ANN401
        """Return what a step returns for tensors.

        Args:
            key: Equal keys have equal steps, and tensors of the same shapes.
            step: The step, which may write into its arguments.
            tensors: Its arguments.
        """
        self._runs[key] += 1
        if self._runs[key] == PAYS and tensors[0].device.type == "cpu":
            if len(self._recorded) == KEPT:
                self._recorded.clear()
            # One that cannot be recorded runs on as it is.
            with suppress(RuntimeError, TypeError, ValueError):
                self._recorded[key] = Recording(step, [tensor.clone() for tensor in tensors])
        return self._recorded.get(key, step)(*tensors)


class Place(int):
    """The place of a tensor among those of a recording."""


class Recording:
    """The operations of a function of tensors; a call repeats them with other tensors.

    The function runs once, and must give the same bits when it is repeated. Tensors that it reads
    from elsewhere stay those of this run. Its Python code does not run again: whoever records has
    to know that it does the same each time (see `protofl.backends.StepTrace`).

    Args:
        function: The function. It may write into its arguments, and returns a tree of tensors.
        inputs: Its arguments.

    Raises:
        ValueError: An operation cannot be repeated.
    """

    def __init__(self, function: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
        again = [tensor.clone() for tensor in inputs]
        mode = _Notes(inputs)
        with mode:
            result = function(*inputs)
        self._leaves, self._structure = tree_flatten(result)
        self._tensors = [at for at, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        # As arguments, because a constant tensor of a Python number would be a number.
        self._held = [*mode.held.values()]
        graph = _Script([*map(Place, range(len(inputs))), *mode.held])
        for func, noted, made in mode.operations:
            graph.add(func, noted, made)
        self._repeat = graph.function([mode.place(self._leaves[at]) for at in self._tensors])
        wanted = [*inputs, *(self._leaves[at] for at in self._tensors)]
        found = [*again, *(leaf for leaf in tree_leaves(self(*again)) if isinstance(leaf, Tensor))]
        if not all(map(_same_bits, found, wanted)):
            raise ValueError("the step gives other results when its operations are repeated")
        for at in self._tensors:
            self._leaves[at] = None

    @torch.no_grad()
    def __call__(self, *inputs: Tensor) -> Any:  # noqa: ANN401 - as the function
        """Return what the function would return for these tensors, of the same shapes."""
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            found = self._repeat(*inputs, *self._held)
        leaves = list(self._leaves)
        for at, tensor in zip(self._tensors, found, strict=True):
            leaves[at] = tensor
        return tree_unflatten(leaves, self._structure)


class _Notes(TorchDispatchMode):
    """Notes operations, with a number for each tensor.

    Two tensors with the same elements in memory have one number: autograd gives a saved tensor back
    as another object. All are kept, so that no memory is used twice.

    Attributes:
        operations: Each with its arguments in the schema's order, `Place` for tensors, and the
            places of its results.
        held: Tensors from elsewhere.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._places = {_elements(tensor): Place(at) for at, tensor in enumerate(inputs)}
        self._kept = [*inputs]
        self.operations: list[tuple[Any, list[Any], dict[Place, int]]] = []
        self.held: dict[Place, Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes two seconds

    def place(self, tensor: Tensor) -> Place:
        """Return a tensor's place; a new one for a tensor from elsewhere."""
        known = self._places.get(_elements(tensor))
        if known is None:
            known = self._added(tensor)
            self.held[known] = tensor.detach()
        return known

    def _added(self, tensor: Tensor) -> Place:
        place = self._places[_elements(tensor)] = Place(len(self._kept))
        self._kept.append(tensor)
        return place

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Carry an operation out, and note it."""
        kwargs = kwargs or {}
        if REFUSED & {*func.tags} or _has_open_shape(func, args):
            raise ValueError(f"{func} cannot be repeated")
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
        given |= kwargs
        if func is torch.ops.aten._to_copy.default and not isinstance(given["self"], Tensor):
            given["self"] = torch.tensor(given["self"])  # a number, which torch shows as such
        noted = [
            tree_map_only(Tensor, self.place, given.get(each.name, each.default_value))
            for each in func._schema.arguments
        ]
        result = func(*args, **kwargs)
        made = {}
        for at, leaf in enumerate(tree_leaves(result)):
            if isinstance(leaf, Tensor) and _elements(leaf) not in self._places:
                made[self._added(leaf)] = at
        if made or func._schema.is_mutable:  # a view of all elements does nothing
            self.operations.append((func, noted, made))
        return result


class _Script:
    """A TorchScript function in the making.

    Args:
        inputs: The places of its arguments.
    """

    def __init__(self, inputs: Sequence[Place]) -> None:
        self._graph: Any = torch._C.Graph()
        self._values = {place: self._graph.addInput() for place in inputs}

    def add(self, func: Any, arguments: list[Any], made: Mapping[Place, int]) -> None:  # noqa: ANN401
        """Add an operation of torch."""
        schema = func._schema
        if any(str(each.type) != "Tensor" for each in schema.returns):
            raise ValueError(f"{func} cannot be repeated")
        values = [self._value(argument) for argument in arguments]
        node = self._insert(schema.name, values, len(schema.returns))
        outputs = [*node.outputs()]
        self._values |= {place: outputs[at] for place, at in made.items()}

    def function(self, results: list[Place]) -> Callable[..., Sequence[Tensor]]:
        """Return the finished function, of several results."""
        node = self._insert("prim::TupleConstruct", [self._values[at] for at in results], 1)
        (output,) = node.outputs()
        output.setType(torch._C.TupleType([torch._C.TensorType.get()] * len(results)))
        self._graph.registerOutput(output)
        made: Callable[..., Sequence[Tensor]] = torch._C._create_function_from_graph(
            "step", self._graph
        )
        return made

    def _insert(self, name: str, values: list[Any], outputs: int) -> Any:  # noqa: ANN401
        node = self._graph.create(name, values, outputs)
        self._graph.insertNode(node)
        return node

    def _value(self, argument: Any) -> Any:  # noqa: ANN401 - of any operation
        """Return an argument as a value of the graph."""
        if isinstance(argument, Place):
            return self._values[argument]
        if not (isinstance(argument, list) and any(isinstance(a, Place) for a in argument)):
            return self._graph.insertConstant(FORMATS.get(repr(argument), argument))
        (made,) = self._insert("prim::ListConstruct", [*map(self._value, argument)], 1).outputs()
        of: Any = torch._C.TensorType.get()
        made.setType(torch._C.ListType(torch._C.OptionalType(of) if None in argument else of))
        return made


def _same_bits(one: Tensor, two: Tensor) -> bool:
    if one.dtype != two.dtype or torch.equal(one, two):
        return one.dtype == two.dtype
    alike = one.is_floating_point() and one.shape == two.shape
    return alike and torch.allclose(one, two, rtol=0, atol=0, equal_nan=True)


def _has_open_shape(func: Any, args: Any) -> bool:  # noqa: ANN401 - torch's
    """Return True if the values of tensors decide the shape of the result, as with a mask."""
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    dtypes = [leaf.dtype for leaf in tree_leaves(args)[1:] if isinstance(leaf, Tensor)]
    return func is not torch.ops.aten.index.Tensor or torch.bool in dtypes or torch.uint8 in dtypes


def _elements(tensor: Tensor) -> tuple[object, ...]:
    """Return what tells a tensor's elements from others."""
    place = tensor.untyped_storage()._cdata, tensor.storage_offset()
    return *place, tensor.shape, tensor.stride(), tensor.dtype
