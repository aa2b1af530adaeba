"""Tests of several rows per class in a download: they must be declared and are not a table."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.testing import toy as toyfed


class Several:
    """Sends each client two prototypes of class 0 and one of class 1."""

    terms = {"ce": "cross-entropy"}
    downloads = {"prototypes": "several of each class", "classes": "of which"}
    download_rules = {"classes": "several"}

    @pf.hookimpl
    def setup_server(self, server):
        rows = torch.arange(3.0).unsqueeze(1).expand(3, server.feature_dim).contiguous()
        return pf.Payload(prototypes=rows, classes=torch.tensor([0, 0, 1]))

    @pf.hookimpl
    def download_payload(self, server, client_id):
        return server.global_state.select("prototypes")

    @pf.hookimpl
    def before_training(self, client):
        rows, classes = client.received.rows("prototypes")
        client.state["seen"] = [rows[:, 0].tolist(), classes.tolist()]
        return {}

    @pf.hookimpl
    def local_loss(self, batch, output):
        return {"ce": cross_entropy(output.logits, batch.y)}


class Undeclared(Several):
    """Like `Several`, without the declaration."""

    download_rules = {}


def test_declared_rows_arrive(tmp_path):
    federation = toyfed.Toy(toyfed.make_plan("mine", tmp_path, extra={("method", "mine"): Several}))
    federation.rounds(1)
    (seen,) = {str(own["seen"]) for own in federation.client(0).state.values() if "seen" in own}
    assert seen == "[[0.0, 1.0, 2.0], [0, 0, 1]]"


def test_undeclared_rows_are_refused(tmp_path):
    federation = toyfed.Toy(
        toyfed.make_plan("mine", tmp_path, extra={("method", "mine"): Undeclared})
    )
    with pytest.raises(pf.ProtoflError, match="class 0 twice"):
        federation.rounds(1)


def test_a_table_of_several_rows_is_refused():
    payload = pf.Payload(prototypes=torch.rand(3, 2), classes=torch.tensor([0, 0, 1]))
    with pytest.raises(pf.ProtoflError, match="one row for each class"):
        payload.table("prototypes", 4)
    with pytest.raises(pf.ProtoflError, match="one row for each class"):
        pf.stack_rows({0: payload}, "prototypes", 4)
