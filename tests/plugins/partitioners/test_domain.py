"""Tests of feature shift: domains of data, clients per domain, accuracy by domain."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import protofl as pf
from protofl.backends import Plan
from protofl.data.split import client_domains
from protofl.federation.clients.host import build_client
from protofl_plugins.datasets.digits import Digits, DigitsDomains
from protofl_plugins.datasets.folder import Domains
from protofl_plugins.partitioners.domain import Domain


def divided(columns, count, least=2, **options):
    config, labels = Domain.Config(**options), np.arange(count) % 3
    clients = Domain().count_clients(columns, config)
    notes = []
    parts = Domain().partition(
        labels=labels, num_classes=3, num_clients=clients, min_samples=least, columns=columns,
        generator=np.random.default_rng(0), config=config, notes=notes,
    )  # fmt: skip
    return parts, notes


@pytest.mark.parametrize("beta", [None, 0.5])
@pytest.mark.parametrize("each", [1, 3])
def test_every_client_has_samples_of_its_domain_alone(each, beta):
    domains = np.array(["sketch", "photo"])[np.arange(60) % 4 // 3]
    parts, notes = divided({"domain": domains}, 60, clients_per_domain=each, beta=beta)
    assert sorted(np.concatenate(parts).tolist()) == [*range(60)]
    found = [{*domains[part].tolist()} for part in parts]
    assert found == [{"photo"}] * each + [{"sketch"}] * each
    assert "in this order: photo, sketch" in notes[-1]


def test_another_column_may_name_the_domain():
    parts, _ = divided({"camera": np.array([2, 1] * 5)}, 10, column="camera")
    assert [part.tolist() for part in map(np.sort, parts)] == [
        [*range(1, 10, 2)],
        [*range(0, 10, 2)],
    ]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({}, {}, "the data set has no column 'domain'"),
        ({"domain": np.array([0] * 9 + [1])}, {}, "domain 1: 1 samples are too few for 1 clients"),
    ],
)
def test_data_without_such_domains(columns, options, message):
    with pytest.raises(pf.UsageError, match=message):
        divided(columns, 10, **options)


def test_digits_of_five_domains():
    plain, found = (kind().decode(config=None, data_dir=None) for kind in (Digits, DigitsDomains))
    assert torch.equal(plain.y, found.y) and found.x.shape == (1797, 3, 8, 8)
    names, x, grey = found.columns["domain"], found.x.float(), plain.x[:, 0].float()
    for c in range(10):
        counts = {name: int((names[found.y.numpy() == c] == name).sum()) for name in {*names}}
        assert len(counts) == 5 and max(counts.values()) - min(counts.values()) <= 1
    for channel in range(3):
        own = {name: torch.from_numpy(names == name) for name in {*names}}
        assert torch.equal(x[own["plain"], channel], grey[own["plain"]])
        turned = grey[own["turned"]].rot90(dims=(1, 2))
        assert torch.equal(x[own["turned"], channel], turned)
        assert (x[own["inverted"], channel] + grey[own["inverted"]] - 255).abs().max() <= 1
        row = int(own["blurred"].nonzero()[7])
        assert x[row, channel, 3, 4] == pytest.approx(float(grey[row, 2:5, 3:6].mean()), abs=1)
    assert (x[own["recoloured"], 0] != x[own["recoloured"], 2]).any()


def drawn(folder, domain, label, count=2, side=8):
    place = folder / domain / label
    place.mkdir(parents=True)
    for number in range(count):
        pixels = np.full((side, side, 3), 20 * number + len(domain), np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")


def test_folders_of_domains(tmp_path):
    for domain in ("art", "photo"):
        for label in ("cat", "dog"):
            drawn(tmp_path, domain, label)
    config = Domains.Config(path=str(tmp_path), side=8)
    found = Domains().decode(config=config, data_dir=tmp_path)
    assert found.classes == ["cat", "dog"] and found.columns["domain"].tolist() == [
        *["art"] * 4, *["photo"] * 4,
    ]  # fmt: skip
    key = Domains().cache_key(config=config, data_dir=tmp_path)
    drawn(tmp_path, "toy", "dog")
    (tmp_path / "toy/cat").mkdir()
    assert Domains().cache_key(config=config, data_dir=tmp_path) != key
    with pytest.raises(pf.UsageError, match="domain toy has no training samples of class cat"):
        Domains().decode(config=config, data_dir=tmp_path)


def test_accuracy_by_domain_is_recorded(tmp_path):
    data = {
        "x_train": np.random.default_rng(0).standard_normal((80, 5)).astype(np.float32),
        "y_train": np.arange(80) % 2,
        "domain": np.repeat(["a", "b"], 40),
    }
    found = pf.run(
        "local", models="mlp", dataset=data, partition="domain", rounds=1, backend="local",
        set={"partition.clients_per_domain": 2}, out=tmp_path / "run", data_dir=tmp_path,
    )  # fmt: skip
    run = pf.load_run(found.folder)
    (row,) = run.rows_of(0)
    each = row.client_accuracies
    sizes = run.split(0).test_counts.sum(1)
    wanted = {
        name: (each[str(a)] * sizes[a] + each[str(b)] * sizes[b]) / (sizes[a] + sizes[b])
        for name, (a, b) in {"a": (0, 1), "b": (2, 3)}.items()
    }
    assert row.measures["domain_accuracy"] == pytest.approx(wanted)


def test_a_domain_without_images(tmp_path):
    drawn(tmp_path, "art", "cat")
    (tmp_path / "photo/cat").mkdir(parents=True)
    config = Domains.Config(path=str(tmp_path), side=8)
    with pytest.raises(pf.UsageError, match="domain photo has no training samples of class cat"):
        Domains().decode(config=config, data_dir=tmp_path)
    (tmp_path / "empty").mkdir()
    for path, message in (("empty", "no images in folders DOMAIN/CLASS"), ("x", "no folder")):
        config = Domains.Config(path=str(tmp_path / path), side=8)
        with pytest.raises(pf.UsageError, match=message):
            Domains().decode(config=config, data_dir=tmp_path)


def test_clients_of_several_domains_have_no_accuracy_of_them(few, tmp_path):
    given = {"method": "local", "models": "cnn4", "dataset": few, "data_dir": tmp_path}
    plan = Plan.make(given)
    assert {plan.domain_of(client, 0) for client in range(plan.info.num_clients)} == {None}
    split, names = plan.split(0), np.array(["a"] * len(plan.data.y))
    assert client_domains(split, None) == []
    assert client_domains(split, names) == ["a"] * split.num_clients
    names[int(split.train(0)[0])] = "b"
    assert client_domains(split, names) == []


def test_clients_of_one_domain_have_its_number(tmp_path):
    options = {"partition": {"clients_per_domain": 2}}
    plan = Plan.make(
        {"method": "local", "models": "cnn4", "dataset": "digits-domains", "options": options,
         "data_dir": tmp_path}
    )  # fmt: skip
    names = sorted({*plan.domains(0)})
    assert names == sorted({*plan.data.columns["domain"].tolist()})
    assert [plan.domain_of(client, 0) for client in range(10)] == [n // 2 for n in range(10)]
    assert [names[n // 2] for n in range(10)] == plan.domains(0)
    assert pf.Client(build_client(plan, 0, 7), "local").domain == 3
