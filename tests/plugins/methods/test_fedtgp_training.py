"""Tests of FedTGP's Eq. 10, whose gradient is written out, against autograd, in float64."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from protofl import functional as F
from protofl_plugins.methods.fedtgp import minimise_L_P

C, K, N, LR = 5, 7, 23, 0.05
SERVER = SimpleNamespace(replays=False, device=torch.device("cpu"))


def two_layers():
    return nn.Sequential(nn.Linear(K, K), nn.ReLU(), nn.Linear(K, K)).double()


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


@pytest.mark.parametrize("processor", [two_layers, None])
@pytest.mark.parametrize("margin", [0.0, 2.5, torch.tensor(1.5)])
def test_steps_are_sgd_on_eq_10(processor, margin):
    vectors, module, anchored, labels, batches = parts(processor)
    slow_vectors, slow_module = copy.deepcopy((vectors, module))

    minimise_L_P(SERVER, vectors, module, anchored, labels, margin, batches, LR)

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


def test_the_loss_of_a_step_is_the_public_one():
    vectors, _, anchored, labels, _ = parts(None)
    plain = vectors.detach().clone().requires_grad_()
    minimise_L_P(SERVER, vectors, None, anchored, labels, 0.7, [torch.arange(N)], LR)
    loss = F.margin_contrastive_loss(anchored, labels, plain, 0.7)
    (gradient,) = torch.autograd.grad(loss, plain)
    torch.testing.assert_close(vectors, plain - LR * gradient, rtol=1e-10, atol=1e-12)


def test_no_batches_change_nothing():
    vectors = torch.randn(3, 4)
    before = vectors.clone()
    minimise_L_P(SERVER, vectors, None, torch.randn(2, 4), torch.tensor([0, 1]), 1.0, [], 0.1)
    assert torch.equal(vectors, before)
