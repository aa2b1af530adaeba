"""Parts of model groups: heads and extractors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

import protofl as pf


@dataclass(frozen=True)
class Head:
    """A kind of classifier h: fully connected layers with an activation between, none last.

    Attributes:
        hidden: The widths of the layers before the last; none for one layer K → C.
        activation: The module between two layers.
    """

    hidden: tuple[int, ...] = ()
    activation: type[nn.Module] = nn.ReLU

    @property
    def name(self) -> str:
        """The layer widths; only equal heads can be averaged."""
        segments = [str(width) for width in self.hidden] or ["linear"]
        if self.activation is not nn.ReLU:
            segments.append(self.activation.__name__.lower())
        return "-".join(segments)

    def build(self, feature_dim: int, num_classes: int) -> nn.Module:
        """The module, B×K → B×C."""
        layers: list[nn.Module] = []
        for width in self.hidden:
            layers += [nn.Linear(feature_dim, width), self.activation()]
            feature_dim = width
        last = nn.Linear(feature_dim, num_classes)
        return nn.Sequential(*layers, last) if layers else last


LINEAR = Head()
"""The classifier of every group whose classifiers are alike: one layer K → C."""


@dataclass(frozen=True)
class Extractor:
    """A kind of feature extractor f, with its fixed rules for running it.

    Attributes:
        name: The architecture's name in a group.
        build: ``build(sample)`` returns a module B×``sample.shape`` → B×anything.
        wide: True if the layers' widths follow K: ``build(sample, feature_dim)``.
        channels_last: Whether convolutions over images run in channels-last layout.
        eval_batch: Samples per batch in evaluation.

    The two rules were measured once: one thread, 32×32 images, SGD steps of batch 10. Nets with
    an ImageNet stem are evaluated fastest in batches of 256, nets that keep the full resolution
    for longer in batches of 128.
    """

    name: str
    build: Callable[..., nn.Module]
    channels_last: bool = True
    eval_batch: int = 128
    wide: bool = False

    def with_head(self, head: Head = LINEAR, suffix: str = "") -> pf.models.Architecture:
        """The architecture of this extractor and ``head`` (one fully connected layer)."""
        return pf.models.Architecture(
            name=self.name + suffix,
            build=partial(_build, self, head),
            channels_last=self.channels_last,
            eval_batch=self.eval_batch,
            head=head.name,
        )


def _build(
    extractor: Extractor,
    head: Head,
    sample: pf.datasets.SampleSpec,
    num_classes: int,
    feature_dim: int,
) -> pf.models.SplitModel:
    """A freshly drawn model; the extractor's weights are drawn first."""
    f = extractor.build(sample, *([feature_dim] * extractor.wide))
    return pf.models.SplitModel(f, head.build(feature_dim, num_classes), feature_dim)
