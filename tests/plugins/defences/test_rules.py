"""Tests of robust means and filters against slow versions and SciPy, class by class."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from protofl import functional as F
from protofl_plugins.defences.coordinate_median import coordinate_median
from protofl_plugins.defences.cosine_filter import cosine_filter
from protofl_plugins.defences.geometric_median import geometric_median
from protofl_plugins.defences.multi_krum import multi_krum
from protofl_plugins.defences.prototype_uploads import minority
from protofl_plugins.defences.trimmed_mean import trimmed_mean


def ragged(seed, M=9, C=6, K=4, dtype=torch.float64):
    """Return prototypes of M clients, absent rows NaN. No client has class 0, one has class 1."""
    generator = torch.Generator().manual_seed(seed)
    P = torch.randn(M, C, K, generator=generator, dtype=dtype)
    P += 3 * torch.randn(M, C, 1, generator=generator, dtype=dtype)
    present = torch.rand(M, C, generator=generator) < 0.7
    present[:, 0] = False
    present[:, 1] = torch.arange(M) == 2
    present[:, 2] = torch.arange(M) < 2
    present[:, 3] = True
    return P.masked_fill(~present.unsqueeze(2), torch.nan), present


# Results of ByzFL 0.0.11 (pip install byzfl): byzfl.aggregators, on rows with two far clients.
BYZFL_ROWS = [
    [3.654, -6.157, 1.916, 0.139],
    [2.637, 0.771, 3.655, 0.063],
    [-1.032, 1.161, 0.864, -0.714],
    [5.505, 7.439, 7.409, 5.012],
    [-0.735, -3.614, 3.358, -0.449],
    [2.675, 0.835, 3.888, 3.074],
    [0.637, 2.962, -1.9, 2.517],
    [-6.961, -3.314, -1.87, -3.553],
    [-0.734, -1.611, -0.686, 2.102],
]
BYZFL = {
    "Median()": [0.637, 0.771, 1.916, 0.139],
    "TrMean(f=2)": [0.896, -0.4316, 1.8214, 0.8744],
    "MultiKrum(f=2)": [1.014571429, -0.807571429, 1.585, 0.961714286],
    "GeometricMedian(nu=1e-9, T=2000)": [0.609025611, -0.248553198, 1.721574492, 0.828662501],
}

CASES = [ragged(seed) for seed in range(4)]


def per_class(P, present):
    """Yield (class, its rows [n, K] as NumPy) for each class that a client has."""
    for c in range(P.shape[1]):
        if bool(present[:, c].any()):
            yield c, P[present[:, c], c].numpy()


def check_means(found, P, present, oracle, atol=1e-12):
    assert bool((found[~present.any(0)] == 0).all())
    for c, rows in per_class(P, present):
        np.testing.assert_allclose(found[c].numpy(), oracle(rows), atol=atol, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_coordinate_median(case):
    check_means(coordinate_median(*case), *case, lambda rows: np.median(rows, axis=0))


def slow_minority(n, share):
    return max(0, min(math.ceil(round(share * n, 6)), (n - 1) // 2))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 1 / 3, 0.5, 1.0])
def test_minority(share):
    counts = torch.arange(0, 40)
    found = minority(counts, share).tolist()
    assert found == [slow_minority(n, share) for n in counts.tolist()]


def test_minority_by_hand():
    assert minority(torch.tensor([0, 1, 2, 3, 4, 5, 10, 30]), 0.1).tolist() == [
        *(0, 0, 0, 1, 1, 1, 1, 3),
    ]


@pytest.mark.parametrize("share", [0.0, 0.15, 0.3, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_trimmed_mean(case, share):
    def oracle(rows):
        cut = slow_minority(len(rows), share)
        return stats.trim_mean(rows, (cut + 0.5) / len(rows) if cut else 0.0, axis=0)

    check_means(trimmed_mean(*case, share), *case, oracle)


def test_a_trimmed_mean_that_trims_nothing_is_the_mean():
    P, present = CASES[0]
    mean, _ = F.aggregate_prototypes(P.nan_to_num(), present, "uniform")
    torch.testing.assert_close(trimmed_mean(P, present, 0.0), mean)


def sum_of_distances(rows, point):
    return np.linalg.norm(rows - point, axis=1).sum()


@pytest.mark.parametrize("case", CASES)
def test_geometric_median(case):
    """An optimiser finds no point with a smaller sum of distances to a class's rows."""
    P, present = case
    table = geometric_median(P, present)
    assert bool((table[~present.any(0)] == 0).all())
    for c, rows in per_class(P, present):
        own = sum_of_distances(rows, table[c].numpy())
        starts = [rows.mean(0), np.median(rows, axis=0)]
        best = min(
            optimize.minimize(
                lambda y, rows=rows: sum_of_distances(rows, y),
                start,
                method="Nelder-Mead",
                options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 20_000, "maxfev": 20_000},
            ).fun
            for start in starts
        )
        assert own <= best * (1 + 1e-7)


