"""Tests of label noise: share of wrong labels, their new classes, reproducibility."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import protofl as pf
from protofl.testing import toy as toyfed

COUNTS = [[200, 200, 200, 200], [300, 100, 300, 100], [0, 400, 400, 0]]


@pytest.fixture
def federation(tmp_path):
    def make(counts=COUNTS, **options):
        data = toyfed.make_data(pf.datasets.SampleSpec((5,), "table"), counts)
        given = (
            {"transforms": ["label-noise"], "options": {"label-noise": options}} if options else {}
        )
        return toyfed.Toy(toyfed.make_plan("local", tmp_path, data, "mlp", **given))

    return make


def matrix(found, plain, client):
    """Return the share of each class's labels that became each class, C×C."""
    old, new = plain.client(client).train.y, found.client(client).train.y
    counts = torch.zeros(4, 4)
    counts.index_put_((old, new), torch.ones(len(old)), accumulate=True)
    return counts / counts.sum(1, keepdim=True).clamp(min=1)


@pytest.mark.parametrize("kind", ["symmetric", "pairs"])
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_what_labels_become(federation, kind, rate):
    found, plain = federation(kind=kind, rate=rate), federation()
    expected = torch.full((4, 4), rate / 3) if kind == "symmetric" else torch.zeros(4, 4)
    if kind == "pairs":
        expected[range(4), [1, 2, 3, 0]] = rate
    expected.fill_diagonal_(1 - rate)
    for client in range(3):
        assert torch.equal(found.client(client).test.y, plain.client(client).test.y)
        seen = matrix(found, plain, client)
        here = seen.sum(1) > 0
        assert (seen - expected)[here].abs().max() < 0.12
        exact = expected[here] == 0
        assert (seen[here][exact] == 0).all()


def test_nothing_is_wrong_at_rate_0(federation):
    found, plain = federation(rate=0), federation()
    assert all(torch.equal(found.client(c).train.y, plain.client(c).train.y) for c in range(3))


def test_some_clients_are_noisy_all_or_nothing(federation):
    counts = [[20, 20]] * 60
    found, plain = (
        federation(counts, **options) for options in ({"clients": 0.5, "rate": 0.5}, {})
    )
    wrong = [
        float((found.client(c).train.y != plain.client(c).train.y).float().mean())
        for c in range(60)
    ]
    noisy = [share for share in wrong if share > 0]
    assert 15 <= len(noisy) <= 45 and 0.4 < np.mean(noisy) < 0.6


@pytest.mark.parametrize(
    ("tau", "kind"), [(0.5, "symmetric"), (0.0, "symmetric"), (0.5, "uniform")]
)
def test_each_noisy_client_draws_its_rate_from_u_tau_1(federation, tau, kind):
    """FedCorr, Sec. 3.1; its code changes a label to one of all C = 4 classes."""
    counts = [[100] * 4] * 60
    found, plain = federation(counts, clients=0.6, tau=tau, rate=0, kind=kind), federation(counts)
    wrong = np.array(
        [
            float((found.client(c).train.y != plain.client(c).train.y).float().mean())
            for c in range(60)
        ]
    )
    shares = wrong[wrong > 0] / (0.75 if kind == "uniform" else 1)
    assert 26 <= len(shares) <= 46
    assert shares.min() > tau - 0.1 and shares.max() < 1.1
    assert abs(shares.mean() - (1 + tau) / 2) < 0.09
    assert abs(shares.std() - (1 - tau) / 12**0.5) < 0.06  # of U(τ, 1)


def test_a_seed_gives_the_same_labels_to_a_client_built_anew(federation):
    first, again = federation(rate=0.4), federation(rate=0.4)
    again.rounds(1)
    assert torch.equal(first.client(1).train.y, again.client(1).train.y)
    both = [first.client(c).train.y[:200] for c in (0, 1)]
    assert not torch.equal(*both)
