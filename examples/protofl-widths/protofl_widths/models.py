"""Five widths of one convolutional network, for clients with different resources.

The shrinking factors are those of HeteroFL's levels a to e (Diao et al., "HeteroFL: Computation and
Communication Efficient Federated Learning for Heterogeneous Clients", ICLR 2021). The network is a
small one of our own with GroupNorm, not the paper's.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from torch import nn

import protofl as pf

WIDTHS = (32, 16, 8, 4, 2)
"""Channels of the first convolution at levels a to e."""


def _build(
    width: int, sample: pf.datasets.SampleSpec, num_classes: int, feature_dim: int
) -> pf.models.SplitModel:
    layers: list[nn.Module] = []
    sizes = (sample.shape[0], width, 2 * width, 4 * width)
    for before, after in pairwise(sizes):
        norm = nn.GroupNorm(min(4, after), after)
        layers += [nn.Conv2d(before, after, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2)]
    pooled = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16 * width, feature_dim)]
    extractor = nn.Sequential(*layers, *pooled)
    return pf.models.SplitModel(extractor, nn.Linear(feature_dim, num_classes), feature_dim)


class Widths5:
    """One convolutional network at five widths, 32 to 2 (levels of HeteroFL, 2021)."""

    feature_dim = 128
    min_side = 16
    channels = None
    server_architecture = "width-32"

    @pf.hookimpl
    def architectures(self) -> list[pf.models.Architecture]:
        """Return the levels, the widest first; client i gets level i mod 5."""
        return [
            pf.models.Architecture(f"width-{width}", partial(_build, width)) for width in WIDTHS
        ]
