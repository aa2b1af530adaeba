"""Tests of FedGH: server training against loops, payloads, options, traffic."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from toy_federation import ONE_CLASS, Toy, run_defaults

import protofl as pf
from protofl_plugins.methods.fedgh import FedGH


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def test_server_trains_the_head_on_all_pairs():
    C, K, eta, size = 3, 4, 0.3, 2
    draw = torch.Generator().manual_seed(0)
    head = nn.Linear(K, C).double()
    W, b = head.weight.tolist(), head.bias.tolist()
    uploads = {
        i: pf.Payload(
            prototypes=torch.randn(len(c), K, generator=draw, dtype=torch.float64),
            classes=torch.tensor(c),
        )
        for i, c in {0: [0, 2], 4: [1], 7: [0, 1]}.items()
    }
    pairs = [
        (row, c)
        for u in uploads.values()
        for row, c in zip(u["prototypes"].tolist(), u["classes"].tolist(), strict=True)
    ]
    shuffle = torch.Generator().manual_seed(5)
    for _ in range(3):
        order = torch.randperm(5, generator=shuffle).tolist()
        for start in range(0, 5, size):
            rows = [pairs[i] for i in order[start : start + size]]
            step_W, step_b = [[0.0] * K for _ in range(C)], [0.0] * C
            for x, y in rows:
                scores = [sum(w * v for w, v in zip(W[c], x, strict=True)) + b[c] for c in range(C)]
                total = sum(math.exp(s) for s in scores)
                for c in range(C):
                    slope = (math.exp(scores[c]) / total - (c == y)) / len(rows)
                    step_b[c] += slope
                    for k in range(K):
                        step_W[c][k] += slope * x[k]
            for c in range(C):
                b[c] -= eta * step_b[c]
                W[c] = [w - eta * g for w, g in zip(W[c], step_W[c], strict=True)]
    server = SimpleNamespace(
        config=FedGH.Config(eta_s=eta, epochs=3),
        modules={"head": head},
        batch_size=size,
        replays=False,
        device=torch.device("cpu"),
        feature_dim=4,
        epochs=range,
        generator=lambda purpose: torch.Generator().manual_seed(5),
    )
    found = FedGH().server_train(server, uploads)
    torch.testing.assert_close(found["head/weight"], torch.tensor(W, dtype=torch.float64))
    torch.testing.assert_close(found["head/bias"], torch.tensor(b, dtype=torch.float64))


def test_what_travels(data_dir):
    toy = Toy("fedgh", data_dir, clients=6, **ONE_CLASS)
    toy.rounds(2)
    assert all(toy.down[0, i].keys() == {"head/weight", "head/bias"} for i in range(6))
    assert toy.up[1, 0].keys() == {"prototypes", "classes"}


def test_the_head_takes_the_clients_place_and_persists(data_dir):
    toy = Toy("fedgh", data_dir, set={"epochs": 2})
    started = pf.Server(toy.federation.server, "fedgh").modules["head"].weight.detach().clone()
    toy.rounds(1)
    assert all(torch.equal(toy.down[0, i]["head/weight"], started) for i in range(4))
    trained = toy.global_state["head/weight"].clone()
    assert not torch.equal(started, trained)
    toy.rounds(1)
    assert torch.equal(toy.down[1, 2]["head/weight"], trained)
    frozen = Toy("fedgh", data_dir, set={"epochs": 0})
    frozen.rounds(2)
    assert torch.equal(frozen.global_state["head/weight"], started)
    record = frozen.client(0)
    view = pf.Client(record, "fedgh")
    record.received = frozen.down[1, 0]
    FedGH().receive(view)
    assert torch.equal(record.model.head.weight, started)


def test_variants():
    assert FedGH.Config().epochs == 1
    official = FedGH.Config(variant="official")
    assert official.epochs == 100
    assert run_defaults(FedGH, official) == {"drop_last": True, "same_init": True}
    assert FedGH.Config(variant="official", epochs=3).epochs == 3


def test_heterogeneous_heads_are_refused(data_dir):
    with pytest.raises(pf.UsageError, match=r"different heads \(linear, 5\).*works") as caught:
        Toy("fedgh", data_dir, models="heads")
    assert "fedgh" in str(caught.value)


def test_traffic(data_dir):
    toy = Toy("fedgh", data_dir, dataset="toy", models="flat", eval_every=9)
    toy.rounds(2)
    sent = sum(len(c) for c in toy.classes)
    assert [row["upload_floats"] for row in toy.lines] == [512 * sent] * 2
    assert [row["download_floats"] for row in toy.lines] == [4 * 51_300] * 2
