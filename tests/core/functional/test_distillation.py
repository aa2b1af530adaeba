"""Tests of ensembles and divergences against loops."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from protofl.functional import (
    ensemble_logits,
    kl_divergence,
    variance_weights,
)


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def softmax(row):
    powers = [math.exp(x - max(row)) for x in row]
    return [power / sum(powers) for power in powers]


def naive_weights(logits):
    m, n, c = logits.shape
    weights = torch.empty(m, n, dtype=torch.float64)
    for x in range(n):
        variances = []
        for i in range(m):
            mean = sum(logits[i, x].tolist()) / c
            variances.append(sum((v - mean) ** 2 for v in logits[i, x].tolist()) / c)
        for i in range(m):
            weights[i, x] = variances[i] / sum(variances) if sum(variances) else 1 / m
    return weights


@pytest.mark.parametrize(("m", "n", "c"), [(3, 5, 4), (1, 2, 3), (2, 1, 2), (4, 0, 3), (2, 3, 1)])
def test_ensemble_is_the_loop(m, n, c):
    logits = randn(m, n, c) * torch.arange(1, m + 1).reshape(-1, 1, 1)
    weights = naive_weights(logits)
    torch.testing.assert_close(variance_weights(logits), weights)
    expected = torch.zeros(n, c, dtype=torch.float64)
    for i in range(m):
        for x in range(n):
            expected[x] += weights[i, x] * logits[i, x]
    torch.testing.assert_close(ensemble_logits(logits), expected)
    mean = torch.zeros(n, c, dtype=torch.float64)
    for i in range(m):
        for x in range(n):
            mean[x] += logits[i, x] / m
    torch.testing.assert_close(ensemble_logits(logits, "uniform"), mean)


def test_weights_of_flat_logits():
    # 0.1 and 1e6 + 0.1 have no exact mean in floating point, but their variance must be 0.
    logits = torch.full((3, 2, 7), 0.1)
    logits[1] += 1e6
    torch.testing.assert_close(variance_weights(logits), torch.full((3, 2), 1 / 3))
    logits[2, 0, 0] = 1.0
    assert variance_weights(logits)[:, 0].tolist() == [0, 0, 1]


def test_weights_keep_nan_visible():
    logits = randn(2, 2, 3)
    logits[0, 1, 2] = math.nan
    assert variance_weights(logits).isnan().any(0).tolist() == [False, True]


def naive_kl(student, teacher, temperature):
    total = 0.0
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        p = softmax([x / temperature for x in t])
        q = softmax([x / temperature for x in s])
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)
    return temperature**2 * total / max(len(student), 1)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize(("n", "c"), [(5, 4), (1, 2), (0, 3), (2, 1)])
def test_kl_is_the_loop(n, c, temperature):
    student, teacher = randn(n, c), randn(n, c, seed=1)
    expected = naive_kl(student, teacher, temperature)
    got = kl_divergence(student, teacher, temperature)
    assert got.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_kl_gradients_reach_the_student_alone():
    student, teacher = randn(3, 4).requires_grad_(), randn(3, 4, seed=1).requires_grad_()
    assert gradcheck(lambda s: kl_divergence(s, teacher.detach(), 2.0), (student,))
    kl_divergence(student, teacher).backward()
    assert teacher.grad is None and student.grad.abs().max() > 0


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_kl_over_all_elements_is_smaller_by_the_classes(temperature):
    student, teacher = randn(5, 4), randn(5, 4, seed=1)
    got = kl_divergence(student, teacher, temperature, mean="elements")
    assert got.item() == pytest.approx(naive_kl(student, teacher, temperature) / 4, rel=1e-9)
    assert kl_divergence(student[:0], teacher[:0], mean="elements").item() == 0.0


def test_kl_reaches_a_teacher_that_is_not_detached():
    student, teacher = randn(3, 4).requires_grad_(), randn(3, 4, seed=1).requires_grad_()
    assert gradcheck(lambda s, t: kl_divergence(s, t, 2.0, detach=False), (student, teacher))
    torch.testing.assert_close(
        kl_divergence(student, teacher, detach=False), kl_divergence(student, teacher)
    )
    # A probability that underflows to 0 still has a finite gradient.
    sure = torch.tensor([[500.0, 0.0, -500.0]], requires_grad=True)
    kl_divergence(randn(1, 3).float(), sure, detach=False).backward()
    assert bool(sure.grad.isfinite().all())


def test_kl_of_a_class_that_the_teacher_rules_out():
    student = randn(2, 3).requires_grad_()
    teacher = randn(2, 3, seed=1)
    teacher[0, 1] = -math.inf
    loss = kl_divergence(student, teacher)
    assert loss.item() == pytest.approx(naive_kl(student, teacher, 1.0), rel=1e-9)
    assert torch.autograd.grad(loss, student)[0].isfinite().all()


def test_errors_name_the_value():
    logits = randn(2, 3, 4)
    for function in (variance_weights, ensemble_logits):
        with pytest.raises(ValueError, match=r"logits must be \[M, N, C\]: got shape \[3, 4\]"):
            function(logits[0])
        with pytest.raises(ValueError, match=r"a client and a class: got shape \[0, 3, 4\]"):
            function(logits[:0])
    with pytest.raises(ValueError, match="weights must be 'variance' or 'uniform': got 'equal'"):
        ensemble_logits(logits, "equal")
    with pytest.raises(ValueError, match=r"teacher_logits must be \[N=3, C=4\]: got shape \[3, 2"):
        kl_divergence(logits[0], logits[1, :, :2])
    with pytest.raises(ValueError, match=r"temperature must be positive: got 0\.0"):
        kl_divergence(logits[0], logits[1], 0.0)
