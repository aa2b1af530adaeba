"""Tests of the comparison of uploads with each other, and with the sizes of clients' data."""

from __future__ import annotations

import pytest
import torch
from hostile_uploads import changed, federation

import protofl as pf
from protofl.federation.round.outliers import outliers, unusual_norms

SKIP = {"on_bad_upload": "skip", "models": "toy1", "rounds": 3}


def notes_of(told):
    return [event.text for event in told if isinstance(event, pf.events.Note)]


def test_a_client_that_claims_the_mean_is_left_out_and_not_the_honest_ones():
    """FedAvg: 2^40 samples with weights of 1e3 decided the mean, and the others diverged."""
    lie = changed(samples=torch.tensor(1 << 40), **{"model/head.weight": lambda w: w * 0 + 1e3})
    told = []
    found = federation(lie, "fedavg", told=told.append, dry=False, **SKIP)
    lines = [found.round(number)[0] for number in range(3)]
    assert [line.get("absent") for line in lines] == [None, {"2": "skipped"}, None]
    assert (
        "client 2 sent 'samples' with 1099511627776 samples, it has at most 18" in notes_of(told)[0]
    )


@pytest.mark.parametrize("factor", [20.0, 1e3, 1e6])
def test_weights_far_above_those_of_the_others_are_left_out(factor):
    told = []
    lie = changed(**{"model/head.weight": lambda w: w * factor})
    found = federation(lie, "fedavg", told=told.append, dry=False, **SKIP)
    lines = [found.round(number)[0] for number in range(3)]
    assert [line.get("absent") for line in lines] == [None, {"2": "skipped"}, None]
    assert "client 2 sent 'model/" in notes_of(told)[0]
    assert "(norm)" in notes_of(told)[0]


def test_a_layer_that_starts_at_zero_and_one_that_is_small_pass():
    same = {"model/a": torch.ones(100), "model/b": torch.zeros(3)}
    each = {c: dict(same) for c in range(4)}
    each[0]["model/b"] = torch.full((3,), 5.0)
    assert not unusual_norms(each)
    each[0]["model/b"] = torch.full((3,), 11.0)
    assert {c: fault.key for c, fault in unusual_norms(each).items()} == {0: "model/b"}


def test_two_clients_are_not_compared_and_prototypes_may_differ_more():
    two = {0: {"model/a": torch.ones(3)}, 1: {"model/a": torch.full((3,), 1e6)}}
    assert not unusual_norms(two)
    tables = {
        c: {"prototypes": torch.full((2, 3), v)} for c, v in enumerate([1.0, 1.0, 50.0, 101.0])
    }
    assert [*unusual_norms(tables)] == []  # the median is 25.5
    tables[2]["prototypes"] = torch.ones(2, 3)
    assert [*unusual_norms(tables)] == [3]
    assert outliers({0: 1.0, 1: 2.0, 2: 300.0}, 100) == {2: (300.0, 2.0)}


def test_simulated_attacks_and_runs_that_stop_see_no_comparison():
    """Attacks are for the defences; a run that stops at bad uploads has no liars."""
    lie = changed(**{"model/head.weight": lambda w: w * 1e3})
    for given in (
        {"on_bad_upload": "stop"},
        {"malicious": 0.25, "transforms": {"sign-flip": None}},
    ):
        found = federation(lie, "fedavg", dry=False, **SKIP | given)
        for number in range(2):
            assert not found.round(number)[0].get("absent")


COUNTS = {
    "samples": (changed(samples=torch.tensor(19)), "fedavg", "'samples' with 19 samples"),
    "counts": (changed(counts=lambda c: c + 18), "fedproto", "'counts' with "),
    "counts of a class": (
        changed(counts=lambda c: torch.tensor([9, *[1] * (len(c) - 1)])),
        "fedproto",
        "samples of class 0, it has ",
    ),
}


@pytest.mark.parametrize("what", COUNTS)
def test_uploads_claim_at_most_the_samples_of_the_split(what):
    lie, method, words = COUNTS[what]
    found = federation(lie, method, dry=False, models="toy1")
    found.round(0)
    with pytest.raises(pf.RunFailure, match=words) as caught:
        found.round(1)
    assert "at most those that the client has" in caught.value.near
