"""Tests of ProtoNorm against loops: the mean, its alignment and upscaling, inference."""

from __future__ import annotations

import pytest
import torch
from slow_equations import aggregated, l2, means_by_class, mse, numbers

import protofl as pf
from protofl.testing import toy as toyfed
from protofl_plugins.methods.protonorm import repelled_on_sphere


def test_align_is_the_distance_to_the_scaled_prototype(toy, randn, rows):
    found = toy("protonorm", set={"lambda": 0.5, "scale": 3.0})
    payload, prototypes = rows([0, 3], seed=1)
    z, y = randn(6, 8, seed=2), [1, 1, 3, 0, 3, 3]
    terms = found.terms(found.prepare(0, payload), z, torch.tensor(y))
    pairs = [(r, prototypes[c]) for r, c in zip(numbers(z), y, strict=True) if c in prototypes]
    slow = 0.5 * sum(mse(r, [3 * v for v in p]) for r, p in pairs) / 6
    assert terms["align"].item() == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("absent", ["keep", "forget"])
@pytest.mark.parametrize("alignment", [True, False])
def test_the_server_aligns_the_plain_mean(toy, rows, alignment, absent):
    options = {"alignment": alignment, "absent": absent, "potential": "log", "steps": 30}
    found = toy("protonorm", set=options)
    first = {i: rows(classes, seed=i) for i, classes in {0: [0, 3], 2: [1, 3], 5: [0]}.items()}
    slow = aggregated(
        [{c: (row, 1) for c, row in by_class.items()} for _, by_class in first.values()], "uniform"
    )
    server = found.views()[1]
    for uploads in (first, {1: rows([0], seed=9)}):
        payloads = {client: payload for client, (payload, _) in uploads.items()}
        result = found.call("server_aggregate", server=server, uploads=payloads)
    last = rows([0], seed=9)[1]
    mean = {**slow, **last} if absent == "keep" else last
    expected, known = torch.zeros(4, 8, dtype=torch.float64), torch.zeros(4, dtype=torch.bool)
    for c, row in mean.items():
        expected[c], known[c] = torch.tensor(row, dtype=torch.float64), True
    if alignment:
        expected = repelled_on_sphere(expected, known, "log", 30)
    assert result["classes"].tolist() == sorted(mean)
    assert torch.allclose(result["prototypes"], expected[known], rtol=1e-9, atol=1e-12)


def test_the_download_is_on_the_unit_sphere_and_decides(toy):
    found = toy("protonorm", models=toyfed.group(toyfed.PIXELS, K=36))
    lines = found.rounds(2)
    assert lines[0]["download_bytes"] == 0
    assert lines[1]["loss_terms"].keys() == {"ce", "align"}
    sent = found.server.global_state.select("prototypes")
    assert torch.allclose(sent["prototypes"].norm(dim=1), torch.ones(4))
    record = found.prepare(0, sent, double=False)
    x = torch.randn(20, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    scores = found.call("inference", client=pf.Client(record, "protonorm"), x=x)
    for image, chosen in zip(x, scores.argmax(1).tolist(), strict=True):
        z = numbers(image.flatten())
        assert chosen == min(range(4), key=lambda c: l2(z, numbers(sent["prototypes"])[c]))


def test_official_sets_each_deviation(toy):
    config = toy("protonorm", set={"variant": "official"}).plan.composition.configs["protonorm"]
    assert (config.potential, config.collect, config.absent) == ("log", "before", "forget")


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_official_sends_the_prototypes_of_before_the_training(toy, variant):
    """HtFLlib's clients collect with the model that they saved last."""
    found = toy("protonorm", set={"variant": variant})
    before = {number: features_of(found, number) for number in range(4)}
    found.rounds(1)
    uploads = {n: pf.Payload.from_bytes(blob) for n, blob in found.pool.uploads(0).items()}
    assert uploads
    for number, upload in uploads.items():
        z = before[number] if variant == "official" else features_of(found, number)
        slow = means_by_class(z, found.client(number).train.y.tolist())
        assert upload["classes"].tolist() == sorted(slow)
        for row, c in zip(numbers(upload["prototypes"]), sorted(slow), strict=True):
            assert row == pytest.approx(slow[c], rel=1e-4, abs=1e-6)


def features_of(found, number):
    """Return a client's features of its training samples as numbers."""
    record = found.client(number)
    record.model.eval()
    with torch.no_grad():
        return numbers(record.model.features(record.train.inputs()))
