"""Tests of FedNH against loops: rounds, the server's step, first prototypes, architectures."""

from __future__ import annotations

import math
from copy import deepcopy

import plain_rounds as plain
import pytest
import torch
from slow_equations import mean, means_by_class, numbers
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision

SEVERAL = toyfed.group(toyfed.CNN, toyfed.NORM, K=6)


def unit(row):
    length = math.sqrt(sum(x * x for x in row))
    return [x / length for x in row]


def moved(W, sent, rho):
    """Return W after a round; ``sent`` is [{class: (μ_k,c, n_k,c)}, …] by client."""
    result = []
    for c, old in enumerate(W):
        own = [upload[c] for upload in sent if c in upload]
        if not own:
            result.append(old)
            continue
        total = sum(n for _, n in own)
        mu = unit([sum(n / total * row[k] for row, n in own) for k in range(len(old))])
        result.append(unit([rho * w + (1 - rho) * m for w, m in zip(old, mu, strict=True)]))
    return result


def scores(model, s, W, x):
    z = model.features(x)
    return s * (z / z.square().sum(1, keepdim=True).sqrt()) @ W.T


def by_hand(found, rounds, rho, weighted):
    """Return the server's model, s and W after rounds of two full-batch epochs."""
    samples, shared = plain.samples_of(found), plain.server_model(found)
    s = torch.tensor(2.0)
    W = found.server.global_state["prototypes"].clone()
    counts = [len(y) for _, y in samples]
    shares = [n / sum(counts) if weighted else 1 / 4 for n in counts]
    for _ in range(rounds):
        bodies, factors, sent = [], [], []
        for x, y in samples:
            model, s_k = deepcopy(shared).train(), s.clone().requires_grad_()
            trained = [*model.extractor.parameters(), s_k]
            for _ in range(2):
                loss = cross_entropy(scores(model, s_k, W, x), y)
                gradients = torch.autograd.grad(loss, trained)
                with torch.no_grad():
                    for parameter, gradient in zip(trained, gradients, strict=True):
                        parameter -= plain.LR * gradient
            bodies.append(model.extractor.state_dict())
            factors.append(s_k.detach())
            z = [unit(row) for row in numbers(model.eval().features(x))]
            means = means_by_class(z, y.tolist())
            sent.append({c: (unit(m), y.tolist().count(c)) for c, m in means.items()})
        shared.extractor.load_state_dict(plain.mean_state(bodies, shares))
        s = sum(share * factor for share, factor in zip(shares, factors, strict=True))
        W = torch.tensor(moved(numbers(W), sent, rho))
    return shared, s, W


@pytest.mark.parametrize(
    ("rho", "aggregate"), [(0.9, "uniform"), (0.0, "uniform"), (0.9, "weighted")]
)
def test_rounds_by_hand(toy, rho, aggregate):
    with double_precision():
        options = {"rho": rho, "s": 2.0, "aggregate": aggregate}
        found = plain.federation(toy, "fednh", set=options, rounds=2, local_epochs=2)
        shared, s, W = by_hand(found, 2, rho, aggregate == "weighted")
        found.rounds(2)
        body = plain.global_state(found, "extractor")
        plain.assert_equal_states(body, shared.extractor.state_dict())
        state = found.server.global_state
        torch.testing.assert_close(state["scale/s"], s, rtol=1e-9, atol=0)
        torch.testing.assert_close(state["prototypes"], W, rtol=1e-9, atol=1e-11)
        x, _ = plain.samples_of(found)[0]
        (model,) = found.lifecycle("global_models", server=found.views()[1])["fednh"].values()
        found_scores = s * model.eval()(x)
        torch.testing.assert_close(found_scores, scores(shared.eval(), s, W, x), rtol=1e-9, atol=0)


