"""A lower bound on ε from outputs of a mechanism with and without a sample."""

from __future__ import annotations

import math

import torch
from scipy.stats import beta
from torch import Tensor


def audited_epsilon(
    inside: Tensor, outside: Tensor, delta: float, confidence: float = 0.95
) -> float:
    """Return a lower bound on ε from outputs with and without a sample.

    An ε-δ mechanism bounds each test between both worlds by TPR ≤ e^ε FPR + δ (Kairouz et al., "The
    Composition Theorem for Differential Privacy", ICML 2015). The threshold is chosen on the first
    half of the outputs, and Clopper-Pearson bounds of the second half give the bound (Jagielski et
    al., "Auditing Differentially Private Machine Learning", NeurIPS 2020).

    Args:
        inside: A statistic [m] of outputs with the sample; larger means more likely inside.
        outside: The same [m] of outputs without it.
        delta: δ.
        confidence: Confidence of the bound.

    Returns:
        The bound, at least 0.
    """
    half = len(inside) // 2
    cuts = torch.cat([inside[:half], outside[:half]]).quantile(
        torch.linspace(0.01, 0.99, 99).to(inside)
    )

    def guess(cut: Tensor) -> float:
        hit, false = (float((each[:half] > cut).double().mean()) for each in (inside, outside))
        return math.log(max(hit - delta, 1e-9) / max(false, 1 / half))

    cut = max(cuts, key=guess)
    hits, falses = (int((each[half:] > cut).sum()) for each in (inside, outside))
    total, tail = len(inside) - half, (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, total - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, falses + 1, total - falses)) if falses < total else 1.0
    return max(0.0, math.log(max(low - delta, 1e-12) / high))
