"""One-dimensional convolutional nets for series, with 64 features each.

- ``cnn1d``: two convolutions with pooling between, one fully connected layer.
- ``fcn1d``: convolutions of lengths 8, 5, 3 with BatchNorm and a global average, the fully
  convolutional net of Wang, Yan and Oates, "Time Series Classification from Scratch with Deep
  Neural Networks: A Strong Baseline", IJCNN 2017 (https://arxiv.org/abs/1611.06455), at half its
  widths.
- ``resnet1d``: their residual net of three blocks, narrower than theirs.
- ``tcn1d``: dilated residual convolutions that see the past alone, after Bai, Kolter and Koltun,
  "An Empirical Evaluation of Generic Convolutional and Recurrent Networks for Sequence Modeling",
  2018 (https://arxiv.org/abs/1803.01271), without its weight norm and dropout.
"""

from __future__ import annotations

from torch import Tensor, nn

import protofl as pf
from protofl_plugins.models.parts import Extractor
from protofl_plugins.models.selectable import SelectableGroup

WIDTH = 64
"""Features of each net."""


def cnn1d(sample: pf.datasets.SampleSpec) -> nn.Module:
    """Two convolutions with pooling between and one fully connected layer: B×c×L → B×64."""
    channels, _ = sample.shape
    return nn.Sequential(
        nn.Conv1d(channels, 16, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(2, ceil_mode=True),
        nn.Conv1d(16, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(4),
        nn.Flatten(),
        nn.Linear(4 * 32, WIDTH),
        nn.ReLU(),
    )


def _normed(before: int, after: int, length: int) -> nn.Sequential:
    """A convolution that keeps the length, with BatchNorm."""
    return nn.Sequential(
        nn.ConstantPad1d(((length - 1) // 2, length // 2), 0.0),
        nn.Conv1d(before, after, length, bias=False),
        nn.BatchNorm1d(after),
    )


def fcn1d(sample: pf.datasets.SampleSpec) -> nn.Module:
    """Convolutions of lengths 8, 5 and 3, and a global average: B×c×L → B×64."""
    channels, _ = sample.shape
    layers: list[nn.Module] = []
    for width, length in ((64, 8), (128, 5), (WIDTH, 3)):
        layers += [_normed(channels, width, length), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten())


class ResidualBlock(nn.Module):
    """Convolutions of lengths 8, 5 and 3 beside a projection of length 1."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _normed(before, after, 8),
            nn.ReLU(),
            _normed(after, after, 5),
            nn.ReLU(),
            _normed(after, after, 3),
        )
        self.shortcut = _normed(before, after, 1)

    def forward(self, x: Tensor) -> Tensor:
        """B×before×L → B×after×L."""
        sum_: Tensor = self.layers(x) + self.shortcut(x)
        return sum_.relu()


def resnet1d(sample: pf.datasets.SampleSpec) -> nn.Module:
    """Three residual blocks and a global average: B×c×L → B×64."""
    channels, _ = sample.shape
    blocks = [ResidualBlock(channels, 32), ResidualBlock(32, WIDTH), ResidualBlock(WIDTH, WIDTH)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten())


class CausalBlock(nn.Module):
    """Two dilated convolutions over the past, beside a projection of length 1."""

    def __init__(self, before: int, after: int, dilation: int) -> None:
        super().__init__()
        past = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.layers = nn.Sequential(
            past,
            nn.Conv1d(before, after, 3, dilation=dilation),
            nn.ReLU(),
            past,
            nn.Conv1d(after, after, 3, dilation=dilation),
            nn.ReLU(),
        )
        self.shortcut = nn.Conv1d(before, after, 1)

    def forward(self, x: Tensor) -> Tensor:
        """B×before×L → B×after×L."""
        sum_: Tensor = self.layers(x) + self.shortcut(x)
        return sum_.relu()


class LastStep(nn.Module):
    """The features at the end of a series."""

    def forward(self, x: Tensor) -> Tensor:
        """B×c×L → B×c."""
        return x[:, :, -1]


def tcn1d(sample: pf.datasets.SampleSpec) -> nn.Module:
    """Causal blocks of dilations 1, 2, 4, … that together see the series: B×c×L → B×64."""
    channels, length = sample.shape
    blocks: list[nn.Module] = []
    dilation, seen = 1, 1
    while seen < length and len(blocks) < 6:
        blocks.append(CausalBlock(channels, 32, dilation))
        seen += 4 * dilation
        channels, dilation = 32, 2 * dilation
    return nn.Sequential(*blocks, LastStep(), nn.Linear(channels, WIDTH), nn.ReLU())


class SeriesNets(SelectableGroup):
    """Four convolutional nets for series: plain, fully convolutional, residual, causal."""

    extractors = tuple(
        Extractor(build.__name__, build, channels_last=False)
        for build in (cnn1d, fcn1d, resnet1d, tcn1d)
    )
    kinds = ("series",)
    server_architecture = "resnet1d"
    auxiliary_architecture = "cnn1d"
