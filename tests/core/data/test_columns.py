"""Tests of sample columns: reading, caching, and the partitioner ``column``."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from npz_files import read_npz

import protofl as pf
from protofl.backends import Plan
from protofl.data import cache
from protofl.data.dataset import _column_text
from protofl.data.partition import make_split, number_of_clients
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.members import choose

X = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
Y = np.arange(12) % 3
WHO = np.array(["bo", "anna", "cy"])[np.arange(12) // 2 % 3]


def read(folder, **arrays):
    np.savez(folder / "a.npz", **arrays)
    return read_npz(folder / "a.npz")


def column(name="who", **options):
    return choose(Registry(), "partitioner", f"column:{name}", options)


def divided(data, chosen=None, given=None, **options):
    chosen = chosen or column()
    bound, counting = (functools.partial(chosen.call, h) for h in ("partition", "count_clients"))
    clients = number_of_clients(data, given, 20, counting)
    return make_split(data, bound, clients, 1, 0, partitioner="column", **options)


def test_an_array_of_an_npz_is_a_column(tmp_path):
    data = read(tmp_path, x_train=X, y_train=Y, who=WHO, hour=np.arange(12.0))
    assert data.columns["who"].tolist() == WHO.tolist()
    assert data.columns["hour"].tolist() == list(range(12))


@pytest.mark.parametrize(
    "arrays",
    [
        {"who": WHO},
        {"who": WHO[:9], "who_test": WHO[9:]},
        {"who_train": WHO[:9], "who_test": WHO[9:]},
    ],
)
def test_columns_of_both_parts(tmp_path, arrays):
    parts = {"x_train": X[:9], "y_train": Y[:9], "x_test": X[9:], "y_test": Y[9:]}
    assert read(tmp_path, **parts, **arrays).columns["who"].tolist() == WHO.tolist()


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("x_valid", X),
        ("weights", np.ones(3)),
        ("who_test", WHO),
        ("who", WHO[:5]),
        ("pair", X[:, :2]),
    ],
)
def test_unknown_arrays_are_an_error(tmp_path, name, array):
    with pytest.raises(pf.UsageError) as caught:
        read(tmp_path, x_train=X, y_train=Y, **{name: array})
    assert f"unknown arrays: {name} {list(array.shape)}" in caught.value.what
    assert "--partition column:NAME" in caught.value.near and "[12]" in caught.value.near


def test_a_mapping_has_columns_as_a_file_has():
    from protofl_plugins.datasets.arrays import ArrayData

    given = {"x_train": X, "y_train": Y, "who": list(WHO)}
    offer = ArrayData.of(given)
    data = offer.decoded({})
    assert data.columns["who"].tolist() == WHO.tolist()
    assert ArrayData.of({**given, "who": list(WHO[::-1])}).digest != offer.digest


def test_the_cache_keeps_columns(tmp_path):
    data = pf.datasets.dataset_from_arrays(
        [(X, Y, "it")], columns={"who": WHO, "at": torch.arange(12)}
    )
    again = cache.load("it", tmp_path, lambda: data)
    assert again.columns["who"].tolist() == WHO.tolist()
    assert again.columns["at"].tolist() == list(range(12))
    assert again.digest == data.compute_digest()
    data.columns["who"] = WHO[::-1]
    assert again.digest != data.compute_digest()


def test_columns_that_do_not_fit():
    with pytest.raises(pf.UsageError, match=r"expected \(12,\)"):
        pf.datasets.dataset_from_arrays([(X, Y, "it")], columns={"who": WHO[:4]})


def test_every_value_is_a_client():
    split = divided(pf.datasets.dataset_from_arrays([(X, Y, "it")], columns={"who": WHO}))
    assert split.num_clients == 3 and split.notes == ["column who: clients 0…2 are anna, bo, cy"]
    for client, name in enumerate(["anna", "bo", "cy"]):
        rows = torch.cat([split.train(client), split.test(client)])
        assert {*WHO[rows.numpy()]} == {name} and len(rows) == 4
        assert len(split.train(client)) == 3


def test_clients_are_tested_on_their_own_test_part():
    data = pf.datasets.dataset_from_arrays([(X, Y, "it")], 6, columns={"who": WHO})
    split = divided(data)
    for client, name in enumerate(["anna", "bo", "cy"]):
        own = np.flatnonzero(name == WHO)
        assert sorted(split.train(client).tolist()) == own[own < 6].tolist()
        assert sorted(split.test(client).tolist()) == own[own >= 6].tolist()
    pooled = divided(data, column(test="pooled"))
    assert pooled.train_sizes.tolist() == [3, 3, 3]


def test_a_client_with_test_samples_alone():
    who = np.array([*"aabbaa", *"abcabb"])
    data = pf.datasets.dataset_from_arrays([(X, Y, "it")], 6, columns={"who": who})
    split = divided(data)
    assert split.untrained == (2,) and split.test(2).tolist() == [8]
    with pytest.raises(pf.UsageError, match="one sample only of c"):
        divided(data, column(test="pooled"))


def test_refusals():
    data = pf.datasets.dataset_from_arrays(
        [(X, Y, "it")], 6, columns={"who": WHO, "half": np.arange(12) // 6}
    )
    with pytest.raises(pf.UsageError, match="has no column 'whom'"):
        divided(data, column("whom"))
    with pytest.raises(pf.UsageError, match="divide into 3 clients, not 5"):
        divided(data, given=5)
    data.columns["half"] = np.array([0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    with pytest.raises(pf.UsageError, match="no test sample of 1") as caught:
        divided(data, column("half"))
    assert "partition.test=pooled" in caught.value.do
    data.columns["each"] = np.array([0] * 11 + [1])
    with pytest.raises(pf.UsageError, match="one sample only of 1"):
        divided(data, column("each", test="pooled"))


def test_a_split_of_numpy_rows_or_masks():
    mask = np.arange(12) < 3
    data = pf.datasets.Dataset(
        x=torch.from_numpy(X),
        y=torch.from_numpy(Y),
        num_train=12,
        classes=["a", "b", "c"],
        split=[(np.arange(3, 6), [6]), (mask, np.arange(7, 9, dtype=np.int32))],
    )
    assert not data.faults()
    assert [[rows.tolist() for rows in pair] for pair in data.split] == [
        [[3, 4, 5], [6]],
        [[0, 1, 2], [7, 8]],
    ]
    data.split = [(torch.tensor([0.5]), torch.tensor([1]))]
    assert data.faults() == ["rows of the split are not integers"]


def test_the_partitioner_sets_the_number_of_clients(tmp_path):
    x = np.arange(80.0, dtype=np.float32).reshape(40, 2)
    who = np.repeat(["ann", "bob", "cid", "dan"], 10)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(40) % 2, person=who)
    given = {"method": "local", "models": "mlp", "partition": "column:person"}
    plan = Plan.make(
        {**given, "dataset": f"npz:{tmp_path / 'own.npz'}", "data_dir": tmp_path / "data"}
    )
    assert (plan.settings.clients, plan.set_by["clients"]) == (4, "partition column")


def test_the_digest_of_columns_is_computed_in_pieces(monkeypatch):
    columns = {"who": WHO, "hour": np.arange(12.0), "bed": np.arange(12)}
    data = [pf.datasets.Dataset(torch.from_numpy(X), torch.from_numpy(Y), 12, ["a", "b", "c"])]
    for size in (1, 5, 12, 100):
        monkeypatch.setattr("protofl.data.dataset._BLOCK", size)
        data.append(replace(data[0], columns=columns))
        data[-1].digest = data[-1].compute_digest()
    assert len({each.digest for each in data[1:]}) == 1
    # Records name the digest, so it stays that of the list of all values.
    for name, values in columns.items():
        for size in (1, 5, 12, 100):
            monkeypatch.setattr("protofl.data.dataset._BLOCK", size)
            assert "".join(_column_text(name, values)) == repr((name, values.tolist()))
