"""Plain convolutional nets: the 4-layer CNN and the family of FedTGP's HtCNN8."""

from __future__ import annotations

import math
from functools import partial

from torch import nn

import protofl as pf
from protofl_plugins.models.parts import Extractor


def cnn(
    convolutions: tuple[int, ...], fully_connected: tuple[int, ...], sample: pf.datasets.SampleSpec
) -> nn.Module:
    """5×5 convolutions without padding, each with ReLU and 2×2 max pooling, then FC + ReLU.

    ReLU comes after the pooling: the maximum and ReLU commute, values and gradients are the same
    to the bit, and ReLU passes over a quarter of the numbers.

    Args:
        convolutions: The convolutions' output channels.
        fully_connected: The fully connected layers' widths; the last is the native width.
        sample: The images.

    Returns:
        A module B×channels×height×width → B×``fully_connected[-1]``.
    """
    layers: list[nn.Module] = []
    width, *sizes = sample.shape
    for out in convolutions:
        layers += [nn.Conv2d(width, out, kernel_size=5), nn.MaxPool2d(2), nn.ReLU()]
        width, sizes = out, [(size - 4) // 2 for size in sizes]
    layers.append(nn.Flatten())
    width *= math.prod(sizes)
    for out in fully_connected:
        layers += [nn.Linear(width, out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers)


CNN4 = Extractor("cnn4", partial(cnn, (32, 64), (512,)))
"""The 4-layer CNN of McMahan et al. (2017); its fourth layer is the classifier."""

HTCNN8 = tuple(
    Extractor(f"htcnn8-{2 * pair + len(convolutions)}", partial(cnn, convolutions, fully_connected))
    for pair, fully_connected in enumerate(((512,), (512, 512), (1024, 512), (1024, 512, 512)))
    for convolutions in ((32,), (32, 64))
)
"""CNN1 to CNN8 of FedTGP's Table 9."""
