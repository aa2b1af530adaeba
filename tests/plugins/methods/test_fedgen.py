"""Tests of FedGen: generator size, losses against loops, payloads."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from toy_federation import ONE_CLASS, Toy, batch_of, client, run_defaults

import protofl as pf
from protofl.hooks.views.snapshots import pack_server, unpack_server
from protofl.system.files.tensors import read_tensors, write_tensors
from protofl_plugins.methods import fedgen
from protofl_plugins.methods.fedgen import FedGen, Generator


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def softmax(row):
    powers = [math.exp(v) for v in row]
    return [p / sum(powers) for p in powers]


def test_generator_has_the_size_that_the_published_traffic_implies():
    with torch.device("meta"):
        G = Generator(32, 100, 512, 512)
    assert sum(p.numel() for p in G.parameters()) == 331_776


def slow_features(G, noise, labels, norm):
    """Return G(ỹ), one hidden unit at a time."""
    A, a, B, b = (
        G.state_dict()[f"layers.{n}"] for n in ("0.weight", "0.bias", "3.weight", "3.bias")
    )
    scale, hidden = G.layers[1], []
    for eps, y in zip(noise, labels, strict=True):
        one_hot = [float(c == y) for c in range(G.num_classes)]
        hidden.append(A @ torch.cat([eps, torch.tensor(one_hot, dtype=eps.dtype)]) + a)
    columns = []
    for unit, column in enumerate(zip(*(row.tolist() for row in hidden), strict=True)):
        mean, variance = float(scale.running_mean[unit]), float(scale.running_var[unit])
        if norm == "batch":
            mean = sum(column) / len(column)
            variance = sum((v - mean) ** 2 for v in column) / len(column)
        gain, shift = scale.weight[unit].item(), scale.bias[unit].item()
        spread = math.sqrt(variance + scale.eps)
        columns.append([max((v - mean) / spread * gain + shift, 0.0) for v in column])
    rows = zip(*columns, strict=True)
    return [B @ torch.tensor(row, dtype=noise.dtype) + b for row in rows]


@pytest.mark.parametrize("norm", ["running", "batch"])
def test_generator(norm):
    G, draw = Generator(2, 3, 5, 4).double().eval(), torch.Generator().manual_seed(0)
    scale = G.layers[1]
    scale.running_mean.uniform_(-1, 1, generator=draw)
    scale.running_var.uniform_(1, 2, generator=draw)
    kept = scale.running_mean.clone()
    with torch.no_grad():
        scale.weight.uniform_(1, 2, generator=draw), scale.bias.uniform_(-1, 1, generator=draw)
    noise = torch.rand(3, 2, generator=draw, dtype=torch.float64)
    found = G(noise, torch.tensor([2, 0, 2]), norm)
    expected = torch.stack(slow_features(G, noise, (2, 0, 2), norm))
    torch.testing.assert_close(found, expected)
    assert torch.equal(scale.running_mean, kept)


@pytest.mark.parametrize("norm", ["running", "batch"])
def test_client_loss(norm):
    batch, output = batch_of(5, 4, 3)
    draw = torch.Generator().manual_seed(7)
    head, G = nn.Linear(3, 4).double(), Generator(2, 4, 6, 3).double().eval().requires_grad_(False)
    config, fade = FedGen.Config(a=0.6, b=0.4, decay=0.9, norm=norm), 0.9**3
    given = {
        "a": fade * config.a,
        "b": fade * config.b,
        "labels": torch.tensor([3, 0, 1]),
        "noise": torch.rand(3, 2, generator=draw, dtype=torch.float64),
        "own": torch.rand(8, 2, generator=draw, dtype=torch.float64),
    }
    view = client(config, head=head, module={"generator": G}.get)
    terms = FedGen().local_loss(view, batch, output, given)
    expected = dict.fromkeys(FedGen.terms, 0.0)
    for p, y in zip(output.logits.tolist(), batch.y.tolist(), strict=True):
        expected["ce"] -= math.log(softmax(p)[y]) / 5
    for row, y in zip(slow_features(G, given["noise"], (3, 0, 1), norm), (3, 0, 1), strict=True):
        scores = head(row).tolist()
        expected["gen"] -= fade * 0.6 * math.log(softmax(scores)[y]) / 3
    for n, y in enumerate(batch.y.tolist()):
        q = softmax(head(G(given["own"][n : n + 1], torch.tensor([y])))[0].tolist())
        p = softmax(output.logits[n].tolist())
        for c in range(4):
            expected["latent"] += fade * 0.4 * q[c] * math.log(q[c] / p[c]) / 5
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(expected, rel=1e-10)
    assert torch.autograd.grad(terms["gen"], head.weight)[0].abs().sum() > 0
    assert torch.equal(G.layers[1].running_mean, torch.zeros(6).double())


def test_server_averages_heads_and_trains_the_generator_against_them():
    C, K = 3, 4
    draw = torch.Generator().manual_seed(2)
    owned = {0: ([0, 2], [4, 1]), 6: ([1, 2], [3, 7])}
    uploads = {
        i: pf.Payload(
            {
                "head/weight": torch.randn(C, K, generator=draw),
                "head/bias": torch.randn(C, generator=draw),
                "classes": torch.tensor(classes),
                "counts": torch.tensor(counts),
            }
        )
        for i, (classes, counts) in owned.items()
    }
    torch.manual_seed(0)
    server = SimpleNamespace(
        config=FedGen.Config(epochs=60, noise=2),
        num_classes=C,
        modules={"generator": Generator(2, C, 8, K), "head": nn.Linear(K, C)},
        batch_size=10,
        replays=False,
        state={},
        device=torch.device("cpu"),
        epochs=range,
        generator=lambda purpose: torch.Generator().manual_seed(5),
    )
    mean = FedGen().server_aggregate(server, uploads)
    first, second = (uploads[i]["head/weight"] for i in (0, 6))
    torch.testing.assert_close(mean["head/weight"], first * 5 / 15 + second * 10 / 15)
    assert dict(zip(mean["classes"].tolist(), mean["counts"].tolist(), strict=True)) == {
        0: 4,
        1: 3,
        2: 8,
    }
    still = server.modules["generator"].layers[0].bias.clone()
    FedGen().server_train(server, uploads)
    G = server.modules["generator"].eval()
    assert torch.equal(G.layers[0].bias, still)  # BatchNorm removes it, so it is not trained
    right = 0
    share = {(0, 0): 1.0, (0, 2): 1 / 8, (6, 1): 1.0, (6, 2): 7 / 8}
    with torch.no_grad():
        for y in range(C):
            z = G(torch.rand(20, 2, generator=draw), torch.full((20,), y))
            scores = sum(
                share.get((i, y), 0.0) * (z @ u["head/weight"].T + u["head/bias"])
                for i, u in uploads.items()
            )
            right += int((scores.argmax(1) == y).sum())
    assert right >= 57  # of 60


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ("class", [[1.0, 0.0, 1 / 8], [0.0, 0.0, 7 / 8]]),
        ("client", [[5 / 12] * 3, [7 / 12] * 3]),
        ("uniform", [[1 / 2] * 3] * 2),
    ],
)
def test_the_servers_first_step(monkeypatch, shares, expected):
    """The logits have weights w_i; two clients have 4, 0, 1 and 0, 0, 7 samples per class."""
    draw = torch.Generator().manual_seed(2)
    uploads = {
        i: pf.Payload(
            {
                "head/weight": torch.randn(3, 4, generator=draw),
                "head/bias": torch.randn(3, generator=draw),
                "classes": torch.tensor(classes),
                "counts": torch.tensor(counts),
            }
        )
        for i, (classes, counts) in {0: ([0, 2], [4, 1]), 6: ([2], [7])}.items()
    }
    server = SimpleNamespace(
        config=FedGen.Config(epochs=1, noise=2, shares=shares),
        num_classes=3,
        modules={"generator": Generator(2, 3, 8, 4), "head": nn.Linear(4, 3)},
        batch_size=10,
        replays=False,
        state={},
        device=torch.device("cpu"),
        epochs=range,
        generator=lambda purpose: torch.Generator().manual_seed(5),
    )
    seen = []
    loss = fedgen.ensemble_loss

    def noted(logits, labels, weights, of):
        seen.append((logits.detach(), labels, weights))
        return loss(logits, labels, weights, of)

    monkeypatch.setattr(fedgen, "ensemble_loss", noted)
    FedGen().server_train(server, uploads)
    ((logits, labels, weights),) = seen
    assert logits.shape == (2, 10, 3) and 1 not in labels
    for n, y in enumerate(labels.tolist()):
        assert weights[:, n].tolist() == pytest.approx([row[y] for row in expected])


def test_variants():
    def chosen(**options):
        config = FedGen.Config(**options)
        return config.shares, config.adam, config.norm

    assert chosen() == ("class", "keep", "running")
    assert chosen(variant="official") == ("client", "fresh", "batch")
    assert chosen(variant="official", shares="class") == ("class", "fresh", "batch")
    official = run_defaults(FedGen, FedGen.Config(variant="official"))
    assert official == {"drop_last": True, "same_init": True}


def test_draws_follow_the_counts(data_dir):
    toy = Toy("fedgen", data_dir)
    toy.rounds(1)
    record = toy.client(1)
    view = pf.Client(record, "fedgen")
    record.steps, record.received = (
        300,
        FedGen().download_payload(pf.Server(toy.federation.server, "fedgen"), 1),
    )
    given = FedGen().before_training(view)
    draws = {name: given[name].rows for name in ("labels", "noise", "own")}
    assert draws["labels"].shape == (300, 10)
    assert draws["noise"].shape == (300, 10, 32)
    assert draws["own"].shape == (300, 13, 32)
    counts = record.received.table("counts", 6)[0]
    assert int(counts.sum()) == sum(len(toy.client(i).train) for i in range(4))
    share = torch.bincount(draws["labels"].flatten(), minlength=6) / 3000
    assert torch.allclose(share, counts / counts.sum(), atol=0.05)
    assert 0.45 < float(draws["noise"].mean()) < 0.55


def test_all_begin_with_one_head_and_generator(data_dir):
    toy = Toy("fedgen", data_dir, {"epochs": 1})
    server = pf.Server(toy.federation.server, "fedgen")
    head = server.build(server.clients[0].architecture).head.weight
    untrained = server.modules["generator"].layers[0].weight.detach().clone()
    toy.rounds(1)
    for i in range(4):
        assert torch.equal(toy.down[0, i]["head/weight"], head)
        assert torch.equal(toy.down[0, i]["generator/layers.0.weight"], untrained)
        assert toy.down[0, i]["counts"].tolist() == [1] * 6
    assert toy.lines[0]["loss_terms"]["gen"] > 0
    late = Toy("fedgen", data_dir, {"epochs": 1, "send_initial": False})
    late.rounds(2)
    assert late.down[0, 0].keys() == {"head/weight", "head/bias"}
    assert late.lines[0]["loss_terms"].keys() == {"ce"}
    assert "generator/layers.0.weight" in late.down[1, 0]


def test_clients_of_one_class_and_batches_of_one(data_dir):
    toy = Toy("fedgen", data_dir, {"epochs": 2, "b": 1, "diversity": 1}, clients=6, **ONE_CLASS)
    toy.rounds(2)
    assert "generator/buffer/layers.1.running_var" in toy.down[1, 0]
    assert math.isfinite(toy.lines[1]["train_loss"])
    official = {"epochs": 2, "variant": "official"}  # batch statistics need two labels
    assert Toy("fedgen", data_dir, official, batch_size=1).rounds(1)


def test_adam_goes_on_where_it_stopped(data_dir, tmp_path):
    toy, other = (Toy("fedgen", data_dir, {"epochs": 3}) for _ in range(2))
    toy.rounds(1)
    write_tensors(tmp_path / "server", *pack_server(toy.federation.server))
    unpack_server(other.federation.server, read_tensors(tmp_path / "server"))
    uploads = {i: toy.up[0, i] for i in range(4)}
    views = [pf.Server(t.federation.server, "fedgen") for t in (toy, other)]
    other.federation.server.round = 0
    assert int(views[1].state["adam"]["state"][0]["step"]) == 3
    first, second = (FedGen().server_train(view, uploads) for view in views)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert int(views[1].state["adam"]["state"][0]["step"]) == 6


def test_a_fresh_adam_begins_anew(data_dir):
    toy = Toy("fedgen", data_dir, {"epochs": 3, "adam": "fresh"})
    toy.rounds(2)
    state = pf.Server(toy.federation.server, "fedgen").state["adam"]
    assert int(state["state"][0]["step"]) == 3


def test_without_generated_features_it_is_lg_fedavg(data_dir):
    fedgen = Toy("fedgen", data_dir, set={"a": 0, "epochs": 1})
    sharing = Toy("lg-fedavg", data_dir)
    fedgen.rounds(2), sharing.rounds(2)
    torch.testing.assert_close(
        fedgen.global_state["head/weight"], sharing.global_state["head/weight"]
    )


def test_heterogeneous_heads_are_refused(data_dir):
    with pytest.raises(pf.UsageError, match=r"different heads \(linear, 5\).*works"):
        Toy("fedgen", data_dir, models="heads")


def test_traffic(data_dir):
    toy = Toy("fedgen", data_dir, {"epochs": 1}, dataset="toy", models="flat", eval_every=9)
    (row,) = toy.rounds(1)
    assert row["upload_floats"] == 4 * 51_300
    assert row["download_floats"] == 4 * (51_300 + 331_776)
