"""FedTGP's step by hand against autograd through the functional core, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from protofl import functional as F
from protofl_plugins.embeddings import Embeddings
from torch import nn


@pytest.mark.parametrize("processor", [True, False], ids=["F", "no F"])
@pytest.mark.parametrize("margin", [0.0, 2.5])
def test_steps_are_those_of_autograd(processor, margin):
    C, K, N, lr = 5, 7, 23, 0.05
    torch.manual_seed(3)
    vectors = nn.Embedding(C, K).double()
    F_ = nn.Sequential(nn.Linear(K, K), nn.ReLU(), nn.Linear(K, K)).double() if processor else None
    slow_vectors, slow_F = copy.deepcopy(vectors), copy.deepcopy(F_)
    anchored, labels = torch.randn(N, K).double(), torch.randint(0, C, (N,))
    if not processor:
        anchored[4] = vectors.weight[2].detach()  # distance 0 has gradient 0
    orders = [rows for _ in range(4) for rows in torch.randperm(N).split(6)]

    Embeddings(vectors.weight, F_, lr).train(anchored, labels, torch.tensor(margin), orders)

    weights = [*slow_vectors.parameters(), *(slow_F.parameters() if slow_F else [])]
    for rows in orders:
        P = slow_F(slow_vectors.weight) if slow_F else slow_vectors.weight
        loss = F.margin_contrastive_loss(anchored[rows], labels[rows], P, margin)
        gradients = torch.autograd.grad(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.data -= lr * gradient
    found = [*vectors.parameters(), *(F_.parameters() if F_ else [])]
    for one, other in zip(found, weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_no_batches_change_nothing():
    vectors = torch.randn(3, 4)
    before = vectors.clone()
    Embeddings(vectors, None, 0.1).train(torch.randn(2, 4), torch.tensor([0, 1]), 1.0, [])
    assert torch.equal(vectors, before)
