"""Tests of extra nets of a client: any group, architecture and width; training; features."""

from __future__ import annotations

import pytest
import torch
from runtime_toys import make_plan, open_federation
from torch import nn
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.testing import toy
from protofl.testing.toy_data import make_data

TALL = {"small": toy.group(toy.CNN, K=6), "tall": toy.group(toy.NORM, side=32)}
TALL = {("model-group", name): found for name, found in TALL.items()}


def views(folder, **options):
    """Return a client's view and the server's view in a toy federation with extra model groups."""
    return toy.Toy(toy.make_plan("local", folder, extra=TALL, **options)).views()


def same(one, two):
    return toy.same(one.state_dict(), two.state_dict())


def test_a_net_of_another_group(tmp_path):
    client, server = views(tmp_path)
    net, again, other = client.build("small/cnn"), server.build("small/cnn"), client.build("cnn")
    assert same(net, again) and net.feature_dim == client.feature_dim
    assert {k: v.shape for k, v in net.state_dict().items()} == {
        k: v.shape for k, v in other.state_dict().items()
    }
    assert client.build("small/resnet56").feature_dim == 8  # an architecture for servers only


def test_a_net_of_another_width(tmp_path):
    client, server = views(tmp_path)
    for name in ("cnn", "small/cnn"):
        net = client.build(name, feature_dim=5)
        x = torch.rand(3, *client.sample.shape)
        assert net.features(x).shape == (3, 5) and net(x).shape == (3, client.num_classes)
        assert same(net, server.build(name, feature_dim=5))
    assert same(client.build("cnn"), client.build("cnn", feature_dim=8))


def test_a_net_of_one_s_own(tmp_path):
    def build(sample, num_classes, feature_dim):
        flat = [nn.Flatten(), nn.Linear(sample.zeros(1).numel(), feature_dim)]
        return pf.models.SplitModel(
            nn.Sequential(*flat), nn.Linear(feature_dim, num_classes), feature_dim
        )

    client, server = views(tmp_path)
    mine = pf.models.Architecture("mine", build)
    net = client.build(mine, feature_dim=3)
    assert net.head.weight.shape == (client.num_classes, 3)
    assert same(net, server.build(mine, feature_dim=3))
    other = pf.models.Architecture("other", build)
    assert not torch.equal(client.build(other, feature_dim=3).head.weight, net.head.weight)


def test_an_installed_group_for_a_table(tmp_path):
    data = make_data(pf.datasets.SampleSpec((6,), "table"), toy.MIXED)
    models = toy.group(toy.PIXELS, K=6, kinds=("table",))
    client, server = toy.Toy(toy.make_plan("local", tmp_path, data, models)).views()
    net = client.build("mlp/mlp2", feature_dim=4)
    assert same(net, server.build("mlp/mlp2", feature_dim=4))
    assert net.features(torch.rand(2, 6)).shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("small/cnm", r"unknown architecture of small: 'cnm'\ndid you mean 'cnn'"),
        ("smal/cnn", r"unknown model-group 'smal'\ndid you mean 'small'"),
        ("cnm", r"unknown architecture 'cnm'\ndid you mean 'cnn'"),
        ("mlp/mlp1", "mlp takes tables, and the data are"),
        (
            "tall/norm",
            r"tall takes other samples .*\nimages of \d+ px are brought",
        ),
    ],
)
def test_names_are_checked(name, words, tmp_path):
    client, server = views(tmp_path)
    for side in (client, server):
        with pytest.raises(pf.UsageError, match=words):
            side.build(name)


# --- the auxiliary model of FML and FedKD ---------------------------------------------------------


@pytest.mark.parametrize("method", ["fml", "fedkd"])
@pytest.mark.parametrize("width", [None, 3])
def test_the_auxiliary_model_may_be_of_any_group_and_width(method, width, tmp_path):
    options = {method: {"auxiliary": "small/cnn", "auxiliary_dim": width}}
    if method == "fedkd":
        options[method] |= {"T_start": 1.0, "T_end": 1.0}
    plan = toy.make_plan(method, tmp_path, extra=TALL, options=options)
    found = toy.Toy(plan)
    lines = found.rounds(2)
    net = plan.info.build("small/cnn", 0, width)
    each = sum(p.numel() for p in net.parameters())
    assert lines[0]["download_floats"] == 4 * each
    modules = found.client(0).modules[method]
    assert modules["auxiliary"].module.feature_dim == (width or 8)
    if method == "fedkd":
        assert modules["W_h"].module.weight.shape == (8, width or 8)
    assert all(line["train_loss"] is not None for line in lines)


def test_an_auxiliary_that_nobody_has_is_refused(tmp_path):
    for name, words in (
        ("vgg", "auxiliary=vgg is not an architecture of toy; one of these works: cnn.*GROUP/NAME"),
        ("small/vgg", "auxiliary=small/vgg: unknown architecture of small: 'vgg', known: cnn"),
    ):
        with pytest.raises(pf.UsageError, match=words):
            toy.make_plan("fml", tmp_path, extra=TALL, options={"fml": {"auxiliary": name}})


