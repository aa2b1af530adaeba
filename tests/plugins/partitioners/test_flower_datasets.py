"""Tests of partitioners of flwr-datasets."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

import protofl as pf
from protofl.backends import Plan
from protofl_plugins.partitioners.flower_datasets import FlowerDatasets

REASON = "needs the extra flwr-datasets: pip install 'protofl[flwr-datasets]'"
library = pytest.importorskip("flwr_datasets.partitioner", reason=REASON)
datasets = pytest.importorskip("datasets", reason=REASON)

LABELS = np.random.default_rng(1).permutation(np.arange(400) % 4)
USERS = {"user": np.arange(400) % 7}


def split(name, clients=5, run_seed=0, **options):
    config = FlowerDatasets.Config(name=name, **options)
    counted = FlowerDatasets().count_clients(labels=LABELS, columns=USERS, config=config)
    return FlowerDatasets().partition(
        labels=LABELS,
        num_clients=clients if counted is None else counted,
        columns=USERS,
        generator=np.random.default_rng(run_seed),
        config=config,
        notes=[],
    )


def seed_of(seed):
    return int(np.random.default_rng(seed).integers(2**31))


@pytest.mark.parametrize(
    ("name", "options", "made"),
    [
        ("iid", {}, lambda s: library.IidPartitioner(5)),
        (
            "DirichletPartitioner",
            {"alpha": 0.5, "arguments": {"min_partition_size": 3}},
            lambda s: library.DirichletPartitioner(5, "label", 0.5, 3, seed=s),
        ),
        (
            "pathological",
            {"arguments": {"num_classes_per_partition": 2}},
            lambda s: library.PathologicalPartitioner(5, "label", 2, seed=s),
        ),
        (
            "shard",
            {"arguments": {"num_shards_per_partition": 2}, "partition_by": "user", "seed": 3},
            lambda s: library.ShardPartitioner(5, "user", 2, seed=3),
        ),
        ("linear", {}, lambda s: library.LinearPartitioner(5)),
        ("natural-id", {"partition_by": "user"}, lambda s: library.NaturalIdPartitioner("user")),
        (
            "size",
            {"arguments": {"partition_sizes": [30, 50]}},
            lambda s: library.SizePartitioner([30, 50]),
        ),
        (
            "grouped_natural_id",
            {"arguments": '{"partition_by": "user", "group_size": 2}'},
            lambda s: library.GroupedNaturalIdPartitioner("user", 2),
        ),
    ],
)
def test_rows_are_those_of_the_library(name, options, made):
    theirs = made(seed_of(4))
    theirs.dataset = datasets.Dataset.from_dict(
        {"label": LABELS, **USERS, "row": np.arange(len(LABELS))}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [theirs.load_partition(i)["row"][:] for i in range(theirs.num_partitions)]
    ours = split(name, run_seed=4, **options)
    assert [rows.tolist() for rows in ours] == [list(rows) for rows in expected]
    assert all(rows.dtype == np.int64 for rows in ours)


def test_each_seed_has_its_own_split():
    options = {"alpha": 0.5, "arguments": {"min_partition_size": 2}}
    first, again, other = (split("dirichlet", run_seed=seed, **options) for seed in (0, 0, 1))
    assert all(map(np.array_equal, first, again))
    assert [len(rows) for rows in first] != [len(rows) for rows in other]


@pytest.mark.parametrize(
    ("name", "options", "what", "near"),
    [
        ("dirichlt", {}, "no such partitioner", "did you mean dirichlet?"),
        ("vertical-even", {}, "divides columns", ""),
        ("iid", {"alpha": 1.0}, "flwr:iid has no argument 'alpha'", "arguments: none"),
        ("dirichlet", {}, "flwr:dirichlet needs alpha", ""),
        ("dirichlet", {"alpha": 0.5, "partition_by": "usr"}, "flwr:dirichlet: ", ""),
        (
            "dirichlet",
            {"alpha": 0.5, "arguments": {"min_partition_size": 90}},
            "flwr:dirichlet: ",
            "",
        ),
        ("size", {"arguments": {"partition_sizes": [300, 200]}}, "flwr:size: ", ""),
    ],
)
def test_arguments_that_do_not_fit(name, options, what, near):
    with pytest.raises(pf.UsageError) as error:
        split(name, **options)
    assert what in error.value.what and near in error.value.near
    assert error.value.do or error.value.near


def test_in_a_run():
    given = {"method": "local", "dataset": "digits", "models": "cnn4", "clients": 6}
    options = {"partition": {"arguments": {"num_classes_per_partition": 3}}}
    plan = Plan.make({**given, "partition": "flwr:pathological", "options": options})
    train, _ = plan.split(0).counts(plan.data.y, 10)
    assert ((train > 0).sum(1) <= 3).all() and plan.split(0).num_clients == 6
    assert any("Classes" in note for note in plan.split(0).notes)  # the library's warning


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(pf.UsageError, match="needs the package flwr-datasets") as error:
        split("iid")
    assert "protofl[flwr-datasets]" in error.value.do
