"""How well a model predicts classes."""

from __future__ import annotations

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
