"""A small net in several widths, for HeteroFL and FedRolex, and the nets that a method takes."""

from __future__ import annotations

import math
import tempfile
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from protofl.errors import Refused
from protofl.hooks.discovery.registry import Registry
from protofl.system.torch_state import computing_in
from protofl.testing import toy
from protofl_plugins.models.widths import narrow


def nets_of(method, several, one, depths=toy.EXITS):
    """Return the nets that a method takes: ``several``, else ``one``, else one in ``depths``."""
    for members, toys in ((several, TOYS), (one, [toy.NORM])):
        if _takes(method, tuple(toys)):
            return members
    return depths


TOYS = [toy.CNN, toy.NORM]


@cache
def _takes(method, members):
    with tempfile.TemporaryDirectory() as folder, computing_in(torch.float32):
        x = torch.zeros(12, *toy.make_images(toy.MIXED).x.shape[1:])
        np.savez(Path(folder, "public.npz"), x_train=x.numpy(), y_train=np.arange(12) % 4)
        options = getattr(Registry().load("method", method), "check_options", {})
        more = {"options": {method: options}} if options else {}
        models = toy.group(*members)
        try:
            toy.make_plan(
                method, Path(folder), models=models, public=f"npz:{folder}/public.npz", **more
            )
        except Refused as error:
            if error.lacks != "requirement":
                raise
            return False
    return True


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
