"""Multilayer perceptrons for tables: fully connected layers with ReLU, of unlike depth and width.

The last layer before the classifier has 64 features in ``mlp``. ``htfe-mlp-4`` are the ``MLPs`` of
HtFLlib (https://github.com/TsingZ0/HtFLlib, commit 302a231 of 2025-03-24): no hidden layer, 500
units, 1000 and 500, or 1000, 500 and 200, then 100 features, which a pool spreads to K = 512.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

from torch import nn

import protofl as pf
from protofl_plugins.models.parts import Extractor
from protofl_plugins.models.selectable import SelectableGroup


def perceptron(widths: tuple[int, ...], sample: pf.datasets.SampleSpec) -> nn.Module:
    """Fully connected layers of ``widths``, each with ReLU: B×features → B×``widths[-1]``."""
    sizes = (math.prod(sample.shape), *widths)
    layers = [(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(sizes)]
    return nn.Sequential(nn.Flatten(), *(module for layer in layers for module in layer))


def _net(*widths: int) -> Extractor:
    return Extractor(f"mlp{len(widths)}", partial(perceptron, widths), channels_last=False)


class MLPs(SelectableGroup):
    """Four perceptrons of one to four hidden layers, for tables."""

    extractors = (_net(64), _net(128, 64), _net(64, 64, 64), _net(256, 128, 128, 64))
    lr = 0.1  # at 0.01 small tables are hardly trained in 20 rounds
    kinds = ("table",)
    server_architecture = "mlp4"
    auxiliary_architecture = "mlp1"


def _htfe(*widths: int) -> Extractor:
    name = "-".join(map(str, ("mlp", *widths)))
    return Extractor(name, partial(perceptron, widths), channels_last=False)


class HtFEMLP4(SelectableGroup):
    """Four perceptrons with 100 features, spread to K, for tables (HtFLlib's MLPs)."""

    extractors = (
        _htfe(100),
        _htfe(500, 100),
        _htfe(1000, 500, 100),
        _htfe(1000, 500, 200, 100),
    )
    feature_dim = 512
    kinds = ("table",)
    server_architecture = "mlp-1000-500-200-100"
    auxiliary_architecture = "mlp-100"
