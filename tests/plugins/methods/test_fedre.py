"""Tests of FedRE: mixtures, and server training against loops and published code; traffic."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from toy_federation import ONE_CLASS, Toy

import protofl as pf
from protofl_plugins.methods.fedre import FedRE, entangled


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def server_of(head, **options):
    return SimpleNamespace(
        config=FedRE.Config(**options),
        modules={"head": head},
        replays=False,
        device=torch.device("cpu"),
        epochs=range,
        generator=lambda purpose: torch.Generator().manual_seed(5),
    )


def payload(r, y):
    return pf.Payload(entangled_representation=r, entangled_label=y)


def test_a_mixture(randn):
    P, u = randn(4, 3), randn(4, seed=1).abs()
    P[2] = torch.nan  # a class that the client lacks
    known = torch.tensor([True, True, False, True])
    r, y = entangled(P, known, u)
    total = sum(u[c].item() for c in (0, 1, 3))
    w = [u[c].item() / total if c != 2 else 0.0 for c in range(4)]
    assert y.tolist() == pytest.approx(w, rel=1e-12)
    for k in range(3):
        expected = sum(w[c] * P[c, k].item() for c in (0, 1, 3))
        assert r[k].item() == pytest.approx(expected, rel=1e-12)


def test_the_published_mixture():
    """Its result is that of entangle_rep in AIResearch-Group/FedRE at b9b1e9c, with fixed draws."""
    features = torch.tensor([[[1.0, 2, 3], [3, 2, 1]], [[0, 1, 0], [4, 4, 1]]])
    P = torch.zeros(3, 3)
    P[0], P[2] = features[0].mean(0), features[1].mean(0)
    known = torch.tensor([True, False, True])
    r, y = entangled(P, known, torch.tensor([0.25, 0.9, 0.5]))
    assert r.tolist() == pytest.approx([2.0, 2.3333334922790527, 1.0], rel=1e-6)
    assert y.tolist() == pytest.approx([0.3333333432674408, 0, 0.6666666865348816], rel=1e-6)


def test_a_step_of_the_published_server():
    """The result of train_head in AIResearch-Group/FedRE at b9b1e9c, on the same two mixtures."""
    head = nn.Linear(3, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.1, 0.2, 0.3], [0, -0.1, 0.2], [0.3, 0, -0.2]]))
        head.bias.copy_(torch.tensor([0.1, 0, -0.1]))
    uploads = {
        0: payload(torch.tensor([2, 7 / 3, 1]), torch.tensor([1 / 3, 0, 2 / 3])),
        3: payload(torch.tensor([0.5, -1, 2]), torch.tensor([0.2, 0.3, 0.5])),
    }
    found = FedRE().server_train(server_of(head, eta_s=0.5), uploads)
    W = [
        [-0.1790476143360138, 0.05187623202800751, -0.03563261032104492],
        [-0.21105268597602844, -0.26433849334716797, 0.003964066505432129],
        [0.7901002764701843, 0.3124622702598572, 0.33166855573654175],
    ]
    b = [-0.12357044965028763, -0.144316166639328, 0.26788660883903503]
    torch.testing.assert_close(found["head/weight"], torch.tensor(W))
    torch.testing.assert_close(found["head/bias"], torch.tensor(b))


def test_the_server_trains_the_head_on_all_mixtures(randn):
    C, K, M, eta, size = 3, 4, 5, 0.1, 2
    head = nn.Linear(K, C).double()
    W, b = head.weight.tolist(), head.bias.tolist()
    R, Y = randn(M, K), torch.softmax(randn(M, C, seed=1), 1)
    uploads = {i: payload(R[i], Y[i]) for i in range(M)}
    shuffle = torch.Generator().manual_seed(5)
    for _ in range(3):
        order = torch.randperm(M, generator=shuffle).tolist()
        for start in range(0, M, size):
            step_W, step_b = [[0.0] * K for _ in range(C)], [0.0] * C
            for i in order[start : start + size]:
                x, y = R[i].tolist(), Y[i].tolist()
                scores = [sum(w * v for w, v in zip(W[c], x, strict=True)) + b[c] for c in range(C)]
                total = sum(math.exp(s) for s in scores)
                for c in range(C):
                    slope = math.exp(scores[c]) / total - y[c]
                    step_b[c] += slope
                    for k in range(K):
                        step_W[c][k] += slope * x[k]
            for c in range(C):
                b[c] -= eta * step_b[c]
                W[c] = [w - eta * g for w, g in zip(W[c], step_W[c], strict=True)]
    server = server_of(head, eta_s=eta, epochs=3, server_batch=size)
    found = FedRE().server_train(server, uploads)
    torch.testing.assert_close(found["head/weight"], torch.tensor(W, dtype=torch.float64))
    torch.testing.assert_close(found["head/bias"], torch.tensor(b, dtype=torch.float64))


def test_the_server_s_rate_is_that_of_published_code():
    assert FedRE.Config().eta_s == 0.001


def test_what_travels(data_dir):
    toy = Toy("fedre", data_dir)
    toy.rounds(2)
    assert all(toy.down[0, i].keys() == {"head/weight", "head/bias"} for i in range(4))
    for i in range(4):
        sent = toy.up[1, i]
        assert sent.keys() == {"entangled_representation", "entangled_label"}
        y = sent["entangled_label"]
        assert {*y.nonzero().flatten().tolist()} == toy.classes[i]
        assert (y >= 0).all() and y.sum().item() == pytest.approx(1, rel=1e-6)
        # The mixture is that of the model after training.
        view = pf.Client(toy.client(i), "fedre")
        P, _ = view.class_prototypes().table("prototypes", view.num_classes)
        torch.testing.assert_close(sent["entangled_representation"], y @ P)


@pytest.mark.parametrize("resample", [True, False])
def test_weights_are_drawn_in_each_round_or_once(data_dir, resample):
    toy = Toy("fedre", data_dir, set={"resample": resample})
    toy.rounds(3)
    drawn = {i: [toy.up[n, i]["entangled_label"] for n in range(3)] for i in range(4)}
    for i, labels in drawn.items():
        assert len(toy.classes[i]) > 1
        assert all(torch.equal(y, labels[0]) for y in labels) != resample
        assert not torch.equal(labels[0], drawn[(i + 1) % 4][0])


def test_a_client_of_one_class_sends_its_prototype(data_dir):
    toy = Toy("fedre", data_dir, clients=6, **ONE_CLASS)
    toy.rounds(1)
    for i in range(6):
        view, sent = pf.Client(toy.client(i), "fedre"), toy.up[0, i]
        (c,) = toy.classes[i]
        assert sent["entangled_label"].tolist() == [float(n == c) for n in range(6)]
        expected = view.class_prototypes()["prototypes"][0]
        torch.testing.assert_close(sent["entangled_representation"], expected)


def test_the_head_takes_the_clients_place_and_persists(data_dir):
    toy = Toy("fedre", data_dir)
    started = pf.Server(toy.federation.server, "fedre").modules["head"].weight.detach().clone()
    toy.rounds(1)
    assert all(torch.equal(toy.down[0, i]["head/weight"], started) for i in range(4))
    trained = toy.global_state["head/weight"].clone()
    assert not torch.equal(started, trained)
    toy.rounds(1)
    assert torch.equal(toy.down[1, 2]["head/weight"], trained)
    frozen = Toy("fedre", data_dir, set={"epochs": 0})
    frozen.rounds(1)
    record = frozen.client(0)
    record.received = frozen.down[0, 0]
    FedRE().receive(pf.Client(record, "fedre"))
    assert torch.equal(record.model.head.weight, started)


def test_heterogeneous_heads_are_refused(data_dir):
    with pytest.raises(pf.UsageError, match=r"different heads \(linear, 5\).*works") as caught:
        Toy("fedre", data_dir, models="heads")
    assert "fedre" in str(caught.value)


def test_traffic(data_dir):
    """K + C floats up; the paper's table counts the K of r̃ alone, and the head down as here."""
    toy = Toy("fedre", data_dir, dataset="toy", models="flat", eval_every=9)
    toy.rounds(2)
    assert [row["upload_floats"] for row in toy.lines] == [4 * (512 + 100)] * 2
    assert [row["download_floats"] for row in toy.lines] == [4 * 51_300] * 2
