"""Tests of the values for a loss, and of its view of the client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from runtime_toys import lines_of, make_plan
from torch import nn
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.runs.dry_run.short_rounds import dry_run


def method(returns=None, loss=None):
    """Return a method whose ``before_training`` calls ``returns`` and whose loss calls ``loss``."""

    class Method:
        terms = {"ce": "cross-entropy"}

        @pf.hookimpl
        def setup_client(self, client):
            client.add_module("own", nn.Linear(2, 2))

        @pf.hookimpl
        def before_training(self, client):
            return returns(client) if returns else {}

        @pf.hookimpl
        def local_loss(self, client, batch, output, constants):
            if loss:
                loss(client, batch, constants)
            return {"ce": cross_entropy(output.logits, batch.y)}

    return Method


@pytest.mark.parametrize(
    "name", ["received", "state", "scratch", "round", "id", "train", "class_counts", "generator"]
)
def test_a_loss_that_reads_the_client_is_told_what_to_do(name):
    def read(client, batch, given):
        getattr(client, name)

    with pytest.raises(pf.UsageError) as caught:
        dry_run(make_plan(method(loss=read)))
    what, near, do = str(caught.value).splitlines()
    assert f"local_loss, client 0, round 1: main.local_loss reads client.{name}" in what
    assert "return value of before_training" in near
    assert f"return what it needs of {name} from before_training" in do


def test_what_a_loss_sees_of_the_client():
    seen = {}

    def read(client, batch, given):
        seen.update(
            sizes=(client.num_classes, client.feature_dim, client.batch_size, client.rounds),
            modules=[*client.modules],
            own=client.module("own"),
            same=client.parameters()[0] is next(client.module("model").parameters()),
        )
        assert client.head(client.features(batch.x)).shape == (len(batch.x), client.num_classes)
        with pytest.raises(AttributeError, match="recieved"):
            _ = client.recieved
        with pytest.raises(pf.ProtoflError, match="no module 'other'"):
            client.module("other")

    plan = make_plan(method(loss=read), rounds=3)
    lines_of(plan, rounds=1)
    info = plan.info
    assert seen["sizes"] == (info.num_classes, info.feature_dim, info.batch_size, 3)
    assert seen["modules"] == ["own"] and isinstance(seen["own"], nn.Linear) and seen["same"]


def test_a_row_of_what_is_given_per_step():
    rows = []

    def give(client):
        return {"nested": [{"row": pf.per_step(torch.arange(client.steps))}], "n": client.steps}

    def read(client, batch, given):
        rows.append((int(given["nested"][0]["row"]), given["n"]))

    lines_of(make_plan(method(give, read), clients=1, local_epochs=2), rounds=1)
    assert [row for row, _ in rows] == list(range(rows[0][1])) and len(rows) > 2


@pytest.mark.parametrize(
    ("returned", "what", "do"),
    [
        (torch.zeros(2), "returned a tensor", "return a mapping"),
        (7, "returned the int 7", "return a mapping"),
        ({"a": {"b": np.zeros(2)}}, "returned 'a' as a numpy.ndarray", "return tensors"),
        ({"net": nn.Linear(1, 1)}, "returned 'net' as a Linear", "client.add_module"),
        ({"d": pf.per_step(torch.zeros(99, 2))}, "'d' per step in shape [99, 2]", "client.steps"),
        ({"d": pf.per_step(torch.tensor(1))}, "'d' per step in shape []", "client.steps"),
    ],
)
def test_what_can_not_be_given(returned, what, do):
    with pytest.raises(pf.UsageError) as caught:
        dry_run(make_plan(method(lambda client: returned)))
    assert "before_training, client 0, round 1: main.before_training returned" in caught.value.what
    assert what in caught.value.what
    assert do in caught.value.do