def test_the_geometric_median_on_a_row():
    """If most rows are equal, they are the median, even if the iteration starts elsewhere."""
    P = torch.tensor([[0.0, 0], [0, 0], [0, 0], [9, 1], [-2, 7]]).unsqueeze(1)
    found = geometric_median(P, torch.ones(5, 1, dtype=torch.bool))
    torch.testing.assert_close(found, torch.zeros(1, 2), atol=1e-5, rtol=0)
    # The start, the mean, may be a row that is not the median: here, the third row.
    P = torch.tensor([[0.0, 0], [4, 0], [2, 2], [2, 6.0]]).unsqueeze(1)
    assert P.mean(0).tolist() == [[2, 2]]
    P = torch.tensor([[-3.0, 0], [-3, 0.1], [-3, -0.1], [0, 0], [9, 0]]).unsqueeze(1)
    assert P.mean(0).tolist() == [[0, 0]]
    found = geometric_median(P, torch.ones(5, 1, dtype=torch.bool))
    best = optimize.minimize(lambda y: sum_of_distances(P[:, 0].numpy(), y), [-3, 0.01]).fun
    assert sum_of_distances(P[:, 0].numpy(), found[0].numpy()) <= best + 1e-4


def slow_krum(rows, share):
    """Return the positions of the kept rows, by the paper's definition."""
    n = len(rows)
    f = slow_minority(n, share)
    scores = []
    for i in range(n):
        others = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append((sum(others[: max(1, n - f - 2)]), i))
    return sorted(i for _, i in sorted(scores)[: n - f])


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("case", CASES)
def test_multi_krum(case, share):
    P, present = case
    kept = multi_krum(P, present, share)
    assert not bool((kept & ~present).any())
    for c, rows in per_class(P, present):
        clients = present[:, c].nonzero().squeeze(1).tolist()
        found = [clients.index(i) for i in kept[:, c].nonzero().squeeze(1).tolist()]
        assert found == slow_krum(rows, share)


def test_multi_krum_as_a_library_has_it():
    """ByzFL's scores use one neighbour more than the paper's, but keep the same rows here."""
    rows = torch.tensor(BYZFL_ROWS, dtype=torch.float64)
    P, present = rows.unsqueeze(1), torch.ones(9, 1, dtype=torch.bool)
    kept = multi_krum(P, present, 2 / 9)[:, 0]
    assert int(kept.sum()) == 7
    mean = rows[kept].mean(0)
    np.testing.assert_allclose(mean.numpy(), BYZFL["MultiKrum(f=2)"], atol=1e-6)


def test_the_others_as_a_library_has_them():
    rows = torch.tensor(BYZFL_ROWS, dtype=torch.float64)
    P, present = rows.unsqueeze(1), torch.ones(9, 1, dtype=torch.bool)
    found = {
        "Median()": coordinate_median(P, present),
        "TrMean(f=2)": trimmed_mean(P, present, 2 / 9),
        "GeometricMedian(nu=1e-9, T=2000)": geometric_median(P, present),
    }
    for name, value in found.items():
        np.testing.assert_allclose(value[0].numpy(), BYZFL[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("least", [-1.0, 0.0, 0.6, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_cosine_filter(case, least):
    P, present = case
    kept = cosine_filter(P, present, least)
    assert not bool((kept & ~present).any())
    for c, rows in per_class(P, present):
        median = np.array([statistics.median(column) for column in rows.T.tolist()])
        cosines = rows @ median / np.linalg.norm(rows, axis=1) / np.linalg.norm(median)
        wanted = [bool(x >= least - 1e-12 or x == cosines.max()) for x in cosines]
        assert kept[present[:, c], c].tolist() == wanted or least == 1.0
        assert bool(kept[:, c].any())


@pytest.mark.parametrize("away", [1e6, 1e30])
def test_a_far_row_moves_none_of_them_far(away):
    """If one of nine rows is far away, the result stays near the others."""
    P = torch.randn(9, 1, 5, generator=torch.Generator().manual_seed(1))
    present = torch.ones(9, 1, dtype=torch.bool)
    far = P.clone()
    far[4] = away
    means = {
        "median": lambda P: coordinate_median(P, present),
        "trimmed": lambda P: trimmed_mean(P, present, 0.2),
        "geometric": lambda P: geometric_median(P, present),
        "krum": lambda P: P[multi_krum(P, present, 0.2)[:, 0]].mean(0),
    }
    for name, rule in means.items():
        assert float(rule(far).abs().max()) < float(P.abs().max()), name
    flipped = P + 10
    flipped[4] *= -1
    assert cosine_filter(flipped, present, 0.5)[:, 0].tolist() == [i != 4 for i in range(9)]
