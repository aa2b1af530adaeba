"""Tests of TinyProto against loops: masks, Eq. 7, 8, 10, 11 and 12, and its traffic."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch
from slow_equations import DISTANCES, guided, l2, mean, means_by_class, numbers

import protofl as pf
from protofl.testing import toy as toyfed
from protofl_plugins.methods.tinyproto import class_masks

LABELS = [0, 2, 2, 1, 0, 0, 3]


def approx(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def masks(C, K, s, seed=0):
    return [{*row} for row in class_masks(C, K, s, torch.Generator().manual_seed(seed)).tolist()]


def hamming(sets):
    return sum(len(a ^ b) for a, b in combinations(sets, 2))


def places_of(federation, number=0):
    return federation.views(number)[0].state["places"].tolist()


def features_of(federation, number):
    record = federation.client(number)
    record.model.eval()
    with torch.no_grad():
        return numbers(record.model.features(record.train.inputs()))


# --- masks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("C", "K", "s"), [(3, 4, 2), (3, 3, 1), (4, 3, 2), (2, 5, 3), (3, 4, 4)])
def test_no_masks_lie_farther_apart_in_total(C, K, s):
    found = masks(C, K, s)
    assert all(len(mask) == s and mask <= {*range(K)} for mask in found)
    every = [{*places} for places in combinations(range(K), s)]
    assert hamming(found) == max(map(hamming, product(every, repeat=C)))


def test_masks_are_disjoint_where_there_is_room():
    assert len(set.union(*masks(10, 500, 50))) == 500


def test_masks_are_random_and_equal_on_all_clients(toy):
    found = toy("tinyproto", set={"s": 3})
    assert places_of(found, 0) == places_of(found, 3)
    assert places_of(found) != places_of(toy("tinyproto", set={"s": 3}, seed=1))


@pytest.mark.parametrize(("given", "s"), [({}, 4), ({"s": 7}, 7), ({"s": 100}, 36)])
def test_s_is_a_tenth_of_the_features_and_at_most_all(toy, given, s):
    found = toy("tinyproto", set=given, models=toyfed.group(toyfed.PIXELS, K=36))
    assert {len(row) for row in places_of(found)} == {s}


# --- Eq. 8 and 10 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", [True, False])
def test_the_upload_is_the_scaled_part_of_each_prototype(toy, scaling):
    found = toy("tinyproto", set={"s": 3, "scaling": scaling})
    (line,) = found.rounds(1)
    sent = 0
    for number, blob in found.pool.uploads(0).items():
        upload, y = pf.Payload.from_bytes(blob), found.client(number).train.y.tolist()
        slow = means_by_class(features_of(found, number), y)
        assert upload.keys() == {"scaled_prototypes", "classes"}
        assert upload["classes"].tolist() == sorted(slow)
        for row, c in zip(numbers(upload["scaled_prototypes"]), sorted(slow), strict=True):
            n = y.count(c) if scaling else 1
            expected = [n * slow[c][k] for k in places_of(found)[c]]
            assert row == pytest.approx(expected, rel=1e-4, abs=1e-6)
        sent += 3 * len(slow)
    assert line["upload_floats"] == sent


def test_the_server_takes_the_plain_mean_and_keeps_absent_classes(toy, rows):
    found = toy("tinyproto", set={"s": 3})
    server, last = found.views()[1], {}
    for uploads in ({0: [0, 3], 2: [1, 3], 5: [0, 1, 3]}, {1: [0]}):
        payloads, by_class = {}, {}
        for client, classes in uploads.items():
            payload, own = rows(classes, K=3, seed=client)
            payloads[client] = pf.Payload(
                scaled_prototypes=payload["prototypes"], classes=payload["classes"]
            )
            for c, row in own.items():
                by_class.setdefault(c, []).append(row)
        last |= {c: mean(each) for c, each in by_class.items()}
        result = found.call("server_aggregate", server=server, uploads=payloads)
        assert result["classes"].tolist() == sorted(last) == [0, 1, 3]
        for row, c in zip(numbers(result["scaled_prototypes"]), sorted(last), strict=True):
            assert row == approx(last[c])


def test_the_download_has_s_numbers_of_each_class(toy):
    lines = toy("tinyproto", set={"s": 3}).rounds(2)
    assert [line["download_floats"] for line in lines] == [0, 4 * 4 * 3]


# --- Eq. 5, 7 and 11 ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "mu"), [({}, None), ({"mu": 0.3}, 0.3), ({"scaling": False}, 1.0)]
)
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("align", ["class", "sample"])
def test_align_is_eq_11(toy, randn, rows, options, mu, distance, align):
    given = {"s": 3, "lambda": 0.7, "distance": distance, "align": align, **options}
    found = toy("tinyproto", set=given)
    payload, sent = rows([0, 1, 3], K=3, seed=1)
    received = pf.Payload(scaled_prototypes=payload["prototypes"], classes=payload["classes"])
    y = found.client(0).train.y.tolist()
    mu = mu or len({*y}) / len(y)  # one over the mean number of samples of a class
    places = places_of(found)
    sparse = {
        c: [mu * row[places[c].index(k)] if k in places[c] else 0.0 for k in range(8)]
        for c, row in sent.items()
    }
    z = randn(7, 8, seed=2)
    terms = found.terms(found.prepare(0, received), z, torch.tensor(LABELS))
    slow = 0.7 * guided(numbers(z), LABELS, sparse, distance, align)
    assert terms["align"].item() == approx(slow)


def test_before_the_first_prototypes_there_is_no_align_term(toy):
    lines = toy("tinyproto").rounds(2)
    assert lines[0]["loss_terms"].keys() == {"ce"}
    assert lines[1]["loss_terms"].keys() == {"ce", "align"}


# --- Eq. 12 ---------------------------------------------------------------------------------------


def test_inference_is_the_nearest_own_prototype(toy):
    found = toy("tinyproto", models=toyfed.group(toyfed.PIXELS, K=36))
    record = found.prepare(0, double=False)
    x = torch.randn(20, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    client = pf.Client(record, "tinyproto")
    record.model.eval()
    assert torch.equal(found.call("inference", client=client, x=x), record.model(x))
    found.rounds(2)
    client = found.views(0)[0]
    y = found.client(0).train.y.tolist()
    own = means_by_class(features_of(found, 0), y)
    assert len(own) < 4
    for image, chosen in zip(x, found.call("inference", client=client, x=x).argmax(1), strict=True):
        z = numbers(image.flatten())
        assert chosen == min(own, key=lambda c: l2(z, own[c]))
