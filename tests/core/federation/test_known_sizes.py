"""Tests of the numbers of samples that uploads claim."""

from __future__ import annotations

import pytest
import torch
from hostile_uploads import changed, federation

import protofl as pf

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
