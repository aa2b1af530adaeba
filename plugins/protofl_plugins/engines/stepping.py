"""Common parts of the engines' steps."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_flatten, tree_leaves

import protofl as pf

Tree = Mapping[str, pf.LossData]
"""{method: ``constants`` of its loss} of a step."""

NARROW = torch.bfloat16, torch.float16
Function = Callable[[Tensor], Tensor]
K = TypeVar("K")


def forward(features: Function, head: Function, x: Tensor, precision: str) -> pf.Output:
    """Return features and scores of samples in float32."""
    bf16 = torch.autocast(x.device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
    with bf16:
        z = features(x)
        scores = head(z)
    return pf.Output(*(t.float() if t.dtype in NARROW else t for t in (z, scores)))


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """The loss: the sum of its terms."""
    return reduce(operator.add, terms.values())


def numbers(sums: Mapping[K, Tensor]) -> dict[K, float]:
    """Return sums on a device as numbers, with one copy."""
    return dict(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True)) if sums else {}


class Sums:
    """Each loss term's sum over a client's samples."""

    def __init__(self) -> None:
        self._means: defaultdict[str, list[tuple[Tensor, int]]] = defaultdict(list)

    def add(self, means: Mapping[str, Tensor], size: int) -> None:
        """Take the terms of a batch of so many samples."""
        for label, mean in means.items():
            self._means[label].append((mean.detach(), size))

    def read(self) -> dict[str, float]:
        """The sums."""
        sums = {}
        for label, each in self._means.items():
            means = pf.functional.in_float64(torch.stack([mean for mean, _ in each]))
            sums[label] = means @ means.new_tensor([size for _, size in each])
        return numbers(sums)


def outline(tree: object) -> str:
    """Return a tree without its tensors' values: equal outlines have the same step."""
    leaves, structure = tree_flatten(tree)
    seen = [(t.shape, t.dtype, t.device) if isinstance(t, Tensor) else (t,) for t in leaves]
    return f"{structure} {seen}"


class Last:
    """Tells whether tensors are those of last time, unchanged since."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._versions: list[int] = []

    def same(self, tensors: Sequence[Tensor]) -> bool:
        """Return True if the tensors equal the last ones, which they replace."""
        # Kept, so that no other tensors can take their place in memory.
        last, self._tensors = self._tensors, list(tensors)
        versions, self._versions = self._versions, [t._version for t in tensors]
        return versions == self._versions and all(map(operator.is_, last, tensors))


class Parts:
    """The modules and tensors of a client, collected once, because a walk through them is slow.

    Args:
        whole: All modules of the client.

    Attributes:
        whole: As given.
        modules: Each module with its name.
        places: Where each tensor is held: its name, a dict of a module, and the key there. A shared
            one has several places.
        tensors: Parameters and buffers by name, outside of autograd.
    """

    def __init__(self, whole: Any) -> None:  # noqa: ANN401 - of a job, or a copy of one
        self.whole = whole
        self.modules: list[tuple[str, Module]] = [*whole.named_modules()]
        self.places: list[tuple[str, dict[str, Any], str]] = []
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        for kind in ("_parameters", "_buffers"):
            for module_name, module in self.modules:
                held = vars(module)[kind]
                for key, tensor in held.items():
                    if tensor is None:
                        continue
                    name = self._names.setdefault(id(tensor), f"{module_name}.{key}".lstrip("."))
                    self.places.append((name, held, key))
                    if name not in self.tensors:
                        self.tensors[name] = tensor.detach()

    def groups(self, job: pf.backends.TrainJob) -> list[tuple[list[str], float]]:
        """The job's groups of parameters by their names."""
        return [([self._names[id(p)] for p in parameters], lr) for parameters, lr in job.groups]


class Kind(NamedTuple):
    """Everything that clients with a common step share, except samples and tensors' values.

    Attributes:
        base: All but ``values``.
        values: Plain attributes of modules; see `plain_values`.
    """

    base: tuple[object, ...]
    values: str


def kind_of(job: pf.backends.TrainJob, parts: Parts, *, rates: bool = True) -> Kind:
    """Return what clients with a common step share.

    Args:
        job: A client.
        parts: Those of its modules.
        rates: Whether learning rates belong to the step.
    """
    groups = parts.groups(job)
    shapes = repr([(name, t.shape, t.dtype, t.device) for name, t in parts.tensors.items()])
    trained = repr(groups if rates else [names for names, _ in groups])
    rules = job.optimizer, job.momentum, job.weight_decay, job.clip, job.precision
    modes = tuple(module.training for _, module in parts.modules)
    base = job.architecture, trained, shapes, modes, job.phase, job.loss.kind, *rules
    return Kind(base, plain_values(parts))


def _memory(tensor: Tensor) -> object:
    return tensor.untyped_storage().data_ptr()


_OWN = frozenset(vars(Module()))
"""Attributes that every module has."""

_PLAIN = frozenset((bool, int, float, str))
"""Types of plain values."""


def plain_values(parts: Parts) -> str:
    """Return the values of modules' attributes that are neither parameters, buffers nor modules.

    Numbers, strings and tensors count, also in lists and dicts. A copy of the modules keeps them,
    so clients whose values differ have no step in common.
    """
    attributes: list[object] = []
    shared: set[object] = set()
    for name, module in parts.modules:
        for key, value in vars(module).items():
            if key in _OWN or value is None:
                continue
            if type(value) in _PLAIN or (type(value) is tuple and {*map(type, value)} <= _PLAIN):
                attributes.append((name, key, value))  # most are, and leaves take long
                continue
            for leaf in tree_leaves(value):
                if isinstance(leaf, Tensor):
                    shared = shared or {_memory(t) for t in parts.tensors.values()}
                    if _memory(leaf) in shared:  # torch's recurrent nets list their weights
                        continue
                    bits = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                    leaf = leaf.dtype, leaf.shape, hash(bits.numpy().tobytes())
                elif not isinstance(leaf, (bool, int, float, str)):
                    continue
                attributes.append((name, key, leaf))
    return repr(attributes)


def used_once(total: Tensor, rates: Mapping[int, float]) -> dict[int, float]:
    """Return the items of the weights that a loss uses in exactly one place.

    Args:
        total: The loss.
        rates: {id of a weight: learning rate}.
    """
    uses = dict.fromkeys(rates, 0)
    start: Any = total.grad_fn
    seen, waiting = {start}, [start]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None or node in seen:
                # A leaf's node is never in `seen`, so that each use of the leaf counts.
                continue
            leaf = getattr(node, "variable", None)
            if leaf is None:
                seen.add(node)
                waiting.append(node)
            elif id(leaf) in uses:
                uses[id(leaf)] += 1
    return {key: rate for key, rate in rates.items() if uses[key] == 1}
