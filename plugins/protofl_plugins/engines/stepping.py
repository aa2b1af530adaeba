"""What the engines' steps have in common."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

import protofl as pf
from torch import Tensor
from torch.nn import Module

from protofl_plugins.engines.eager import Eager, wide

Draws = dict[str, dict[str, Tensor]]


class Forward(NamedTuple):
    """What a step computes before its gradients."""

    total: Tensor
    terms: dict[str, Tensor]
    output: pf.Output


def forward(
    job: pf.TrainJob, model: Module, stand_in: pf.StandIn, batch: pf.Batch, draws: Draws
) -> Forward:
    """The forward pass and the loss of a batch, seen by a stand-in."""
    with job.autocast():
        features = model.features(batch.x)  # type: ignore[operator]
        logits = model.head(features)  # type: ignore[operator]
    output = pf.Output(wide(features), wide(logits))
    terms = job.loss.seen_by(stand_in.view).terms(batch, output, draws)
    return Forward(reduce(add, terms.values()), terms, output)


def trained_names(job: pf.TrainJob, whole: Module) -> list[tuple[list[str], float]]:
    """The job's groups of parameters by their names in the whole of its modules."""
    names = {id(p): name for name, p in whole.named_parameters()}
    return [([names[id(p)] for p in parameters], lr) for parameters, lr in job.groups]


def kind_of(job: pf.TrainJob, whole: Module) -> tuple[object, ...]:
    """What clients must have in common to be trained by the same step, data and modes aside."""
    groups = tuple((tuple(names), lr) for names, lr in trained_names(job, whole))
    tensors = [*whole.named_parameters(), *whole.named_buffers()]
    shapes = tuple((name, tuple(t.shape), t.dtype) for name, t in tensors)
    return job.architecture, groups, shapes, job.optimizer, job.momentum, job.precision


def by_eager(jobs: Sequence[pf.TrainJob], why: str = "") -> list[dict[str, float]]:
    """Train clients in the reference way, one after the other; each is told why."""
    found = []
    for job in jobs:
        with job.stream():
            found.append(Eager().train(job))
        if why:
            job.notes.append(why)
    return found


def reason(error: BaseException) -> str:
    """The first line of an error, as a note gives it."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 160 else text[:157] + "…"
