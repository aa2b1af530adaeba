"""Scores and accuracy of a model on samples."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from protofl.data.batches import Samples

CHUNK = 128
"""Samples that are scored together; rounding depends on it, so it is fixed."""


@torch.no_grad()
def scores_of(model: nn.Module, samples: Samples) -> Tensor:
    """Return a model's class scores [n, C] of one or more samples; sets eval mode."""
    model.eval()
    return torch.cat([model(x) for x in samples.chunks(CHUNK)])


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose class has the largest score."""
    return float((scores.argmax(1) == labels).double().mean())


def mean_accuracy(each: Mapping[str, Tensor], labels: Tensor, name: str) -> dict[str, float]:
    """Return the mean `accuracy` of models as ``NAME``, and of several each as ``NAME.MODEL``."""
    shares = {f"{name}.{model}": accuracy(scores, labels) for model, scores in each.items()}
    if not shares:
        return {}
    return {name: sum(shares.values()) / len(shares), **(shares if len(shares) > 1 else {})}
