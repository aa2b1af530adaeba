"""Tests of FedSAF against loops: S in the loss, means by width, absent rows."""

from __future__ import annotations

import math

import pytest
import torch
from slow_equations import aggregated, mean_cross_entropy, means_by_class, numbers

import protofl as pf
from protofl.testing.method_federations import WIDTHS


def cka(X, Y):
    """Return 1 − ⟨G_X, G_Y⟩/(‖G_X‖·‖G_Y‖) of two lists of rows."""

    def gram(rows):
        mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        rows = [[a - m for a, m in zip(row, mean, strict=True)] for row in rows]
        return [sum(a * b for a, b in zip(p, q, strict=True)) for p in rows for q in rows]

    a, b = gram(X), gram(Y)
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return 1 - dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def terms_of(federation, tables, y, number=0):
    """Return the loss terms of a batch for the given tables, and its features and scores."""
    record = federation.client(number)
    record.model.double()
    client = pf.Client(record, "fedsaf")
    x = torch.rand(len(y), *client.sample.shape, dtype=torch.float64)
    z = client.features(x)
    output = pf.Output(z, client.head(z))
    batch = pf.Batch(x, torch.tensor(y), torch.arange(len(y)))
    given = {"tables": tables}
    terms = federation.call(
        "local_loss", client=client, batch=batch, output=output, constants=given
    )
    return terms, numbers(z), numbers(output.logits)


def test_the_loss_compares_the_classes_of_the_batch(toy, randn):
    federation = toy("fedsaf", set={"lambda": 0.7})
    y = [0, 2, 2, 3, 1, 0]
    P, known = randn(4, 8), torch.tensor([True, False, True, True])
    terms, z, logits = terms_of(federation, [(P, known)], y)
    means = means_by_class(z, y)
    S = cka([means[c] for c in (0, 2, 3)], [numbers(P)[c] for c in (0, 2, 3)])
    assert terms["structure"].item() == pytest.approx(0.7 * S, rel=1e-9)
    assert S > 0.01
    assert terms["ce"].item() == pytest.approx(mean_cross_entropy(logits, y), rel=1e-9)


def test_with_native_widths_it_is_the_mean_over_widths(toy, randn):
    federation = toy("fedsaf", models=WIDTHS, feature_dim="native")
    y = [0, 2, 2, 3, 1, 0]
    sets = [[0, 1, 2, 3], [1, 2, 3], [2]]  # a single class has no structure
    tables = [
        (randn(4, width, seed=width), torch.tensor([c in own for c in range(4)]))
        for width, own in zip((5, 7, 64), sets, strict=True)
    ]
    terms, z, _ = terms_of(federation, tables, y, number=1)
    assert len(z[0]) == 6
    means = means_by_class(z, y)
    slow = [
        cka([means[c] for c in own], [numbers(P)[c] for c in own]) if len(own) > 1 else 0
        for (P, _), own in zip(tables, sets, strict=True)
    ]
    assert terms["structure"].item() == pytest.approx(sum(slow) / 3, rel=1e-9)


@pytest.mark.parametrize("aggregate", ["weighted", "uniform"])
def test_the_server_takes_a_mean_for_each_width(toy, rows, aggregate):
    federation = toy("fedsaf", models=WIDTHS, feature_dim="native", set={"aggregate": aggregate})
    server = federation.views()[1]
    widths = [server.clients[i].feature_dim for i in range(4)]
    assert widths == [11, 6, 8, 11]
    assert server.feature_dims == sorted({*widths})
    sent = [[0, 2], [1, 3], [0, 1], [2, 3]]
    uploads, slow = {}, {}
    for client, (width, classes) in enumerate(zip(widths, sent, strict=True)):
        counts = [client + 1] * 2
        uploads[client], own = rows(classes, width, seed=client, counts=counts)
        slow.setdefault(width, []).append({c: (r, client + 1) for c, r in own.items()})
    found = federation.call("server_aggregate", server=server, uploads=uploads)
    assert {*found} == {f"prototypes/{K}{end}" for K in slow for end in ("", ".classes")}
    for width, own in slow.items():
        expected = aggregated(own, aggregate)
        assert found[f"prototypes/{width}.classes"].tolist() == [*expected]
        for row, wanted in zip(
            numbers(found[f"prototypes/{width}"]), expected.values(), strict=True
        ):
            assert row == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("absent", ["keep", "forget"])
def test_a_width_that_no_client_of_the_round_has(toy, rows, absent):
    federation = toy("fedsaf", models=WIDTHS, feature_dim="native", set={"absent": absent})
    server = federation.views()[1]
    first = {1: rows([0, 2], 6)[0], 2: rows([1, 3], 8)[0]}
    for upload in first.values():
        upload["counts"] = torch.tensor([1, 1])
    server.global_state.merge(federation.call("server_aggregate", server=server, uploads=first))
    found = federation.call("server_aggregate", server=server, uploads={2: first[2]})
    server.global_state.merge(found)
    assert server.global_state["prototypes/8.classes"].tolist() == [1, 3]
    kept = server.global_state["prototypes/6.classes"].tolist()
    assert kept == ([0, 2] if absent == "keep" else [])
    assert server.global_state["prototypes/6"].shape == (len(kept), 6)


def test_all_widths_come_down_and_train(toy):
    federation = toy("fedsaf", models=WIDTHS, feature_dim="native")
    lines = federation.rounds(2)
    down = pf.Payload.from_bytes(federation.pool.downloads(1)[0])
    assert {n for n in down if "." not in n} == {f"prototypes/{K}" for K in (6, 8, 11)}
    assert lines[1]["loss_terms"]["structure"] > 0


def test_one_width_is_sent_as_fedproto_sends_it(toy):
    federation = toy("fedsaf")
    lines = federation.rounds(2)
    down = pf.Payload.from_bytes(federation.pool.downloads(1)[0])
    assert {*down} == {"prototypes", "classes"}
    assert "structure" not in lines[0]["loss_terms"]
    assert lines[1]["loss_terms"]["structure"] > 0
