"""Tests of the method centralised: one model for each architecture, trained on all samples."""

from __future__ import annotations

import plain_rounds as plain
import pytest
import torch

import protofl as pf
from protofl.errors import Refused
from protofl.testing.equality import double_precision

EPS = 0.01


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0)])
def test_two_rounds_by_hand(toy, optimizer, momentum):
    with double_precision():
        options = {"optimizer": optimizer, "momentum": momentum}
        options["options"] = {"centralised": {"epochs": 2}}
        if optimizer == "adam":  # a bias before BatchNorm has the gradient 0, but for rounding
            options["options"]["optimizer"] = {"eps": EPS}
        found = plain.federation(toy, "centralised", **options)
        model, samples = plain.server_model(found), plain.samples_of(found)
        x, y = (torch.cat(each) for each in zip(*samples, strict=True))
        found.rounds(2)
        for _ in range(2):
            if optimizer == "adam":
                steps = torch.optim.Adam(model.parameters(), lr=plain.LR, eps=EPS)
            else:
                steps = torch.optim.SGD(model.parameters(), lr=plain.LR, momentum=momentum)
            for _ in range(2):
                gradients = plain.gradients_of(model, x, y, None)
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter.grad = gradient
                steps.step()
        for number in range(plain.CLIENTS):
            plain.assert_equal_states(found.client(number).model.state_dict(), model.state_dict())


def test_samples_travel_once(toy):
    found = plain.federation(toy, "centralised")
    first, second = found.rounds(2)
    samples = sum(len(found.plan.split(0).train(number)) for number in range(plain.CLIENTS))
    assert first["upload_floats"] == samples * found.plan.data.x[0].numel()
    assert second["upload_floats"] == 0


def test_further_loss_terms_are_refused(toy):
    """Its clients train nothing, so a term of another method would never be computed."""
    with pytest.raises(Refused, match="trains nothing on the clients") as refused:
        toy("centralised", models=plain.ONE, add=["fedproto.align"])
    assert (refused.value.lacks, refused.value.name) == ("phase", "none")
    assert isinstance(refused.value, pf.UsageError)
