"""The privacy cost of repeated releases of noisy sums and counts, and of noisy training steps.

One release of a client is two Gaussian mechanisms on its samples: the sum of clipped features and
the counts by class. Adding or removing one sample changes one row of the sums by at most C in norm,
and one count by 1. With noise of deviation σ_s·C on each number of the sums and σ_c on each count
both together are one Gaussian mechanism with the noise multiplier σ,

    1/σ² = 1/σ_s² + 1/σ_c²,

and T releases are one with σ/√T: Gaussian differential privacy composes exactly (Dong, Roth and Su,
"Gaussian Differential Privacy", JRSS-B 2022, Corollary 3.3). Its ε at δ is exact, too (Balle and
Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8), and is
computed by the library dp-accounting.

A training step of DP-SGD is a Gaussian mechanism on a random part of the samples, each of which is
drawn with probability q. Its Rényi divergences add up over T steps (Mironov, Talwar and Zhang,
"Rényi Differential Privacy of the Sampled Gaussian Mechanism", 2019, Section 3.3), and bound ε at δ
(Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020,
Proposition 12). The bound is about a tenth larger than the exact value.
"""

from __future__ import annotations

import importlib.util
import math
from functools import lru_cache

ORDERS = (*range(2, 64), 72, 80, 96, 128, 192, 256, 512, 1024)
"""Orders of Rényi divergences, of which the smallest ε counts. They are whole numbers, for which a
divergence is a finite sum (Mironov, Talwar and Zhang, Section 3.3)."""

MISSING = (
    "the package dp-accounting is not installed (pip install 'protofl[privacy]', from a checkout: "
    "pip install . ./plugins/protofl_privacy)"
)


def is_installed() -> bool:
    """Return True if dp-accounting is there."""
    return importlib.util.find_spec("dp_accounting") is not None


def epsilon_of(noise: float, releases: int, delta: float) -> float:
    """Return ε of a client after some releases; 0 for none.

    Args:
        noise: The noise multiplier σ of one release.
        releases: The number of releases T.
        delta: δ.
    """
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(noise / math.sqrt(releases), delta)) if releases else 0.0


def noise_for(epsilon: float, releases: int, delta: float) -> float:
    """Return the smallest noise multiplier σ with which T releases cost at most ε.

    Args:
        epsilon: ε of all releases together.
        releases: The number of releases T.
        delta: δ.
    """
    from dp_accounting import get_sigma_gaussian

    return math.sqrt(releases) * float(get_sigma_gaussian(epsilon, delta))


@lru_cache(maxsize=4096)
def epsilon_of_steps(noise: float, rate: float, steps: int, delta: float) -> float:
    """Return ε after some steps of DP-SGD; 0 for none.

    Args:
        noise: The noise multiplier σ of a step.
        rate: q, the probability of a sample to be in a step.
        steps: The number of steps T.
        delta: δ.
    """
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    if not steps:
        return 0.0
    step = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    return float(RdpAccountant(ORDERS).compose(step, steps).get_epsilon(delta))


@lru_cache
def noise_for_steps(epsilon: float, rate: float, steps: int, delta: float) -> float:
    """Return the smallest noise multiplier σ, within 0.1 %, with which T steps cost at most ε.

    Args:
        epsilon: ε of all steps together.
        rate: q, the probability of a sample to be in a step.
        steps: The number of steps T.
        delta: δ.
    """
    low, high = 0.05, 1.0
    while epsilon_of_steps(high, rate, steps, delta) > epsilon:
        low, high = high, 2 * high
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        if epsilon_of_steps(middle, rate, steps, delta) > epsilon:
            low = middle
        else:
            high = middle
    return high


def parts_of(noise: float, share: float) -> tuple[float, float]:
    """Return σ_s of the sums and σ_c of the counts.

    Args:
        noise: The noise multiplier σ of both together.
        share: The part of 1/σ² that the counts get, between 0 and 1.
    """
    return noise / math.sqrt(1 - share), noise / math.sqrt(share)