# --- features of extra nets -----------------------------------------------------------------------


class Fused:
    """Prototypes of the client's features, concatenated with the 3 features of an extra net."""

    terms = {"ce": "cross-entropy"}
    uploads = {"prototypes": "of fused features", "classes": "of which", "counts": "of them"}

    @pf.hookimpl
    def setup_client(self, client: pf.Client) -> None:
        client.add_module("net", client.build("dense8", feature_dim=3))

    @pf.hookimpl
    def local_loss(self, client: pf.Learner, batch: pf.Batch, output: pf.Output) -> pf.Terms:
        own = client.module("net")(batch.x)
        return {"ce": cross_entropy(output.logits, batch.y) + cross_entropy(own, batch.y)}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client) -> pf.Payload:
        return client.class_prototypes(lambda x: fused(client, x, client.features(x)))


class Online(Fused):
    """Like `Fused`, but the prototypes are collected during training."""

    @pf.hookimpl
    def after_batch(self, client: pf.Client, batch: pf.Batch, output: pf.Output) -> None:
        with torch.no_grad():
            both = fused(client, batch.x, output.features)
        client.collect_prototypes(batch, pf.Output(both, output.logits))


def fused(client, x, own):
    return torch.cat([own, client.module("net").features(x)], 1)


def uploads_of(method, **options):
    federation = open_federation(make_plan(method, rounds=1, **options))
    seen = {}
    learn = federation.train_server
    federation.train_server = lambda uploads, tally: (seen.update(uploads), learn(uploads, tally))
    federation.round(0)
    return federation, seen


def test_prototypes_of_fused_features():
    """They are the class means after training, computed in evaluation mode."""
    federation, sent = uploads_of(Fused)
    for client, upload in sent.items():
        record = federation.pool.client(client)
        rows = federation.plan.split(0).train(client)
        x, y = federation.plan.data.x[rows].float() / 127.5 - 1, federation.plan.data.y[rows]
        with torch.no_grad():
            nets = record.model.eval(), record.modules["main"]["net"].module.eval()
            both = torch.cat([net.features(x) for net in nets], 1)
        assert both.shape[1] == 6 + 3
        for row, label in zip(upload["prototypes"], upload["classes"].tolist(), strict=True):
            torch.testing.assert_close(row, both[y == label].mean(0), rtol=1e-4, atol=1e-5)


def test_fused_features_may_be_collected_during_training():
    """With a single full-batch step, they are the prototypes of the initial weights."""
    federation, sent = uploads_of(Online, batch_size=1000)
    plan = federation.plan
    for client, upload in sent.items():
        rows = plan.split(0).train(client)
        x, y = plan.data.x[rows].float() / 127.5 - 1, plan.data.y[rows]
        nets = plan.initial_model(client, 0), plan.info.build("dense8", 0, 3)
        with torch.no_grad():
            both = torch.cat([net.features(x) for net in nets], 1)
        for row, label in zip(upload["prototypes"], upload["classes"].tolist(), strict=True):
            torch.testing.assert_close(row, both[y == label].mean(0), rtol=1e-4, atol=1e-5)


# --- parts that a phase trains --------------------------------------------------------------------


class Parts(Fused):
    """A method with one phase; each test sets the parts that the phase trains."""

    trains: tuple = ()
    uploads = {}

    @pf.hookimpl
    def phases(self) -> list[pf.Phase]:
        return [pf.Phase("part", trains=self.trains)]

    @pf.hookimpl
    def upload_payload(self) -> pf.Payload:
        return pf.Payload()


@pytest.mark.parametrize("engine", ["eager", "vmapped", "cuda-graphs"])
@pytest.mark.parametrize(
    "trains", [("head",), ("extractor", "net"), ("net",), ("extractor", "head"), ()], ids=str
)
def test_a_phase_trains_what_it_names(trains, engine):
    method = type("Parts", (Parts,), {"trains": trains, "__doc__": "Parts."})
    # Weight decay must not shrink weights that are not trained.
    plan = make_plan(method, rounds=1, engine=engine, weight_decay=0.1)
    federation = open_federation(plan)
    federation.round(0)
    record, start = federation.pool.client(0), plan.initial_model(0, 0)
    net = plan.info.build("dense8", 0, 3)
    pairs = {
        "extractor": (record.model.extractor, start.extractor),
        "head": (record.model.head, start.head),
        "net": (record.modules["main"]["net"].module, net),
    }
    moved = {name for name, (now, before) in pairs.items() if not same(now, before)}
    assert moved == ({*trains} or {*pairs})


def test_a_phase_that_names_nothing_that_there_is():
    method = type("Parts", (Parts,), {"trains": ("heads",), "__doc__": "Parts."})
    with pytest.raises(pf.ProtoflError, match=r"no module 'heads'\nit has: extractor, head, net"):
        open_federation(make_plan(method, rounds=1)).round(0)
