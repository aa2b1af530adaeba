"""HtFE-sen-X: convolutional nets of different depth and stride for series of sensors.

HtFLlib (https://github.com/TsingZ0/HtFLlib), model families HtFE-sen-2, -3, -5 and -8; the net is
that of Wang et al., https://github.com/jindongwang/Deep-learning-activity-recognition. Convolutions
of length 9 (5 in ``harcnn3``) and a stride, each with ReLU and a pool of 2. As in HtFLlib, the flat
output is averaged to K features in place of the net's fully connected layers. The channels are
those of the data. Series that are shorter than the layers need are filled up with zeros.
"""

from __future__ import annotations

from functools import partial

from torch import nn

import protofl as pf
from protofl_plugins.models.parts import Extractor
from protofl_plugins.models.selectable import SelectableGroup

WIDTHS = (32, 64, 128)
"""Channels of the first, second and third convolution."""


def harcnn(layers: int, length: int, stride: int, sample: pf.datasets.SampleSpec) -> nn.Sequential:
    """Convolutions, each with ReLU and a pool of 2: B×c×L → B×(c′·L′).

    Args:
        layers: Number of convolutions.
        length: Their length.
        stride: Their stride.
        sample: The series.
    """
    channels, L = sample.shape
    needed = 1
    for _ in range(layers):
        needed = (2 * needed - 1) * stride + length
    modules: list[nn.Module] = [nn.ConstantPad1d((0, needed - L), 0.0)] * (L < needed)
    for width in WIDTHS[:layers]:
        modules += [nn.Conv1d(channels, width, length, stride), nn.ReLU(), nn.MaxPool1d(2)]
        channels = width
    return nn.Sequential(*modules, nn.Flatten())


def _nets(name: str, layers: int, length: int, strides: int) -> tuple[Extractor, ...]:
    return tuple(
        Extractor(f"{name}-s{stride}", partial(harcnn, layers, length, stride), channels_last=False)
        for stride in range(1, strides + 1)
    )


HARCNN = _nets("harcnn", layers=2, length=9, strides=3)
HARCNN1 = _nets("harcnn1", layers=1, length=9, strides=3)
HARCNN3 = _nets("harcnn3", layers=3, length=5, strides=2)


class HtFESen2(SelectableGroup):
    """Two convolutions of stride 1 and 2, for series (HtFLlib)."""

    extractors: tuple[Extractor, ...] = HARCNN[:2]
    feature_dim = 512
    kinds = ("series",)
    server_architecture = "harcnn-s1"
    auxiliary_architecture = "harcnn-s2"


class HtFESen3(HtFESen2):
    """Two convolutions of stride 1, 2 and 3, for series (HtFLlib)."""

    extractors = HARCNN


class HtFESen5(HtFESen2):
    """htfe-sen-3, then one and three convolutions of stride 1, for series (HtFLlib)."""

    extractors = (*HARCNN, HARCNN1[0], HARCNN3[0])


class HtFESen8(HtFESen2):
    """One and two convolutions of stride 1 to 3, three of stride 1 and 2, for series (HtFLlib)."""

    extractors = (*HARCNN, *HARCNN1, *HARCNN3)
