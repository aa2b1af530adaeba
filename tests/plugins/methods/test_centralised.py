"""Tests of the method centralised: one model for each architecture, trained on all samples."""

from __future__ import annotations

import plain_rounds as plain
import pytest
import torch

import protofl as pf
from protofl.errors import Refused
from protofl.testing.equality import double_precision
from protofl.testing.toy import MIXED, make_images, with_task

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


@pytest.mark.parametrize(
    ("labels", "fault"),
    [
        ([0, 3, 4], "the label 4, expected 0 to 3"),
        ([0, -1, 1], "the label -1, expected 0 to 3"),
        ([0, 1], "2 labels for 3 samples"),
        (None, "inputs alone, expected inputs and labels"),
    ],
)
def test_wrong_labels_are_refused(toy, labels, fault):
    found = plain.federation(toy, "centralised")
    upload = pf.Payload(inputs=torch.zeros(3, 1, 6, 6))
    if labels:
        upload["labels"] = torch.tensor(labels)
    view = found.views()[1]
    assert found.lifecycle("check_upload", server=view, client_id=2, upload=upload) == {
        "centralised": fault
    }


def test_labels_of_other_tasks(toy):
    """Several labels are 0 or 1, and a number may be any."""
    for task, labels, fault in (
        ("multilabel", [0.0, 1, 1, 0], ""),
        ("multilabel", [0.0, 1, 2, 0], "the label 2, expected 0 or 1"),
        ("regression", [-3.5], ""),
    ):
        data = with_task(make_images(MIXED), pf.datasets.Task(task))
        found = toy("centralised", data=data, models=plain.ONE)
        upload = pf.Payload(inputs=torch.zeros(1, 1, 6, 6), labels=torch.tensor([labels]))
        view = found.views()[1]
        found_faults = found.lifecycle("check_upload", server=view, client_id=0, upload=upload)
        assert found_faults["centralised"] == fault
