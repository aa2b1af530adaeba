"""Hooks of metrics: what samples' scores come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from protofl.hookspecs.markers import hookspec

if TYPE_CHECKING:
    from torch import Tensor

    from protofl.options.declared import Config


class MetricSpec:
    """A metric is a figure of class scores, by way of counts that add up over samples and clients.

    A client's counts give its own figure, the sum of all clients' counts that over all samples, and
    the counts of the server's model on the global test samples the server's. So nobody sees another
    one's scores. A figure that knows no counts is a mean: count it times the samples, and the
    samples.
    """

    @hookspec(firstresult=True)
    def count(self, scores: Tensor, labels: Tensor, config: Config) -> Tensor:
        """Return what samples count, in a tensor of a shape that depends on C and options alone.

        Args:
            scores: [n, C] as ``inference`` gives them, float32 or wider, one sample at least:
                logits, or minus distances; −∞ for a class that can't be predicted.
            labels: [n] integers in 0…C−1.
            config: The metric's options.
        """

    @hookspec(firstresult=True)
    def value(self, counts: Tensor, config: Config) -> float | Tensor | Sequence[float]:
        """Return the figure of counts: a number, or several ([C], by class); NaN for none.

        Args:
            counts: What ``count`` returned, or the sum of several, float64.
            config: The metric's options.
        """
