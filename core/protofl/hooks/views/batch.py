"""The arguments of a training step besides the client: batch, output, constants tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor


@dataclass(slots=True)
class Batch:
    """One mini-batch of local training.

    Attributes:
        x: Model input of the samples, B×… (`SampleSpec.shape`).
        y: Labels [B]; empty for the unlabelled samples of a public phase. Of a multi-label task
            [B, C], 0 or 1 for each label; of a regression [B, 1], numbers by offset and scale.
            ``client.task.loss(logits, y)`` is the loss of all tasks.
        index: Rows of the samples in the phase's data, [B].
        phase: The phase's name.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    phase: str = "private"


@dataclass(slots=True)
class Output:
    """The output of the client's model on a batch.

    Attributes:
        features: Features f(x), B×K.
        logits: Scores h(f(x)), B×C.
    """

    features: Tensor
    logits: Tensor


LossData: TypeAlias = Mapping[str, Any]
"""The return value of ``before_training``, an argument of ``local_loss``: tensors by name.

Numbers, strings, None and `per_step` tensors are possible too, and mappings, lists and tuples.
"""

Terms: TypeAlias = Mapping[str, Tensor]
"""The return value of ``local_loss``: named scalar terms, already weighted."""


@dataclass(frozen=True)
class PerStep:
    """A tensor with one row for each step; see `per_step`.

    Attributes:
        rows: The tensor, steps×….
    """

    rows: Tensor


def per_step(tensor: Tensor) -> PerStep:
    """Pass row n of a tensor to ``local_loss`` in step n of the phase.

    Args:
        tensor: A tensor [``client.steps``, …], such as labels or noise for each step.
    """
    return PerStep(tensor)
