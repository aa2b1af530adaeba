"""Tests of FedEx-LoRA: every net is the exact mean of the clients' nets, and the bytes of that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import protofl as pf
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision
from protofl_plugins.methods.flora import FedExLoRA
from protofl_plugins.shared.adapters import known

THIN, LARGE = "1", "3"
"""Ranks with which four clients' residual is smaller than the weights, and larger."""


@pytest.fixture
def found(toy):
    group, data = toyfed.group(toyfed.CNN), toyfed.make_images(toyfed.MIXED)

    def made(ranks, run=None, **options):
        options = {"ranks": ranks, "layers": "all", **options}
        return toy("fedex-lora", set=options, models=group, data=data, **(run or {}))

    return made


def payloads(sent):
    return {client: pf.Payload.from_bytes(blob) for client, blob in sorted(sent.items())}


def mean_of_nets(uploads, name, s, before):
    """Return Σ_i p_i·(M + s·B_i·A_i), one number at a time; ``before`` is M."""
    total, n = before.clone(), sum(int(upload["samples"]) for upload in uploads.values())
    for upload in uploads.values():
        own, p = known(upload, name), int(upload["samples"]) / n
        for row in range(len(total)):
            for column in range(total.shape[1]):
                for k in range(own.rank):
                    total[row, column] += p * s * own.b[row, k] * own.a[k, column]
    return total


def mean_product(uploads, name, s):
    """Return s·(Σ_i p_i·B_i)·(Σ_i p_i·A_i)."""
    n = sum(int(upload["samples"]) for upload in uploads.values())
    p = [int(upload["samples"]) / n for upload in uploads.values()]
    own = [known(upload, name) for upload in uploads.values()]
    b = sum(weight * each.b for weight, each in zip(p, own, strict=True))
    return s * b @ sum(weight * each.a for weight, each in zip(p, own, strict=True))


def change_of(federation, client, received, name):
    """Return by how much a client's weight differs from W after its download: s·(M + B·A)."""
    net = federation.client(client).model.extractor
    return net.scale * (net.merged()[name] + known(received, name).b @ known(received, name).a)


@pytest.mark.parametrize(
    ("run", "alpha"),
    [
        ({}, None),
        ({"participation": 0.5}, 6.0),
        ({"participation": 0.25}, None),
        ({"join_round": "4:0.25"}, 6.0),
    ],
    ids=["all", "half", "one", "late"],
)
@pytest.mark.parametrize("ranks", [THIN, LARGE])
def test_every_net_is_the_exact_mean(found, ranks, run, alpha):
    """After its download, each client has the mean of the nets of the round before."""
    with double_precision():
        federation = found(ranks, alpha=alpha, run={"lr": 0.2, "rounds": 6, **run})
        server = pf.Server(federation.server, "fedex-lora")
        s = 1.0 if alpha is None else alpha / int(ranks)
        M = {name: 0 * server.global_state[f"adapter/{name}"] for name in server.state["columns"]}
        assert len(M) == 2
        mean, residuals = M, set()
        for round in range(6):
            federation.rounds(1)
            for client, received in payloads(federation.pool.downloads(round)).items():
                for name, wanted in mean.items():
                    change = change_of(federation, client, received, name)
                    torch.testing.assert_close(change, wanted, atol=1e-9, rtol=1e-9)
                if round:
                    residuals.add("residual/0.weight/b" in received)
            uploads = payloads(federation.pool.uploads(round))
            mean = {name: mean_of_nets(uploads, name, s, before) for name, before in M.items()}
            M = {name: each - mean_product(uploads, name, s) for name, each in mean.items()}
            assert all(each.any() for each in mean.values())
            assert len(uploads) == 1 or all(each.abs().max() > 1e-6 for each in M.values())
        if ranks == THIN:
            assert residuals == ({True, False} if run else {True})
        else:
            assert False in residuals
        for client in range(4):
            received = federation.call("download_payload", server=server, client_id=client)
            record = federation.client(client)
            record.round, record.received = 6, received
            for _ in range(2):  # the same download twice
                federation.lifecycle("receive", client=pf.Client(record, "fedex-lora"))
                for name, wanted in mean.items():
                    change = change_of(federation, client, received, name)
                    torch.testing.assert_close(change, wanted, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("ranks", [THIN, LARGE])
def test_the_residual_counts_in_the_download(found, ranks):
    """Factors of rank (k − 1)·r, or M if that is smaller."""
    federation, r, k = found(ranks), int(ranks), 4
    first, second = federation.rounds(2)
    net = federation.client(0).model
    head = sum(p.numel() for p in net.head.parameters())
    per_rank = sum(rows + columns for rows, columns in net.extractor.sizes.values())
    weights = sum(rows * columns for rows, columns in net.extractor.sizes.values())
    factors = (k - 1) * r * per_rank
    assert (factors < weights) == (ranks == THIN)
    assert first["download_floats"] == first["upload_floats"] == k * (r * per_rank + head)
    assert second["upload_floats"] == first["upload_floats"]
    assert second["download_floats"] == k * (r * per_rank + min(factors, weights) + head)


def matrix(rows, columns, first):
    return torch.arange(rows * columns, dtype=torch.float64).reshape(rows, columns) * 0.1 + first


def test_the_server_s_step_is_that_of_the_published_code():
    """``aggregate_models_ours`` of github.com/RaghavSinghal10/fedex-lora, commit 683a3f3.

    The numbers are those that it gave for these factors and α = 8, for a frozen weight of GPT-2,
    which is kept as columns × rows.
    """
    uploads = {
        i: pf.Payload(
            {"adapter/w/a": matrix(2, 5, i) ** 2, "adapter/w/b": matrix(4, 2, -i) ** 2},
            samples=torch.tensor(7),
        )
        for i in range(3)
    }
    state = {"adapter/w": torch.zeros(4, 5).double(), "adapter_version": torch.tensor(0)}
    server = SimpleNamespace(
        config=SimpleNamespace(head="local", alpha=8, ranks="2"),
        state={"columns": {"w": 5}},
        global_state=state,
    )
    with double_precision():
        result = FedExLoRA().server_aggregate(server, uploads)
    weight = [
        [26.8444444444, 28.8711111111, 30.8977777778, 32.9244444444, 34.9511111111],
        [21.5111111111, 23.1111111111, 24.7111111111, 26.3111111111, 27.9111111111],
        [16.1777777778, 17.3511111111, 18.5244444444, 19.6977777778, 20.8711111111],
        [10.8444444444, 11.5911111111, 12.3377777778, 13.0844444444, 13.8311111111],
    ]
    a = [
        [1.6666666667, 1.8766666667, 2.1066666667, 2.3566666667, 2.6266666667],
        [2.9166666667, 3.2266666667, 3.5566666667, 3.9066666667, 4.2766666667],
    ]
    b = [
        [1.6666666667, 1.4766666667],
        [1.3066666667, 1.1566666667],
        [1.0266666667, 0.9166666667],
        [0.8266666667, 0.7566666667],
    ]
    for name, wanted in {"": weight, "/a": a, "/b": b}.items():
        scale = 8 / 2 if name == "/b" else 1  # the server has s·B
        wanted = scale * torch.tensor(wanted, dtype=torch.float64)
        torch.testing.assert_close(result[f"adapter/w{name}"], wanted, atol=1e-9, rtol=1e-9)


def test_ranks_that_differ_are_refused(found):
    with pytest.raises(pf.UsageError, match="ranks=4,2: the residual is exact for clients of one"):
        found("4,2")
    assert found("2,2")
