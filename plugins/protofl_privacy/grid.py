"""Gaussian noise on a grid, so that the last bits of a sum tell nothing.

In floating point, a sum plus noise can be a number that the same sum without one sample can't
reach, whatever the noise is (Mironov, "On Significance of the Least Significant Bits for
Differential Privacy", CCS 2012; Jin et al., "Are We There Yet? Timing and Floating-Point Attacks
on Differential Privacy Systems", IEEE S&P 2022). Here all numbers are multiples of a width g that
depends on nothing but the deviation:

    g = 2^(⌊log₂ σ⌋ − 20)
    S = Σ_i g·trunc(x_i / g)             each sample's share towards 0, so none becomes longer
    Y = S + g·round(N(0, σ²) / g)        equal to g·round((S + N(0, σ²)) / g)

So Y is a rounded Gaussian mechanism, and rounding what has noise costs no privacy. float64 adds
multiples of g exactly, in any order, up to 2⁵³ g: the order of samples does not show either, and a
sample changes S by its length and no more (Casacuberta et al., "Widespread Underestimation of
Sensitivity in Differentially Private Libraries", CCS 2022). A grid is what OpenDP's and Google's
libraries use; Opacus adds four numbers instead (``secure_mode``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Normal: TypeAlias = Callable[[torch.Size], Tensor]
"""Draws standard normal numbers of a shape, float64: ``client.secret_stream(…).normal``."""

SHORTER = 1 - 1e-9
"""Factor of clipped lengths, for the rounding of float64 when they are computed."""


def width(deviation: float) -> float:
    """Return g for the deviation σ of noise."""
    return 2.0 ** (math.floor(math.log2(deviation)) - 20)


def shares(values: Tensor, norms: Tensor, clip: float, deviation: float) -> Tensor:
    """Return the clipped share of each sample as multiples of g, never longer than C.

    Args:
        values: Rows [n, …] of n samples, float64.
        norms: Their lengths [n], float64, perhaps over more than these values.
        clip: C.
        deviation: σ of the noise that the sum will get.
    """
    scale = (clip * SHORTER / norms.clamp(min=1e-12)).clamp(max=SHORTER)
    g = width(deviation)
    return (values * scale.view(-1, *[1] * (values.dim() - 1)) / g).trunc() * g


def with_noise(sums: Tensor, deviation: float, normal: Normal) -> Tensor:
    """Return sums of `shares` with noise of a deviation; float64.

    Args:
        sums: Multiples of g, float64.
        deviation: σ.
        normal: Draws the noise.
    """
    g = width(deviation)
    noise = (normal(sums.shape) * (deviation / g)).round() * g
    return sums + noise.to(sums.device)
