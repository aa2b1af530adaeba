"""Tests of distances within and between classes, and client similarity, against loops."""

import math

import numpy as np
import pytest
import torch

from protofl_workbench.recorded import prototype_spreads as F

scipy_stats = pytest.importorskip("scipy.stats")

M, C, K = 4, 5, 6
CLIENT_CLASSES = [[0, 1, 2, 3, 4], [0, 2, 3, 4], [1, 2, 3], [4]]


@pytest.fixture(scope="module")
def sent():
    """Return prototypes of four clients, [M, C, K], with NaN for classes that they lack."""
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(M, C, K, generator=generator, dtype=torch.float64)
    known = torch.tensor([[c in own for c in range(C)] for own in CLIENT_CLASSES])
    return rows.masked_fill(~known.unsqueeze(2), torch.nan), known


def mean_row(rows):
    return [sum(numbers) / len(rows) for numbers in zip(*rows, strict=True)]


def test_intra_class_distances():
    generator = torch.Generator().manual_seed(1)
    rows, labels = torch.randn(9, K, generator=generator), torch.tensor([0, 0, 2, 2, 2, 1, 4, 4, 0])
    found = F.intra_class_distances(rows, labels, C).tolist()
    for c in range(C):
        own = [row for row, label in zip(rows.tolist(), labels.tolist(), strict=True) if label == c]
        if not own:
            assert math.isnan(found[c])
            continue
        centre = mean_row(own)
        assert found[c] == pytest.approx(
            sum(math.dist(r, centre) for r in own) / len(own), abs=1e-6
        )


def test_inter_class_distances(sent):
    for rows, known in zip(*sent, strict=True):
        found = F.inter_class_distances(rows, known).tolist()
        have = known.nonzero().flatten().tolist()
        for c in range(C):
            others = [math.dist(rows[c].tolist(), rows[o].tolist()) for o in have if o != c]
            if c in have and others:
                assert found[c] == pytest.approx(sum(others) / len(others))
            else:
                assert math.isnan(found[c])


def test_distances_by_client(sent):
    rows, known = sent
    centres = torch.arange(C * K, dtype=torch.float64).reshape(C, K) / 10
    there = torch.tensor([True, True, True, True, False])
    found = F.distances_by_client(rows, known, centres, there).tolist()
    for client, own in enumerate(CLIENT_CLASSES):
        each = [math.dist(rows[client, c].tolist(), centres[c].tolist()) for c in own if c != 4]
        if each:
            assert found[client] == pytest.approx(sum(each) / len(each))
        else:
            assert math.isnan(found[client])


def slow_cka(x, y):
    """Return linear CKA by definition: HSIC(K, L) / √(HSIC(K, K)·HSIC(L, L)), centred by H."""
    n = len(x)
    H = np.eye(n) - np.ones((n, n)) / n

    def hsic(a, b):
        return np.trace(a @ H @ b @ H)

    a, b = x @ x.T, y @ y.T
    return hsic(a, b) / math.sqrt(hsic(a, a) * hsic(b, b))


SLOW = {
    "pearson": lambda x, y: scipy_stats.pearsonr(x.ravel(), y.ravel()).statistic,
    "spearman": lambda x, y: scipy_stats.spearmanr(x.ravel(), y.ravel()).statistic,
    "cka": slow_cka,
}


@pytest.mark.parametrize("kind", SLOW)
@pytest.mark.parametrize("ties", [False, True])
def test_client_similarity(sent, kind, ties):
    rows, known = sent
    rows = rows.mul(2).round() if ties else rows
    found = F.client_similarity(rows, known, kind)
    assert torch.equal(found.nan_to_num(9), found.T.nan_to_num(9))
    for a in range(M):
        for b in range(M):
            shared = sorted({*CLIENT_CLASSES[a]} & {*CLIENT_CLASSES[b]})
            if len(shared) < (3 if kind == "cka" else 1):
                assert math.isnan(found[a, b])
                continue
            x, y = rows[a, shared].numpy(), rows[b, shared].numpy()
            assert float(found[a, b]) == pytest.approx(SLOW[kind](x, y), abs=1e-9)


def test_cka_knows_no_coordinates(sent):
    """CKA ignores rotation, scale and shift of a client's features; Pearson's r does not."""
    rows = sent[0][0]
    turn = torch.linalg.qr(torch.randn(K, K, generator=torch.Generator().manual_seed(2)).double())[
        0
    ]
    both, known = torch.stack([rows, 3 * rows @ turn + 1]), torch.ones(2, C, dtype=torch.bool)
    assert float(F.client_similarity(both, known, "cka")[0, 1]) == pytest.approx(1)
    assert float(F.client_similarity(both, known)[0, 1]) < 0.9


def test_numbers_that_are_all_the_same_are_like_nothing():
    flat = torch.ones(2, 3, K)
    known = torch.ones(2, 3, dtype=torch.bool)
    assert all(F.client_similarity(flat, known, kind).isnan().all() for kind in SLOW)


def test_an_unknown_similarity():
    with pytest.raises(ValueError, match="'cka': got 'cosine'"):
        F.client_similarity(torch.ones(2, 3, K), torch.ones(2, 3, dtype=torch.bool), "cosine")
