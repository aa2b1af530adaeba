"""FedGen: its generator's size, its losses against loop versions, what travels."""

from __future__ import annotations

import math
from types import SimpleNamespace

import protofl as pf
import pytest
import torch
from protofl.runs.server_file import load_server, save_server
from protofl.views.client import Client
from protofl.views.server import Server
from protofl_plugins.methods.fedgen import FedGen, Generator, diversity_loss, ensemble_loss
from torch import nn
from toy_federation import (
    ONE_CLASS,
    Toy,
    batch_of,
    check_contract,
    client,
    improves,
    same_everywhere,
)


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


def test_generator():
    G = Generator(2, 3, 5, 4).double().eval()
    norm = G.layers[1]
    norm.running_mean.uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    norm.running_var.uniform_(1, 2, generator=torch.Generator().manual_seed(1))
    noise = torch.rand(2, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = G(noise, torch.tensor([2, 0]))
    A, a, B, b = (
        G.state_dict()[f"layers.{n}"] for n in ("0.weight", "0.bias", "3.weight", "3.bias")
    )
    for row, (eps, y) in enumerate(zip(noise, (2, 0), strict=True)):
        z = torch.cat([eps, torch.tensor([float(c == y) for c in range(3)], dtype=torch.float64)])
        hidden = (A @ z + a - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
        expected = B @ (hidden * norm.weight + norm.bias).clamp(min=0) + b
        torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize("ensemble", ["logits", "losses"])
def test_ensemble(ensemble):
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 5, 4, generator=draw, dtype=torch.float64)
    shares = torch.rand(3, 5, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, 4, (5,), generator=draw)
    expected = 0.0
    for n, y in enumerate(labels.tolist()):
        if ensemble == "logits":
            mixed = [sum(float(shares[i, n] * logits[i, n, c]) for i in range(3)) for c in range(4)]
            expected -= math.log(softmax(mixed)[y]) / 5
        else:
            for i in range(3):
                expected -= float(shares[i, n]) * math.log(softmax(logits[i, n].tolist())[y]) / 5
    assert ensemble_loss(logits, labels, shares, ensemble).item() == pytest.approx(expected)


def test_diversity_has_finite_gradients():
    draw = torch.Generator().manual_seed(1)
    noise = torch.rand(4, 3, generator=draw, dtype=torch.float64)
    z = torch.randn(4, 2, generator=draw, dtype=torch.float64).requires_grad_()
    pairs = [
        math.dist(noise[i].tolist(), noise[j].tolist()) * math.dist(z[i].tolist(), z[j].tolist())
        for i in range(4)
        for j in range(4)
    ]
    loss = diversity_loss(noise, z)
    assert loss.item() == pytest.approx(math.exp(-sum(pairs) / 16))
    (gradient,) = torch.autograd.grad(loss, z)
    assert torch.isfinite(gradient).all() and gradient.abs().sum() > 0


def test_client_loss():
    batch, output = batch_of(5, 4, 3)
    draw = torch.Generator().manual_seed(7)
    head, G = nn.Linear(3, 4).double(), Generator(2, 4, 6, 3).double().eval().requires_grad_(False)
    config, fade = FedGen.Config(a=0.6, b=0.4, decay=0.9), 0.9**3
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
    for eps, y in zip(given["noise"], (3, 0, 1), strict=True):
        scores = head(G(eps[None], torch.tensor([y])))[0].tolist()
        expected["gen"] -= fade * 0.6 * math.log(softmax(scores)[y]) / 3
    for n, y in enumerate(batch.y.tolist()):
        q = softmax(head(G(given["own"][n : n + 1], torch.tensor([y])))[0].tolist())
        p = softmax(output.logits[n].tolist())
        for c in range(4):
            expected["latent"] += fade * 0.4 * q[c] * math.log(q[c] / p[c]) / 5
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(expected, rel=1e-10)
    assert torch.autograd.grad(terms["gen"], head.weight)[0].abs().sum() > 0


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
    FedGen().server_train(server, uploads)
    G = server.modules["generator"].eval()
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


def test_draws_follow_the_counts(data_dir):
    toy = Toy("fedgen", data_dir)
    toy.rounds(1)
    record = toy.client(1)
    view = Client(record, "fedgen")
    record.steps, record.received = (
        300,
        FedGen().download_payload(Server(toy.federation.server, "fedgen"), 1),
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


def test_contract(data_dir):
    toy = check_contract("fedgen", data_dir, set={"epochs": 3})
    assert not toy.down[0, 0]
    assert toy.lines[0]["loss_terms"].keys() == {"ce"}
    assert "generator/buffer/layers.1.running_var" in toy.down[1, 0]
    check_contract("fedgen", data_dir, {"epochs": 2}, feature_dim=5, participation=0.5)
    check_contract(
        "fedgen", data_dir, {"epochs": 2, "b": 1, "diversity": 1}, clients=6, **ONE_CLASS
    )


def test_adam_goes_on_where_it_stopped(data_dir, tmp_path):
    toy, other = (Toy("fedgen", data_dir, {"epochs": 3}) for _ in range(2))
    toy.rounds(1)
    save_server(toy.federation.server, tmp_path / "server")
    load_server(other.federation.server, tmp_path / "server")
    uploads = {i: toy.up[0, i] for i in range(4)}
    views = [Server(t.federation.server, "fedgen") for t in (toy, other)]
    other.federation.server.round = 0
    assert int(views[1].state["adam"]["state"][0]["step"]) == 3
    first, second = (FedGen().server_train(view, uploads) for view in views)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert int(views[1].state["adam"]["state"][0]["step"]) == 6


def test_without_generated_features_it_is_lg_fedavg(data_dir):
    fedgen = Toy("fedgen", data_dir, set={"a": 0, "epochs": 1})
    sharing = Toy("lg-fedavg", data_dir)
    fedgen.rounds(2), sharing.rounds(2)
    torch.testing.assert_close(fedgen.knowledge["head/weight"], sharing.knowledge["head/weight"])


def test_heterogeneous_heads_are_refused(data_dir):
    with pytest.raises(pf.UsageError, match=r"different heads \(linear, 5\).*works"):
        Toy("fedgen", data_dir, models="heads")


def test_traffic(data_dir):
    toy = Toy(
        "fedgen",
        data_dir,
        {"epochs": 1},
        dataset="toy",
        models="flat",
        clients=20,
        batch_size=64,
        eval_every=3,
    )
    toy.rounds(2)
    assert [row["upload_floats"] for row in toy.lines] == [20 * 51_300] * 2
    assert [row["download_floats"] for row in toy.lines] == [0, 20 * (51_300 + 331_776)]


@pytest.mark.slow
def test_improves_over_chance(tmp_path, data_dir):
    improves("fedgen", tmp_path, data_dir, set={"eta_g": 0.001}, rounds=3)


@pytest.mark.slow
def test_same_on_processes_and_after_a_resume(tmp_path, data_dir):
    same_everywhere("fedgen", tmp_path, data_dir)
