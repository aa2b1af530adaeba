"""How well a model predicts classes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from protofl.data.batches import Samples

CHUNK = 128
"""Samples that are scored together; rounding depends on it, so it is fixed."""


@torch.no_grad()
def accuracy(model: nn.Module, samples: Samples) -> float:
    """The share of labelled samples whose largest score is that of their class.

    Args:
        model: From samples B×… to scores B×C; it is left in eval mode.
        samples: At least one.
    """
    model.eval()
    predicted = torch.cat([model(x).argmax(1) for x in samples.chunks(CHUNK)])
    return float((predicted == samples.y).double().mean())


def mean_accuracy(models: Mapping[str, nn.Module], samples: Samples, name: str) -> dict[str, float]:
    """The `accuracy` of models under ``NAME``, the mean and each as ``NAME.MODEL`` of several."""
    shares = {f"{name}.{each}": accuracy(model, samples) for each, model in models.items()}
    if not shares:
        return {}
    return {name: sum(shares.values()) / len(shares), **(shares if len(shares) > 1 else {})}
