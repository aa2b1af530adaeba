"""Tests of ALIE's z and rows against their definitions, class by class."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch
from scipy import stats

from protofl_plugins.payload_transforms.alie import alie_rows, alie_z


def ragged(seed, M=9, C=6, K=4):
    """Return prototypes of M clients, absent rows NaN. No client has class 0, one has class 1."""
    generator = torch.Generator().manual_seed(seed)
    P = 3 * torch.randn(M, C, K, generator=generator, dtype=torch.float64)
    present = torch.rand(M, C, generator=generator) < 0.7
    present[:, 0] = False
    present[:, 1] = torch.arange(M) == 2
    return P.masked_fill(~present.unsqueeze(2), torch.nan), present


@pytest.mark.parametrize(("n", "m"), [(10, 2), (20, 4), (50, 12), (51, 12), (9, 3), (100, 20)])
def test_alie_z(n, m):
    s = n // 2 + 1 - m
    assert alie_z(n, m) == pytest.approx(max(0.0, stats.norm.ppf((n - m - s) / (n - m))))


def test_alie_z_at_the_ends():
    assert alie_z(10, 2) == 0.0
    assert alie_z(10, 10) == 0.0
    assert alie_z(10, 8) == pytest.approx(stats.norm.ppf(1 / 2))


@pytest.mark.parametrize("seed", range(4))
def test_alie_rows(seed):
    P, present = ragged(seed)
    table = alie_rows(P, present, 1.3)
    for c in present.any(0).nonzero().flatten().tolist():
        columns = P[present[:, c], c].T.tolist()
        wanted = [statistics.fmean(v) - 1.3 * statistics.pstdev(v) for v in columns]
        np.testing.assert_allclose(table[c].numpy(), wanted, atol=1e-12)
    assert bool((table[~present.any(0)] == 0).all())
