"""Tests of class means, their aggregation and the moving average against loops."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from protofl.functional import aggregate_prototypes, class_means, ema


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def naive_class_means(features, labels, num_classes):
    means, counts = [], []
    for c in range(num_classes):
        rows = [f for f, y in zip(features.tolist(), labels.tolist(), strict=True) if y == c]
        counts.append(len(rows))
        columns = range(features.shape[1])
        means.append([sum(row[k] for row in rows) / len(rows) if rows else 0.0 for k in columns])
    return means, counts


@pytest.mark.parametrize(
    "labels", [[0, 2, 2, 0, 2, 4], [3] * 6, [5], [], [0, 1, 2, 3, 4, 5]], ids=str
)
def test_class_means_is_the_loop(labels):
    labels = torch.tensor(labels, dtype=torch.long)
    features = randn(len(labels), 3)
    means, counts = class_means(features, labels, 6)
    expected, sizes = naive_class_means(features, labels, 6)
    torch.testing.assert_close(means, torch.tensor(expected, dtype=torch.float64))
    assert counts.dtype == torch.int64 and counts.tolist() == sizes
    assert means[counts == 0].count_nonzero() == 0


def test_class_means_gradients():
    labels = torch.tensor([1, 1, 3, 1, 0])
    assert gradcheck(lambda f: class_means(f, labels, 4)[0], (randn(5, 3).requires_grad_(),))


def test_class_means_keeps_nan_in_its_class():
    features = randn(4, 2)
    features[1] = math.nan
    means, _ = class_means(features, torch.tensor([0, 1, 2, 0]), 3)
    assert means.isnan().all(1).tolist() == [False, True, False]


def test_class_means_of_half_precision_are_summed_in_float32():
    features = torch.ones(1000, 1, dtype=torch.bfloat16)  # a bfloat16 sum stops at 256
    means, _ = class_means(features, torch.zeros(1000, dtype=torch.long), 1)
    assert means.dtype == torch.float32 and means.item() == 1


def naive_aggregate(prototypes, counts, mode):
    m, c, k = prototypes.shape
    result, known = torch.zeros(c, k, dtype=torch.float64), []
    for j in range(c):
        owners = [i for i in range(m) if counts[i, j] > 0]
        known.append(bool(owners))
        total = sum(int(counts[i, j]) for i in owners)
        for i in owners:
            share = 1 / len(owners) if mode == "uniform" else int(counts[i, j]) / total
            if mode == "eq3":
                share /= len(owners)
            result[j] += share * prototypes[i, j]
    return result, known


@pytest.mark.parametrize("mode", ["weighted", "uniform", "eq3"])
def test_aggregate_is_the_loop(mode):
    prototypes = randn(3, 5, 4)
    counts = torch.tensor([[4, 0, 1, 0, 7], [1, 0, 0, 2, 7], [10, 0, 0, 3, 7]])
    prototypes[counts == 0] = math.nan  # rows with count 0 may hold anything
    got, known = aggregate_prototypes(prototypes, counts, mode)
    expected, naive_known = naive_aggregate(prototypes, counts, mode)
    torch.testing.assert_close(got, expected)
    assert known.dtype == torch.bool and known.tolist() == naive_known
    assert known.tolist() == [True, False, True, True, True]


def test_aggregate_modes_differ_as_their_equations_do():
    prototypes = torch.tensor([[[1.0]], [[4.0]]])
    counts = torch.tensor([[2], [1]])
    assert aggregate_prototypes(prototypes, counts)[0].item() == 2.0
    assert aggregate_prototypes(prototypes, counts, "uniform")[0].item() == 2.5
    assert aggregate_prototypes(prototypes, counts, "eq3")[0].item() == 1.0


def test_aggregate_of_no_client():
    got, known = aggregate_prototypes(torch.zeros(0, 3, 2), torch.zeros(0, 3, dtype=torch.long))
    assert torch.equal(got, torch.zeros(3, 2)) and not known.any()


def test_ema_is_the_equation():
    old, new = randn(4, 3), randn(4, 3, seed=1)
    got = ema(old, new, 0.9)
    for c in range(4):
        for k in range(3):
            expected = 0.9 * old[c, k].item() + 0.1 * new[c, k].item()
            assert got[c, k].item() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(ema(old, new, 1.0), old)
    torch.testing.assert_close(ema(old, new, 0.0), new)


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2)])
def test_ema_mask_picks_the_rows(shape):
    old, new = randn(*shape), randn(*shape, seed=1)
    mask = torch.tensor([True, False, True, False])
    moved = ema(old, new, 0.25)
    new[~mask] = math.nan
    got = ema(old, new, 0.25, mask)
    assert torch.equal(got[mask], moved[mask]) and torch.equal(got[~mask], old[~mask])


def test_ema_gradients():
    mask = torch.tensor([True, False])
    inputs = (randn(2, 3).requires_grad_(), randn(2, 3, seed=1).requires_grad_())
    assert gradcheck(lambda old, new: ema(old, new, 0.3, mask), inputs)


def test_errors_name_the_value():
    features, labels = randn(4, 3), torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match="num_classes must be at least 1: got 0"):
        class_means(features, labels, 0)
    with pytest.raises(ValueError, match=r"labels must be \[N=4\]: got shape \[4, 1\]"):
        class_means(features, labels[:, None], 2)
    with pytest.raises(ValueError, match=r"labels must be integers: got torch\.bool"):
        class_means(features, labels.bool(), 2)
    prototypes = randn(2, 3, 4)
    with pytest.raises(ValueError, match=r"counts must be \[M=2, C=3\]: got shape \[2, 4\]"):
        aggregate_prototypes(prototypes, torch.ones(2, 4))
    with pytest.raises(ValueError, match=r"prototypes must be \[M, C, K\]: got shape \[3, 4\]"):
        aggregate_prototypes(prototypes[0], torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"mode must be .* got 'mean'"):
        aggregate_prototypes(prototypes, torch.ones(2, 3), "mean")
    with pytest.raises(ValueError, match=r"alpha must be between 0 and 1: got 1\.5"):
        ema(features, features, 1.5)
    with pytest.raises(ValueError, match=r"new must have the shape of old, \[4, 3\]: got \[4\]"):
        ema(features, features[:, 0], 0.5)
    with pytest.raises(ValueError, match=r"mask must be bool: got torch\.int64"):
        ema(features, features, 0.5, labels)
    with pytest.raises(ValueError, match="old is a scalar"):
        ema(features[0, 0], features[0, 0], 0.5, labels.bool())
