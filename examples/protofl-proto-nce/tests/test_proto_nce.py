"""Tests of ProtoNCE: the contract of all methods, and the loss term against a plain loop."""

from __future__ import annotations

import math

import torch
from protofl_proto_nce import ProtoNCE
from torch.nn.functional import cosine_similarity

import protofl as pf
from protofl.testing import MethodContract


class TestProtoNCE(MethodContract):
    plugin = ProtoNCE


class Stub:
    """A client with only the attributes that the hooks read."""

    num_classes, feature_dim = 4, 3
    config = ProtoNCE.Config(tau=0.2, lambda_=2.0)

    def __init__(self, received):
        self.received = received


def loss(received, z, y):
    output = pf.Output(z, torch.zeros(len(y), 4))
    client, method = Stub(received), ProtoNCE()
    constants = method.before_training(client)
    return method.local_loss(client, pf.Batch(z, y, y), output, constants)


def test_the_contrastive_term_is_the_equation_s():
    torch.manual_seed(0)
    z, y = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 1, 2, 3, 1])
    P, classes = torch.randn(3, 3), torch.tensor([0, 1, 3])  # no client has sent class 2
    expected = 0.0
    for row, label in zip(z, y.tolist(), strict=True):
        if label == 2:
            continue
        scores = {
            c: cosine_similarity(row, p, 0).item() / 0.2 for c, p in zip([0, 1, 3], P, strict=True)
        }
        expected -= math.log(math.exp(scores[label]) / sum(map(math.exp, scores.values())))
    terms = loss(pf.Payload(prototypes=P, classes=classes), z, y)
    assert math.isclose(terms["nce"].item(), 2.0 * expected / 5, rel_tol=1e-5)
    (gradient,) = torch.autograd.grad(terms["nce"], z)
    assert gradient.isfinite().all() and not gradient[2].any() and gradient[0].any()


def test_nothing_is_contrasted_before_prototypes_arrive():
    z = torch.randn(5, 3)
    assert loss(pf.Payload(), z, torch.tensor([0, 1, 2, 3, 1])).keys() == {"ce"}
