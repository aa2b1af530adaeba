"""What the engines' steps have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

import protofl as pf
import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_flatten

from protofl_plugins.engines.eager import Eager, wide

Tree = Mapping[str, pf.Given]
"""What the losses of a step are given, by method."""


class Forward(NamedTuple):
    """What a step computes before its gradients."""

    total: Tensor
    terms: dict[str, Tensor]
    output: pf.Output


def forward(
    model: Module,
    loss: Callable[[pf.Batch, pf.Output, Tree], dict[str, Tensor]],
    batch: pf.Batch,
    given: Tree,
    precision: str,
) -> Forward:
    """The forward pass and the loss of a batch, with what the step is given."""
    with torch.autocast(batch.x.device.type, torch.bfloat16, enabled=precision == "bf16"):
        features = model.features(batch.x)  # type: ignore[operator]
        logits = model.head(features)  # type: ignore[operator]
    output = pf.Output(wide(features), wide(logits))
    terms = loss(batch, output, given)
    return Forward(reduce(add, terms.values()), terms, output)


def outline(tree: object) -> str:
    """All of a tree but its tensors' values: structure, shapes, types, plain values.

    Steps whose trees have one outline are the same step.
    """
    leaves, structure = tree_flatten(tree)
    seen = [(t.shape, t.dtype, t.device) if isinstance(t, Tensor) else (t,) for t in leaves]
    return f"{structure} {seen}"


class Last:
    """Tells whether a tensor is the one of last time, unchanged since."""

    def __init__(self) -> None:
        self._tensor: Tensor | None = None
        self._version = 0

    def same(self, tensor: Tensor) -> bool:
        """Whether it is; it is the last one from now on."""
        # Kept, so that no other tensor can take its place in memory.
        found = tensor is self._tensor and tensor._version == self._version
        self._tensor, self._version = tensor, tensor._version
        return found


def trained_names(job: pf.TrainJob, whole: Module) -> list[tuple[list[str], float]]:
    """The job's groups of parameters by their names in the whole of its modules."""
    names = {id(p): name for name, p in whole.named_parameters()}
    return [([names[id(p)] for p in parameters], lr) for parameters, lr in job.groups]


def kind_of(job: pf.TrainJob, whole: Module) -> tuple[object, ...]:
    """What clients must have in common to be trained by the same step, data and modes aside."""
    groups = tuple((tuple(names), lr) for names, lr in trained_names(job, whole))
    tensors = [*whole.named_parameters(), *whole.named_buffers()]
    shapes = tuple((name, tuple(t.shape), t.dtype) for name, t in tensors)
    rules = job.optimizer, job.momentum, job.clip, job.precision
    return job.architecture, groups, shapes, *rules


def by_eager(jobs: Sequence[pf.TrainJob], why: str = "") -> list[dict[str, float]]:
    """Train clients in the reference way, one after the other; each is told why."""
    found = []
    for job in jobs:
        with job.stream():
            found.append(Eager().train(job, Eager.Config.model_validate({})))
        if why:
            job.notes.append(why)
    return found


def or_by_eager(
    engine: str, jobs: list[pf.TrainJob], train: Callable[[], list[dict[str, float]]]
) -> tuple[list[dict[str, float]], str]:
    """Train, or have ``eager`` do it where that fails; the sums, and why it failed.

    ``train`` must leave the clients' weights alone until all is done.
    """
    # What after_batch has collected by the time of a failure must not be collected twice.
    snapshots = [job.snapshot() for job in jobs]
    try:
        return train(), ""
    except Exception as error:  # whatever it is: an error that is the method's own comes again
        for restore in snapshots:
            restore()
        why = reason(error)
        return by_eager(jobs, given_up(engine, jobs[0], why)), why


def given_up(engine: str, job: pf.TrainJob, why: str) -> str:
    """The note that tells why ``eager`` trains a client."""
    return f"engine {engine}: {job.architecture} is trained by eager: {why}"


def reason(error: BaseException) -> str:
    """The first line of an error, as a note gives it; two where the first only announces."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return text if len(text) <= 160 else text[:157] + "…"
