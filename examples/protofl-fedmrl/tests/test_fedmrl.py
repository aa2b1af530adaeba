"""The checks that every method passes, and its equations against a loop."""

from __future__ import annotations

import math

import pytest
import torch
from protofl_fedmrl import FedMRL

import protofl as pf
from protofl.testing import MethodContract, toy


class TestFedMRL(MethodContract):
    plugin = FedMRL


def federation(folder, *, d_1=3, **options):
    given = {"own": {"d_1": d_1, **options}}
    extra = {("method", "own"): FedMRL}  # beside the installed one
    return toy.Toy(toy.make_plan("own", folder, extra=extra, options=given))


def test_the_loss_is_the_equation_s(tmp_path):
    found = federation(tmp_path, m_G=0.5, m_F=2.0)
    client, _ = found.views()
    x, y = torch.rand(4, *client.sample.shape), torch.tensor([0, 1, 2, 3])
    G, P = client.module("G").eval(), client.module("P")
    z = client.features(x)
    terms = FedMRL().local_loss(client, pf.Batch(x, y, y), pf.Output(z, client.head(z)))
    coarse = fine = 0.0
    for row, own, label in zip(G.features(x), z, y.tolist(), strict=True):
        both = P.weight @ torch.cat([row, own]) + P.bias
        for scores, weight in ((G.head(both[:3]), 0.5), (client.head(both), 2.0)):
            own_loss = -weight * math.log(scores.softmax(0)[label].item()) / 4
            coarse, fine = (coarse + own_loss, fine) if weight == 0.5 else (coarse, fine + own_loss)
    assert terms["coarse"].item() == pytest.approx(coarse, rel=1e-4)
    assert terms["fine"].item() == pytest.approx(fine, rel=1e-4)


def test_the_shared_net_has_a_width_of_its_own_and_travels_alone(tmp_path):
    found = federation(tmp_path, shared="norm")
    (line,) = found.rounds(1)
    net = found.plan.info.build("norm", 0, 3)
    assert net.feature_dim == 3
    each = sum(p.numel() for p in net.parameters())
    assert line["upload_floats"] == line["download_floats"] == 4 * each


def test_a_width_that_cannot_be_nested_is_refused(tmp_path):
    with pytest.raises(pf.UsageError, match="d_1=9 is wider than K = 8"):
        federation(tmp_path, d_1=9)
