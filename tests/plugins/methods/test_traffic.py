"""Tests of the papers' traffic: CIFAR-100's classes, 20 clients, K = 512, heads as in htfe8.

The payloads of these methods depend only on classes, K and heads, so the models in these tests
consist of a head. tests/plugins/models counts the parameters of the groups' own heads.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from slowness import quick

import protofl as pf
from protofl.testing import toy as toyfed

C, K, M = 100, 512, 20
HEAD = 51_300


@functools.cache
def images():
    """Return images: 30 to 60 % of the classes on each client, one sample of each; all occur."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.rand(M, generator=generator) * 0.3 + 0.3
    has = torch.rand(M, C, generator=generator) < shares.unsqueeze(1)
    has[torch.arange(C) % M, torch.arange(C)] = True
    return toyfed.make_images(has.long().tolist(), has.long().tolist())


def classes_of_clients():
    own = images()
    return sum(len(own.y[train].unique()) for train, _ in own.split)


@pytest.fixture
def run(toy):
    def make(method, data=None, rounds=2, **options):
        only_heads = toyfed.group(toyfed.PIXELS, K=K)
        found = toy(method, data=data or images(), models=only_heads, batch_size=10, **options)
        return found, found.rounds(rounds)

    return make


def test_the_toy_is_of_the_papers_size(run):
    found, _ = run("local", rounds=1)
    info = found.plan.info
    assert (info.num_clients, info.num_classes, info.feature_dim) == (M, C, K)
    assert sum(p.numel() for p in found.client(0).model.parameters()) == HEAD
    assert 30 * M < classes_of_clients() < 60 * M


def test_lg_fedavg(run):
    _, (line,) = run("lg-fedavg", rounds=1)  # 1.03M up and down: h is sent from round 0 on
    assert line["upload_floats"] == line["download_floats"] == M * HEAD == 1_026_000


@pytest.mark.slow
def test_fedproto(run):
    found, lines = run("fedproto")
    for line in lines:
        assert line["upload_floats"] == K * classes_of_clients()
    assert (lines[0]["download_floats"], lines[1]["download_floats"]) == (0, M * C * K)
    assert M * C * K == 1_024_000
    # Counts and classes add to the bytes but not to the floats.
    _, fewer = run("fedproto", rounds=1, set={"aggregate": "uniform"})
    assert lines[0]["upload_floats"] == fewer[0]["upload_floats"]
    per_row = 8 * classes_of_clients()  # int64 counts, plus a few bytes per header
    spared = lines[0]["upload_bytes"] - fewer[0]["upload_bytes"]
    assert per_row < spared < per_row + 100 * M
    for blob in found.pool.uploads(0).values():
        assert isinstance(pf.Payload.from_bytes(blob)["counts"], torch.Tensor)
        assert toyfed.count_floats(blob) == pf.Payload.from_bytes(blob).floats


@pytest.mark.slow
@pytest.mark.parametrize("method", quick(["fedtgp", "fedorgp", "fedsa"], "fedsa"))
def test_methods_that_send_a_row_of_every_class(run, method):
    _, (line,) = run(method, rounds=1, set={"S": 1} if method == "fedtgp" else {})
    assert line["upload_floats"] == K * classes_of_clients()
    assert line["download_floats"] == M * C * K  # from round 0 on


def test_a_class_that_nobody_has_costs_fedproto_nothing_and_fedtgp_its_row(run):
    table = torch.full((M, C), 0)
    table[:, : C - 7] = 2
    data = toyfed.make_images(table[:4].tolist())
    _, lines = run("fedproto", data)
    assert lines[1]["download_floats"] == 4 * (C - 7) * K
    late = {"S": 1, "send_initial": False}
    _, lines = run("fedtgp", data, set=late)
    assert [line["download_floats"] for line in lines] == [0, 4 * C * K]


@pytest.mark.parametrize(("classes", "mib"), [(10, 3.2), (100, 32.4)])
def test_fedpkds_logits_are_those_of_table_1(toy, tmp_path, classes, mib):
    """10 · (5000 + 3500) · C · 4 B: all public samples up, θ = 70 % of them down.

    The paper's totals are multiples of 3.24 and 32.4 MiB. Each public image occurs 5000/C times, so
    a pseudo-class has a multiple of 5000/C samples, of which 70 % is a whole number.
    """
    clients, public, kept, K = 10, 5000, 3500, toyfed.SIDE**2
    different = torch.randn(classes, 1, toyfed.SIDE, toyfed.SIDE)
    x = different.repeat_interleave(public // classes, 0)
    path = tmp_path / "public.npz"
    np.savez(path, x_train=x.numpy(), y_train=np.arange(public) % classes)
    found = toy(
        "fedpkd",
        data=toyfed.make_images([[2] * classes] * clients),
        models=toyfed.group(toyfed.PIXELS, K=K),
        set={"server_model": "pixels"},
        public=f"npz:{path}",
        batch_size=500,
    )
    for line in found.rounds(1):
        up = line["upload_floats"] - clients * classes * K  # prototypes of all classes
        down = line["download_floats"] - clients * classes * K
        assert (up, down) == (clients * public * classes, clients * kept * classes)
        assert (up + down) * 4 == 10 * (5000 + 3500) * classes * 4
        assert round((up + down) * 4 / 2**20, 1) == mib


def _narrow(sample, K):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.AdaptiveAvgPool1d(K))


@pytest.mark.slow
def test_fedktl(toy):
    """Table 5: 0.09M up and 7.17M down, with images of 32 px and latents of 512."""
    sample = pf.datasets.SampleSpec((3, 32, 32))
    generator = torch.Generator().manual_seed(0)
    has = torch.rand(M, C, generator=generator) < 0.43
    has[torch.arange(C) % M, torch.arange(C)] = True
    data = toyfed.make_data(sample, has.long().tolist(), has.long().tolist())
    models = toyfed.group(toyfed.architecture("narrow", _narrow), K=K)
    found = toy("fedktl", {"E_S": 1}, data=data, models=models, batch_size=10)
    lines = found.rounds(2)
    held = int(has.sum())
    for line in lines:
        assert line["upload_floats"] == held * C  # K = C numbers per class
    assert round(held * C / 1e6, 2) == 0.09
    assert [line["download_floats"] for line in lines] == [0, M * C * (3 * 32 * 32 + 512)]
    assert lines[1]["download_floats"] == 7_168_000
