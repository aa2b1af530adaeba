"""Tests of transforms: their order, their config, and the methods whose hooks they wrap."""

from __future__ import annotations

import pytest
import torch
from recording_methods import CALLS, A
from runtime_toys import lines_of, make_plan, open_federation

import protofl as pf
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.composition import Composition


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def scaling(name):
    class Scaling:
        class Config(pf.Config):
            by: float = pf.Field(1.0, description="b")

        @pf.hookimpl(wrapper=True)
        def upload_payload(self, client):
            payload = yield
            CALLS.append((name, "upload_payload", client.config.by, {}))
            return pf.Payload({k: v * 10 + client.config.by for k, v in payload.items()})

    return Scaling


class Sender:
    """Uploads 0; the server keeps the mean of the uploads."""

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(x=torch.tensor(0.0))

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        return {"x": torch.stack([upload["x"] for upload in uploads.values()]).mean()}


@pytest.mark.parametrize(("order", "expected"), [("one two", 12.0), ("two one", 21.0)])
def test_transforms_act_in_the_order_given(order, expected):
    found = {name: scaling(name) for name in order.split()}
    options = {"one": {"by": 1}, "two": {"by": 2}}
    federation = open_federation(make_plan(Sender, transforms=found, options=options))
    federation.round(0)
    assert federation.server.global_state["x"] == expected
    assert [name for name, *_ in CALLS[:2]] == order.split()
    assert all(by == {"one": 1, "two": 2}[name] for name, _, by, _ in CALLS)


def test_transforms_wrap_donors_and_the_baseline_too():
    for main in (Sender, "local"):
        CALLS.clear()
        federation = open_federation(make_plan(main, transforms={"one": scaling("one")}, rounds=1))
        federation.round(0)
        assert len(CALLS) == 4
    use = {"upload_payload": "sender"}
    plan = make_plan("local", {"sender": Sender}, transforms={"one": scaling("one")}, use=use)
    assert lines_of(plan)[0]["upload_floats"] == 4


def test_a_transform_is_no_method_of_the_same_run():
    extra = {("method", "x"): A, ("payload-transform", "x"): scaling("x")}
    with pytest.raises(pf.UsageError, match="both a method and a transform"):
        Composition(Registry(extra=extra), "x", transforms=["x"])
