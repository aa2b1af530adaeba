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


# --- transforms that train, and that hide samples -------------------------------------------------


class Ones:
    """Sets all weights to 1 in place of training."""

    @pf.hookimpl
    def train(self, client, job):
        if client.id == 1:
            return None
        for parameter in client.parameters():
            parameter.data.fill_(1.0)
        return {"ce": 2.0 * sum(job.sizes)}


def test_a_transform_trains_in_place_of_the_engine():
    federation = open_federation(make_plan("local", transforms={"ones": Ones}))
    row = federation.round(0)[0]
    states = [federation.pool.client(number) for number in (0, 1)]
    ones = [all((p == 1).all() for p in state.model.parameters()) for state in states]
    assert ones == [True, False], "the engine trains where the transform returns None"
    assert 1.0 < row.loss_terms["ce"] < 2.5


def test_one_transform_trains():
    with pytest.raises(pf.UsageError, match="--with one and --with two: one of them can train"):
        make_plan("local", transforms={"one": Ones, "two": Ones})


class Hides:
    """Hides the samples from all other plugins."""

    hides_samples = "nobody may"

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client):
        payload = yield
        assert client.num_samples > 1 and len(client.train) == client.num_samples
        return payload


def test_a_transform_hides_samples_from_other_plugins():
    federation = open_federation(make_plan("lg-fedavg", transforms={"hides": Hides}))
    federation.round(0)
    federation = open_federation(make_plan("fedgh", transforms={"hides": Hides}))
    with pytest.raises(pf.ProtoflError, match=r"hides: fedgh reads client\.train_f.*nobody may"):
        federation.round(0)


class HidesLater:
    """Hides the samples from the transforms after it."""

    hides_samples_later = "it is late"


class Reads:
    """Reads class counts."""

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client):
        payload = yield
        assert client.class_counts.sum() == client.num_samples
        return payload


def test_a_transform_hides_samples_from_transforms_after_it():
    transforms = {"reads": Reads, "hides": HidesLater}
    open_federation(make_plan("fedgh", transforms=transforms)).round(0)
    federation = open_federation(make_plan("fedgh", transforms=dict(reversed(transforms.items()))))
    with pytest.raises(pf.ProtoflError, match=r"hides: reads reads client\.class_counts.*is late"):
        federation.round(0)


class Replaces:
    """Sends ones, whatever it gets."""

    replaces_uploads = True

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client):
        payload = yield
        return pf.Payload({k: torch.ones_like(v) for k, v in payload.items()})


class Encodes:
    """Encodes uploads as they are."""

    @pf.hookimpl
    def encode_upload(self, client, payload):
        return payload

    @pf.hookimpl
    def decode_upload(self, server, payload, client_id, form):
        return payload


@pytest.mark.parametrize("other", [scaling("other"), Encodes])
def test_no_transform_of_uploads_is_named_before_one_that_replaces_them(other):
    words = "--with other --with replaces: replaces replaces the upload.*--with replaces --with oth"
    with pytest.raises(pf.UsageError, match=f"(?s){words}"):
        make_plan("local", transforms={"other": other, "replaces": Replaces})
    make_plan("local", transforms={"ones": Ones, "replaces": Replaces, "other": other})
