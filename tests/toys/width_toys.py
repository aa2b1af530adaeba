"""A small net in several widths, for HeteroFL and FedRolex."""

from __future__ import annotations

import math
from functools import partial

from torch import nn

from protofl.testing import toy
from protofl_plugins.models.widths import narrow

ADAPTED = ("hetlora", "flexlora", "flora", "raflora")
"""Methods that train adapters of a frozen net."""

ONE_NET = ("fedavg", "fedprox", "heterofl", "fedrolex", "fiarse", *ADAPTED)
"""Methods that refuse clients with different nets."""


def toy_width(width):
    """Return the architecture of a width."""
    return toy.architecture(f"net@{width:g}", partial(_extractor, width))


def _extractor(width, sample, K):
    height, across = ((side - 2) // 2 for side in sample.shape[1:])
    net = nn.Sequential(
        *(nn.Conv2d(sample.shape[0], 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(6 * math.prod((height, across)), 8), nn.Tanh()),
    )
    outputs, _ = narrow(net, width, sample, "net")
    return nn.Sequential(net, nn.Linear(outputs, K))