def test_classes_that_nobody_has_keep_their_prototype(toy, rows):
    found = toy("fednh", models=plain.ONE, set={"rho": 0.7})
    client, server = found.views()
    body = pf.models.pack_weights(client.module("extractor"), "extractor")
    body |= {"scale/s": torch.tensor(1.0), "samples": torch.tensor(5)}
    uploads, sent = {}, []
    for number, classes, counts in ((0, [0, 2], [3, 4]), (2, [2], [9])):
        payload, table = rows(classes, seed=number, counts=counts)
        uploads[number] = pf.Payload({**body, **payload})
        sent.append({c: (table[c], n) for c, n in zip(classes, counts, strict=True)})
    server.global_state["prototypes"] = server.global_state["prototypes"].double()
    before = numbers(server.global_state["prototypes"])
    W = numbers(found.call("server_aggregate", server=server, uploads=uploads)["prototypes"])
    for row, expected in zip(W, moved(before, sent, 0.7), strict=True):
        assert row == pytest.approx(expected, rel=1e-6)  # the first W is rounded to float32
    assert W[1] == pytest.approx(before[1], rel=1e-6) and W[2] != pytest.approx(before[2])


@pytest.mark.parametrize("K", [8, 3])
def test_the_first_prototypes(toy, K):
    state = toy("fednh", models=toyfed.group(toyfed.NORM, K=K)).server.global_state
    W = state["prototypes"].double()
    assert state["classes"].tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(W.norm(dim=1), torch.ones(4).double())
    off = (W @ W.T).fill_diagonal_(0).abs().max()
    assert off < 1e-6 if K == 8 else 0.1 < off < 0.9


def test_only_the_body_and_s_are_trained(toy):
    found = toy("fednh", models=plain.ONE, weight_decay=0.1)
    heads = [found.client(number).model.head.weight.clone() for number in range(4)]
    found.rounds(2)
    for number, head in enumerate(heads):
        assert torch.equal(found.client(number).model.head.weight, head)
    factors = [pf.Payload.from_bytes(b)["scale/s"] for b in found.pool.uploads(1).values()]
    assert len({float(s) for s in factors}) == 4
    for blob in found.pool.uploads(1).values():
        parts = {key.partition("/")[0] for key in toyfed.header(blob)}
        assert parts == {"extractor", "scale", "samples", "prototypes", "classes", "counts"}
    for blob in found.pool.downloads(1).values():
        parts = {key.partition("/")[0] for key in toyfed.header(blob)}
        assert parts == {"extractor", "scale", "prototypes", "classes"}


def test_clients_predict_by_cosines(toy):
    found = toy("fednh", models=plain.ONE, set={"s": 3.0})
    client, _ = found.views()
    x = client.train.inputs(slice(6))
    head = client.head(client.features(x))
    assert torch.equal(found.call("inference", client=client, x=x), head)  # nothing received yet
    state = found.prepare(0, found.server.global_state, double=False)
    result = numbers(found.call("inference", client=client, x=x))
    W = numbers(state.received["prototypes"])
    for row, z in zip(result, numbers(client.features(x)), strict=True):
        cosines = [sum(a * b for a, b in zip(unit(z), w, strict=True)) for w in W]
        assert row == pytest.approx([3 * c for c in cosines], abs=1e-5)


def test_architectures_share_prototypes_alone(toy):
    with pytest.raises(pf.UsageError, match=r"it averages feature extractors.*scope=architecture"):
        toy("fednh", models=SEVERAL)
    found = toy("fednh", models=SEVERAL, set={"scope": "architecture"})
    found.rounds(2)
    names = [found.client(number).architecture.name for number in range(4)]
    assert len({*names}) == 2
    uploads = {c: pf.Payload.from_bytes(b) for c, b in found.pool.uploads(1).items()}
    for name in {*names}:
        own = [upload for c, upload in uploads.items() if names[c] == name]
        factor = mean([[float(upload["scale/s"])] for upload in own])[0]
        state = found.server.global_state
        assert float(state[f"scale@{name}/s"]) == pytest.approx(factor, rel=1e-6)
        layer = next(key for key in own[0] if key.endswith("weight"))
        assert torch.allclose(
            state[layer.replace("extractor/", f"extractor@{name}/")],
            sum(upload[layer] for upload in own) / len(own),
            atol=1e-6,
        )
    downloads = [pf.Payload.from_bytes(b) for b in found.pool.downloads(1).values()]
    assert all(torch.equal(downloads[0]["prototypes"], d["prototypes"]) for d in downloads)
    models = found.lifecycle("global_models", server=found.views()[1])["fednh"]
    assert models.keys() == {*names}
