"""Tests of FedTGP Eq. 10 with hand-written gradients against autograd, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from protofl import functional as F

C, K, N, LR = 5, 7, 23, 0.05


def two_layers():
    return nn.Sequential(nn.Linear(K, K), nn.ReLU(), nn.Linear(K, K)).double()


def three_layers():
    return nn.Sequential(two_layers(), nn.Tanh(), nn.Linear(K, K, bias=False)).double()


def parts(processor):
    torch.manual_seed(3)
    vectors = nn.Embedding(C, K).double().weight
    module = processor and processor()
    anchored, labels = torch.randn(N, K).double(), torch.randint(0, C, (N,))
    if module is None:
        anchored[4] = vectors[2].detach()  # distance 0 has gradient 0
    batches = [rows for _ in range(4) for rows in torch.randperm(N).split(6)]
    return vectors, module, anchored, labels, batches


def weights(vectors, processor):
    return [vectors, *(processor.parameters() if processor else [])]


@pytest.mark.parametrize("processor", [two_layers, three_layers, None])
@pytest.mark.parametrize("margin", [0.0, 2.5, torch.tensor(1.5)])
@pytest.mark.parametrize("train", [F.train_prototypes, F.train_prototypes_by_autograd])
def test_steps_are_sgd_on_eq_10(processor, margin, train):
    vectors, module, anchored, labels, batches = parts(processor)
    slow_vectors, slow_module = copy.deepcopy((vectors, module))

    train(vectors, module, anchored, labels, margin, batches, LR)

    slow = weights(slow_vectors, slow_module)
    for rows in batches:
        P = slow_module(slow_vectors) if slow_module else slow_vectors
        distances = (anchored[rows].unsqueeze(1) - P).norm(dim=2)
        own = nn.functional.one_hot(labels[rows], C).bool()
        scores = -(distances + margin * own)
        loss = -(scores.softmax(1)[own]).log().mean()
        for weight, gradient in zip(slow, torch.autograd.grad(loss, slow), strict=True):
            weight.data -= LR * torch.nan_to_num(gradient)
    for one, other in zip(weights(vectors, module), slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("processor", [two_layers, None])
def test_the_fast_and_the_plain_one_agree(processor):
    vectors, module, anchored, labels, batches = parts(processor)
    plain_vectors, plain_module = copy.deepcopy((vectors, module))
    F.train_prototypes(vectors, module, anchored, labels, 0.7, batches, LR)
    F.train_prototypes_by_autograd(plain_vectors, plain_module, anchored, labels, 0.7, batches, LR)
    fast, plain = weights(vectors, module), weights(plain_vectors, plain_module)
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_no_batches_change_nothing():
    vectors = torch.randn(3, 4)
    before = vectors.clone()
    F.train_prototypes(vectors, None, torch.randn(2, 4), torch.tensor([0, 1]), 1.0, [], 0.1)
    assert torch.equal(vectors, before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"vectors": torch.randn(3)}, "vectors must be"),
        ({"anchored": torch.randn(2, 5)}, "K=5"),
        ({"labels": torch.tensor([0.0, 1.0])}, "labels must be integers"),
        ({"margin": torch.zeros(2)}, "margin must be"),
    ],
)
@pytest.mark.parametrize("train", [F.train_prototypes, F.train_prototypes_by_autograd])
def test_wrong_arguments(train, wrong, message):
    given = {
        "vectors": torch.randn(3, 4),
        "processor": None,
        "anchored": torch.randn(2, 4),
        "labels": torch.tensor([0, 1]),
        "margin": 1.0,
        "batches": [torch.tensor([0, 1])],
        "lr": 0.1,
    }
    with pytest.raises(ValueError, match=message):
        train(**given | wrong)
