"""Tests of FedMPS against loops: contrast, soft labels, low features, a federation's rounds."""

from __future__ import annotations

import math
from copy import deepcopy

import plain_rounds as plain
import pytest
import torch
from slow_equations import mean, mean_cross_entropy, means_by_class, numbers
from torch import nn
from torch.nn.functional import normalize

import protofl as pf
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision
from protofl_plugins.methods.fedmps import contrast, low_features, rows_of

C = 4


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def slow_contrast(v, V, y, tau):
    rows, labels = v + V, y + y
    each = []
    for a, row in enumerate(rows):
        others = [b for b in range(len(rows)) if b != a]
        total = sum(math.exp(dot(row, rows[b]) / tau) for b in others)
        own = [p for p in others if labels[p] == labels[a]]
        each.append(sum(dot(row, rows[p]) / tau - math.log(total) for p in own) / len(own))
    return -(tau / 0.07) * sum(each) / len(each)


def slow_divergence(teachers, students, T):
    total = 0.0
    for teacher, student in zip(teachers, students, strict=True):
        p, q = ([math.exp(s / T) for s in scores] for scores in (teacher, student))
        pairs = zip([x / sum(p) for x in p], [x / sum(q) for x in q], strict=True)
        total += sum(a * math.log(a / b) for a, b in pairs)
    return total / len(teachers)


def unit(rows):
    return [[x / math.sqrt(dot(row, row)) for x in row] for row in rows]


def slow_low(extractor, x):
    """Return unit outputs of a toy extractor's first three layers."""
    for layer in list(extractor)[:3]:
        x = layer(x)
    return unit(numbers(x.flatten(1)))


def with_own(table, y, own):
    return [table.get(c, row) for c, row in zip(y, own, strict=True)]


@pytest.mark.parametrize("tau", [0.5, 0.1])
def test_the_contrast(randn, tau):
    v, V = normalize(randn(5, 3), dim=1).requires_grad_(), normalize(randn(5, 3, seed=1), dim=1)
    y = [0, 2, 0, 1, 2]
    loss = contrast(v, V, torch.tensor(y), tau)
    expected = slow_contrast(numbers(v), numbers(V), y, tau)
    assert loss.item() == pytest.approx(expected, rel=1e-9)
    (gradient,) = torch.autograd.grad(loss, v)
    step = 1e-6 * gradient / gradient.norm()
    up, down = (slow_contrast(numbers(v + s), numbers(V), y, tau) for s in (step, -step))
    assert float(gradient.norm()) == pytest.approx((up - down) / 2e-6, rel=1e-6)


@pytest.mark.parametrize("architecture", [toyfed.CNN, toyfed.NORM])
def test_the_loss_terms(toy, rows, randn, architecture):
    options = {"alpha": 0.7, "beta": 0.3, "gamma": 2.0, "tau": 0.4, "temperature": 3.0}
    found = toy("fedmps", models=toyfed.group(architecture), set=options)
    client, _ = found.views()
    client.module("model").double().train()
    batch = torch.rand(5, *client.sample.shape, dtype=torch.float64)
    y = [0, 2, 0, 1, 3]
    extractor = client.module("extractor")
    low = slow_low(deepcopy(extractor), batch)
    payload, high_rows = rows([0, 1, 2], K=8)
    low_payload, low_rows = rows([0, 2], K=len(low[0]), seed=1)
    soft, soft_rows = rows([0, 1, 2], K=C, seed=2)
    state = found.client(0)
    state.received = pf.Payload(payload)
    for name, sent in (("low_prototypes", low_payload), ("class_logits", soft)):
        state.received[name] = sent["prototypes"]
        state.received[f"{name}.classes"] = sent["classes"]
    constants = found.lifecycle("before_training", client=client)["fedmps"]
    features = client.features(batch)
    before = deepcopy(extractor.state_dict())
    terms = found.call(
        "local_loss",
        client=client,
        batch=pf.Batch(batch, torch.tensor(y), torch.arange(5)),
        output=pf.Output(features, client.head(features)),
        constants=constants,
    )
    assert all(torch.equal(before[name], t) for name, t in extractor.state_dict().items())
    z = unit(numbers(features))
    scores = numbers(client.head(torch.tensor(z, dtype=torch.float64)))
    expected = {
        "ce": mean_cross_entropy(scores, y),
        "high": 0.7 * slow_contrast(z, with_own(high_rows, y, z), y, 0.4),
        "low": 0.3 * slow_contrast(low, with_own(low_rows, y, low), y, 0.4),
        "soft": 2.0 * slow_divergence(with_own(soft_rows, y, scores), scores, 3.0),
    }
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(expected, rel=1e-9)


def test_nothing_but_cross_entropy_before_there_are_prototypes(toy):
    lines = toy("fedmps").rounds(2)
    assert lines[0]["loss_terms"].keys() == {"ce"}
    assert lines[1]["loss_terms"].keys() == {"ce", "high", "low", "soft"}


