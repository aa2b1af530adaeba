"""Tests of samples that stay in one part of the split, such as those of a patient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import protofl as pf
from protofl.backends import Plan
from protofl.data import cache
from protofl.data.partition import make_split
from protofl.data.subset import held_groups, with_validation


def data_of(groups, **given):
    count = len(groups)
    fields = {"num_train": count, "classes": ["a", "b"], "group": "patient", **given}
    x = torch.arange(count, dtype=torch.float32)[:, None]
    columns = {"patient": np.asarray(groups)}
    return pf.datasets.Dataset(x, torch.arange(count) % 2, columns=columns, **fields)


def at_random(labels, num_clients, generator, **_):
    return np.array_split(generator.permutation(len(labels)), num_clients)


def split_of(data, clients=3, seed=0, partition=at_random, **options):
    return make_split(data, partition, clients, 2, seed, **options)


def all_of(split, part):
    return torch.cat([part(client) for client in range(split.num_clients)]).numpy()


@pytest.mark.parametrize("seed", range(5))
def test_a_group_is_in_one_part_of_all_clients(seed):
    groups = np.random.default_rng(seed).integers(0, 60, 600)  # all clients have rows of all
    data = data_of(groups)
    split = split_of(data, seed=seed)
    held = with_validation(split, data.y, 0.2, seed, data.groups)
    train, test, validation = (
        {*groups[all_of(held, part)]} for part in (held.train, held.test, held.held_out)
    )
    assert not (train & test or train & validation or test & validation)
    assert train | test | validation == {*groups}
    sizes = split.offsets.diff().reshape(-1, 2).numpy()
    share = sizes[:, 1] / sizes.sum(1)
    assert ((share > 0.15) & (share < 0.35)).all()
    assert all(len(held.held_out(client)) for client in range(3))
    assert sorted(all_of(held, held.train).tolist() + all_of(held, held.held_out).tolist()) == (
        sorted(all_of(split, split.train).tolist())
    )
    assert "60 groups" in split.notes[-1]
    assert split.hash == split_of(data, seed=seed).hash != split_of(data, seed=seed + 9).hash


@pytest.mark.parametrize("sizes", [(5, 5), (20, 4), (1, 99), (9, 9, 9), (1, 1, 1, 1)])
def test_a_client_keeps_a_group_and_holds_one_out(sizes):
    groups = np.repeat(np.arange(len(sizes)), sizes)
    for seed in range(20):
        for share in (0.1, 0.25, 0.9):
            chance = np.random.default_rng(seed)
            held = held_groups(np.zeros(len(groups), int), groups, share, chance)
            assert not {*groups[held]} & {*groups[~held]}
            assert not held.all() and (held.any() or share == 0.1)


def by_half(labels, num_clients, **_):
    return np.array_split(np.arange(len(labels)), num_clients)


@pytest.mark.parametrize(
    ("groups", "given", "options", "words"),
    [
        (["a"] * 8 + ["b", "c"] * 4, {}, {}, ["client 0 has 1 values", "fewer clients"]),
        (["a", "b"] * 8, {"group": "subject"}, {}, ["no column 'subject'", "columns: patient"]),
        (["a", "b", ""] * 4, {}, {}, ["no group in 4 of 12 rows"]),
        ([1.0, np.nan] * 4, {}, {}, ["no group in 4 of 8 rows"]),
        (["a", "b"] * 8, {}, {"public": 2}, ["--public 2", "npz:PATH"]),
    ],
)
def test_groups_that_are_refused(groups, given, options, words):
    with pytest.raises(pf.UsageError) as error:
        split_of(data_of(groups, **given), 2, partition=by_half, **options)
    text = f"{error.value.what} {error.value.near} {error.value.do}"
    assert all(word in text for word in words), text


def test_a_test_part_of_the_data_is_kept_or_refused():
    def both(labels, num_train, **_):
        return [(np.arange(num_train), np.arange(num_train, len(labels)))]

    kept = split_of(data_of([1, 1, 2, 2, 3, 3], num_train=4), 1, partition=both)
    assert sorted(kept.test(0).tolist()) == [4, 5]
    with pytest.raises(pf.UsageError, match="1 values of 'patient'"):
        split_of(data_of([1, 1, 2, 3, 3, 3], num_train=4), 1, partition=both)


def test_columns_that_look_like_groups_are_noted():
    patients = np.repeat(np.arange(20), 6)
    notes = split_of(data_of(patients, group=""), 2, partition=by_half).notes
    assert "column patient has 20 values in 120 rows" in notes[-1]
    assert "--set dataset.group=patient" in notes[-1]
    spread = np.tile(np.arange(20), 6)  # values that all clients have, such as an age
    assert not split_of(data_of(spread, group=""), 2, partition=by_half).notes
    assert not split_of(data_of(np.repeat([0, 1], 60), group=""), 2, partition=by_half).notes


def test_a_run_keeps_groups_together_and_its_cache_the_name(tmp_path):
    patients = np.repeat(np.arange(60), 5)
    arrays = {"x_train": np.random.default_rng(0).normal(size=(300, 4)).astype("float32")}
    arrays |= {"y_train": np.arange(300) % 3, "patient": patients}
    np.savez(tmp_path / "a.npz", **arrays)
    plan = Plan.make(
        {
            "method": "local", "models": "mlp", "dataset": f"npz:{tmp_path / 'a.npz'}",
            "clients": 2, "validation": 0.2, "data_dir": tmp_path / "d",
            "options": {"dataset": {"group": "patient"}},
        }
    )  # fmt: skip
    split = plan.split(0)
    parts = [{*patients[all_of(split, p)]} for p in (split.train, split.test, split.held_out)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 60
    made = cache.load("a", tmp_path, lambda: data_of([1, 1, 2, 2]), lambda line: None)
    assert made.group == "patient" and cache.load("a", tmp_path, None).groups.tolist() == [
        0, 0, 1, 1,
    ]  # fmt: skip


def test_arrays_of_a_program_have_groups(tmp_path):
    patients = np.repeat(np.arange(40), 3)
    x = np.random.default_rng(0).normal(size=(120, 4)).astype("float32")
    arrays = {"x_train": x, "y_train": np.arange(120) % 3, "patient": patients}
    made = pf.datasets.dataset_from_arrays(
        [(x, np.arange(120) % 3, "a")], columns={"patient": patients}
    )
    for dataset in (arrays, made):
        run = pf.run(
            "local", models="mlp", dataset=dataset, clients=2, rounds=1, progress=False,
            data_dir=tmp_path / "d", dry_run=False, out=tmp_path / f"{type(dataset).__name__}",
            options={"dataset": {"group": "patient"}},
        )  # fmt: skip
        split = pf.load_run(run.folder).plan.split(0)
        parts = [{*patients[all_of(split, part)]} for part in (split.train, split.test)]
        assert not parts[0] & parts[1] and len(parts[0] | parts[1]) == 40
