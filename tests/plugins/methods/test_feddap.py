"""Tests of FedDAP: its losses and fused prototypes against loops, and its published code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from slow_equations import mean_cross_entropy, means_by_class, numbers

import protofl as pf
from protofl.testing import toy as toyfed
from protofl_plugins.methods import feddap

CLIENTS = 4


def sent(found, round):
    """Return the uploads of a round in the order of clients."""
    uploads = found.pool.uploads(round)
    return [pf.Payload.from_bytes(uploads[client]) for client in sorted(uploads)]


def cosine(a, b):
    length = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / length


def fused(rows, tau):
    """Return Eq. 4 and 5 of lists."""
    scores = [
        sum(cosine(p, q) for j, q in enumerate(rows) if j != i) / tau for i, p in enumerate(rows)
    ]
    e = [math.exp(score - max(scores)) for score in scores]
    return [
        sum(weight / sum(e) * p[k] for weight, p in zip(e, rows, strict=True))
        for k in range(len(rows[0]))
    ]


def contrast(f, label, prototypes, domain, tau):
    """Return Eq. 8 of a sample; ``prototypes`` is {(class, domain): row}."""
    e = {key: math.exp(cosine(f, P) / tau) for key, P in prototypes.items() if key[1] != domain}
    positive = [value for (c, _), value in e.items() if c == label]
    return -math.log(sum(positive) / sum(e.values())) if positive else 0.0


@pytest.fixture
def domains():
    """Return ``domains(*values)``: toy images, value i for the samples of client i."""

    def make(*values):
        data = toyfed.make_images(toyfed.MIXED)
        column = np.array(["?"] * len(data.y))
        for value, (train, test) in zip(values, data.split, strict=True):
            column[torch.cat([train, test]).numpy()] = value
        data.columns = {"domain": column}
        return data

    return make


@pytest.mark.parametrize("client", [0, 1])
def test_the_loss_is_the_papers(toy, domains, randn, client):
    options = {"lambda_1": 0.5, "lambda_2": 0.25, "tau": 0.3}
    group = toyfed.group(toyfed.PIXELS, K=36)
    found = toy("feddap", set=options, models=group, data=domains("b", "a", "b", "c"))
    domain = {0: 1, 1: 0}[client]
    keys = [(0, 0), (0, 1), (0, 2), (1, 1), (2, 0), (2, 2)]
    P = randn(len(keys), 36, seed=1)
    classes, numbered = (torch.tensor(values) for values in zip(*keys, strict=True))
    received = dict(found.server.global_state.select("model/*"))
    payload = pf.Payload(received, prototypes=P, classes=classes, domains=numbered)
    record = found.prepare(client, payload)
    z, y = randn(6, 36, seed=2), [1, 1, 2, 0, 3, 0]
    terms = found.terms(record, z, torch.tensor(y))
    known = dict(zip(keys, numbers(P), strict=True))
    rows = list(zip(numbers(z), y, strict=True))
    align = sum(1 - cosine(f, known[c, domain]) for f, c in rows if (c, domain) in known) / 6
    other = sum(contrast(f, c, known, domain, 0.3) for f, c in rows) / 6
    assert terms["align"].item() == pytest.approx(0.5 * align, rel=1e-9)
    assert terms["contrast"].item() == pytest.approx(0.25 * other, rel=1e-9)
    logits = numbers(record.model.head(z))
    assert terms["ce"].item() == pytest.approx(mean_cross_entropy(logits, y), rel=1e-9)


@pytest.mark.parametrize("tau_agg", [0.5, 0.001, 1e9])
def test_the_server_fuses_the_clients_of_each_domain(toy, randn, tau_agg):
    found = toy("feddap", set={"tau_agg": tau_agg}, models=toyfed.group(toyfed.PIXELS))
    K, w = found.plan.info.feature_dim, dict(found.server.global_state)
    has = {0: (1, [0, 1]), 1: (1, [0, 1]), 2: (1, [1, 3]), 3: (0, [0, 1])}
    uploads = {
        i: pf.Payload(
            w,
            samples=torch.tensor(i + 1),
            domain=torch.tensor(domain),
            prototypes=randn(len(classes), K, seed=i),
            classes=torch.tensor(classes),
        )
        for i, (domain, classes) in has.items()
    }
    old = randn(3, K, seed=9)
    found.server.global_state |= {
        "prototypes": old,
        "classes": torch.tensor([0, 2, 3]),
        "domains": torch.tensor([1, 1, 0]),
    }
    result = found.call("server_aggregate", server=found.views()[1], uploads=uploads)
    groups = {}
    for i, (domain, classes) in has.items():
        for c, row in zip(classes, numbers(uploads[i]["prototypes"]), strict=True):
            groups.setdefault((c, domain), []).append(row)
    expected = {key: fused(rows, tau_agg) for key, rows in groups.items()}
    # Class 2 of domain 1 and class 3 of domain 0 are absent from the round; class 0 is not.
    expected |= {(2, 1): old[1].tolist(), (3, 0): old[2].tolist()}
    pairs = zip(result["classes"].tolist(), result["domains"].tolist(), strict=True)
    assert [*pairs] == sorted(expected)
    wanted = torch.tensor([expected[key] for key in sorted(expected)], dtype=torch.float64)
    assert torch.allclose(result["prototypes"], wanted, rtol=1e-9)


def test_the_numbers_of_the_published_code():
    # github.com/quanghuy6997/FedDAP at 988211e, models/feddap.py, run in float64 on these rows:
    # proto_aggregation_attn with temperature 0.5, hierarchical_info_loss_cross_domain with
    # infoNCET 0.5, and the lines of loss_intra_proto. It adds each prototype's cosine with itself,
    # 1 for all of them, which no softmax sees.
    def row(i, j):
        return [(((3 * i + 5 * j + 7 * k) % 11) - 5) / 5 + 0.5 for k in range(4)]

    p = torch.tensor([row(0, 0), row(1, 0), row(2, 0)], dtype=torch.float64)
    found = feddap.fused(p, 0.5)
    wanted = [0.06474938544299821, 0.8964205517533144, 0.6647493854429982, 0.5623304725083554]
    assert found.tolist() == pytest.approx(wanted, rel=1e-9)

    known = {
        (0, 0): wanted,
        (0, 1): row(3, 0),
        (1, 0): [0.8, 0.0, 0.3, 0.6],
        (1, 1): row(3, 1),
        (2, 0): row(2, 2),
    }
    P = torch.tensor([*known.values()], dtype=torch.float64)
    classes, numbered = (torch.tensor(values) for values in zip(*known, strict=True))
    f = torch.tensor([row(7, 1), row(5, 2), row(2, 8)], dtype=torch.float64)
    y = torch.tensor([0, 1, 2])
    published = {
        0: (0.27609393982301395, 0.8963263268192488),
        1: (1.9003316283234877, 0.3367721358921675),
    }
    for domain, (other, align) in published.items():
        elsewhere = numbered != domain
        loss = feddap.domain_contrast(f, y, P, classes, elsewhere, 0.5).mean()
        assert loss.item() == pytest.approx(other, rel=1e-9)
        own = torch.zeros(3, 4, dtype=torch.float64)
        own[classes[~elsewhere]] = P[~elsewhere]
        has = torch.isin(torch.arange(3), classes[~elsewhere])
        found = pf.functional.cosine_alignment(f, y, own, has)
        assert found.item() == pytest.approx(align, rel=1e-9)


@pytest.mark.parametrize("elsewhere", [[False, False, False], [True, False, True]])
def test_samples_without_a_positive_have_no_gradient(elsewhere):
    f = torch.tensor([[1.0, 2.0], [0.0, 0.0]], requires_grad=True)
    P, classes = torch.eye(3)[:, :2] + 0.1, torch.tensor([0, 1, 2])
    y = torch.tensor([1, 1])
    loss = feddap.domain_contrast(f, y, P, classes, torch.tensor(elsewhere), 0.02)
    loss.sum().backward()
    assert loss.tolist() == [0, 0]
    assert f.grad.abs().max() == 0


def test_a_round_goes_up_and_down_by_domain(toy, domains):
    found = toy("feddap", models=toyfed.group(toyfed.NORM), data=domains("b", "a", "b", "c"))
    found.rounds(2)
    uploads = sent(found, 1)
    assert [int(u["domain"]) for u in uploads] == [1, 0, 1, 2]
    rows, labels = pf.Client(found.client(0), "feddap").train_features()
    means = means_by_class(numbers(rows), labels.tolist())
    assert uploads[0]["classes"].tolist() == sorted(means)
    wanted = torch.tensor([means[c] for c in sorted(means)])
    assert torch.allclose(uploads[0]["prototypes"], wanted, atol=1e-5)
    n = [int(u["samples"]) for u in uploads]
    for key in (k for k in uploads[0] if k.startswith("model/") and "/buffer/" not in k):
        expected = sum(w * u[key].double() for w, u in zip(n, uploads, strict=True)) / sum(n)
        assert torch.allclose(found.server.global_state[key].double(), expected, atol=1e-6)
    (download, *others) = (pf.Payload.from_bytes(b) for b in found.pool.downloads(1).values())
    first = {(c, int(u["domain"])) for u in sent(found, 0) for c in u["classes"].tolist()}
    pairs = zip(download["classes"].tolist(), download["domains"].tolist(), strict=True)
    assert [*pairs] == sorted(first)
    assert all(torch.equal(download["prototypes"], other["prototypes"]) for other in others)


def test_clients_are_domains_of_their_own_where_none_is_known(toy, domains):
    found = toy("feddap", models=toyfed.group(toyfed.NORM))
    found.rounds(1)
    uploads = sent(found, 0)
    assert [int(u["domain"]) for u in uploads] == [*range(CLIENTS)]


def test_without_its_terms_it_is_fedavg(toy, domains):
    data, group = domains("b", "a", "b", "c"), toyfed.group(toyfed.NORM)
    states = []
    for method, options in (("feddap", {"lambda_1": 0, "lambda_2": 0}), ("fedavg", {})):
        found = toy(method, set=options, models=group, data=data)
        found.rounds(3)
        states.append(found.server.global_state.select("model/*"))
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("domain", [-1, CLIENTS])
def test_a_number_that_is_no_domain_is_refused(toy, domain):
    found = toy("feddap", models=toyfed.group(toyfed.NORM))
    view, upload = found.views()[1], pf.Payload(domain=torch.tensor(domain))
    problem = found.lifecycle("check_upload", server=view, client_id=2, upload=upload)
    assert f"domain {domain}, expected 0 to 3" in str(problem)


def test_models_of_several_architectures_are_refused(toy):
    with pytest.raises(pf.UsageError, match="averages whole models"):
        toy("feddap")