def test_uploads_and_means_of_a_round(toy):
    with double_precision():
        found = plain.federation(toy, "fedmps", participation=0.5)
        found.rounds(1)
        uploads = {c: pf.Payload.from_bytes(b) for c, b in found.pool.uploads(0).items()}
        samples, sent = plain.samples_of(found), {"prototypes": [], "low_prototypes": []}
        for number, upload in uploads.items():
            (x, y), model = samples[number], found.client(number).model.eval()
            rows = {
                "prototypes": unit(numbers(model.features(x))),
                "low_prototypes": slow_low(model.extractor, x),
            }
            for name, of_samples in rows.items():
                means = means_by_class(of_samples, y.tolist())
                assert sorted(means) == upload["classes"].tolist()
                for c, row in zip(upload["classes"].tolist(), numbers(upload[name]), strict=True):
                    assert row == pytest.approx(means[c], rel=1e-9, abs=1e-12)
                sent[name].append(means)
        for name, key in (("prototypes",) * 2, ("low_prototypes", "low_prototypes@norm")):
            table, known = found.server.global_state.table(key, C)
            for c in range(C):
                own = [means[c] for means in sent[name] if c in means]
                assert bool(known[c]) == bool(own)
                if own:
                    assert numbers(table[c]) == pytest.approx(mean(own), rel=1e-9, abs=1e-12)


def test_the_server_trains_on_the_prototypes_of_the_round(toy, rows):
    with double_precision():
        options = {"epochs": 2, "server_batch_size": 3}
        found = plain.federation(toy, "fedmps", set=options)
        _, server = found.views()
        w = deepcopy(server.modules["head"])
        uploads, pairs = {}, []
        for number, classes in ((0, [0, 2]), (2, [1, 2])):
            uploads[number], table = rows(classes, seed=number)
            pairs += [(table[c], c) for c in classes]
        P = torch.tensor([row for row, _ in pairs])
        labels = torch.tensor([c for _, c in pairs])
        optimizer = torch.optim.Adam(w.parameters(), lr=1e-3)
        generator = server.generator("shuffle")
        for _ in range(2):
            for chosen in torch.randperm(4, generator=generator).split(3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(w(P[chosen]), labels[chosen]).backward()
                optimizer.step()
        result = found.call("server_train", server=server, uploads=uploads)
        means = means_by_class(numbers(w(P)), labels.tolist())
        assert result["class_logits.classes"].tolist() == [0, 1, 2]
        for c, row in enumerate(numbers(result["class_logits"])):
            assert row == pytest.approx(means[c], rel=1e-7)
        # A class that is absent from a later round keeps its soft label; the others change.
        later = found.call("server_train", server=server, uploads={2: uploads[2]})
        assert later["class_logits.classes"].tolist() == [0, 1, 2]
        assert torch.equal(later["class_logits"][0], result["class_logits"][0])
        assert not torch.equal(later["class_logits"][1], result["class_logits"][1])


def test_architectures_share_high_prototypes_and_soft_labels(toy):
    found = toy("fedmps", models=toyfed.group(toyfed.CNN, toyfed.NORM, K=6))
    found.rounds(3)
    downloads = {c: pf.Payload.from_bytes(b) for c, b in found.pool.downloads(2).items()}
    names = [found.client(number).architecture.name for number in range(4)]
    assert len({*names}) == 2
    for number in range(1, 4):
        for key in ("prototypes", "class_logits"):
            assert torch.equal(downloads[0][key], downloads[number][key])
        same = names[0] == names[number]
        low = [downloads[n]["low_prototypes"] for n in (0, number)]
        assert (low[0].shape == low[1].shape and torch.equal(*low)) == same


def test_first_layers():
    layers = [nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Sequential(nn.ReLU(), nn.Linear(5, 2))]
    extractor, x = nn.Sequential(*layers).train(), torch.randn(6, 3)
    before = deepcopy(extractor.state_dict())
    for first, expected in ((1, layers[0](x)), (3, extractor(x)), (9, extractor(x))):
        extractor.load_state_dict(before)
        found = low_features(extractor, first, x)
        torch.testing.assert_close(found, normalize(expected))
        assert all(torch.equal(before[name], t) for name, t in extractor.state_dict().items())
    torch.testing.assert_close(low_features(nn.Flatten(), 3, x), normalize(x))
    found = low_features(extractor.eval(), 2, x)
    torch.testing.assert_close(found, normalize(layers[1](layers[0](x))))


def test_all_layers_where_the_last_of_the_first_is_not_called():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

        def forward(self, x):
            return self.layers[1](self.layers[0](x))

    extractor, x = Listed(), torch.ones(1, 2)
    torch.testing.assert_close(low_features(extractor, 1, x), normalize(extractor(x)))


def test_a_sample_without_prototype_is_a_constant(randn):
    own, table, known = randn(2, 3).requires_grad_(), randn(2, 3, seed=1), [False, True]
    found = rows_of(torch.tensor([1, 0]), own, table, torch.tensor(known))
    assert torch.equal(found, torch.stack([table[1], own[1]]))
    assert not found.requires_grad


def test_clients_predict_by_their_head_on_unit_features(toy):
    client, _ = (found := toy("fedmps")).views()
    x = client.train.inputs(slice(5))
    scores = found.call("inference", client=client, x=x)
    torch.testing.assert_close(scores, client.head(normalize(client.features(x))))
