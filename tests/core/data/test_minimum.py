"""Tests of the minimum of samples of a client: options of training do not change a split."""

from __future__ import annotations

import json

import pytest
from runtime_toys import install

import protofl as pf
from protofl.backends import Plan
from protofl.hooks.discovery.registry import Registry
from protofl.runs.resumption import resumed_options
from protofl.system.options.parsing import options_in

DIGITS = {
    "models": "cnn4", "dataset": "digits", "clients": 12, "feature_dim": 8, "backend": "local",
    "rounds": 1, "dry_run": False, "progress": False,
}  # fmt: skip


def hash_of(folder):
    return json.loads((folder / "partition.json").read_text())["hash"]


@pytest.mark.parametrize("partition", ["dirichlet", "pathological", "quantity-skew"])
def test_the_batch_size_changes_no_split(partition):
    def split(**options):
        return Plan.make(given | options, report=lambda line: None).split(0).hash

    given = {"method": "local", "partition": partition, "seed": 2}
    given |= {k: DIGITS[k] for k in ("models", "dataset", "clients", "feature_dim")}
    assert split(batch_size=4) == split(batch_size=10) == split(batch_size=64)
    least = {"options": {"partition": {"min_samples": 86}}}
    assert split(**least, batch_size=4) == split(**least, batch_size=64) != split()


@pytest.mark.slow
def test_a_run_recorded_before_keeps_its_split(tmp_path, monkeypatch):
    """Its minimum was that of its batch size; its record has no ``split_batch``."""
    install(monkeypatch)
    options = {**DIGITS, "models": "toy", "partition": "quantity-skew", "batch_size": 64}
    pf.run("local", out=tmp_path / "then", split_batch=64, **options)
    pf.run("local", out=tmp_path / "today", **options)
    then = hash_of(tmp_path / "then")
    assert hash_of(tmp_path / "today") != then
    file = tmp_path / "then" / "config.json"
    recorded = json.loads(file.read_text())
    del recorded["split_batch"]
    file.write_text(json.dumps(recorded))

    assert pf.load_run(tmp_path / "then").plan.split(0).hash == then
    resumed = resumed_options(recorded, {"rounds": 2}, print)
    assert Plan.make(resumed, report=lambda line: None).split(0).hash == then
    pf.run(config=file, out=tmp_path / "again", backend="local", progress=False)
    assert hash_of(tmp_path / "again") == then


def test_only_records_of_runs_are_read_so():
    values = {"batch_size": 64, "method": "local"}
    record = {**values, "data": {"digest": "0"}}
    assert options_in(record)["split_batch"] == 64
    assert "split_batch" not in options_in(values)  # a recipe
    assert "split_batch" not in options_in({**record, "batch_size": 10})  # the minimum is today's
    assert options_in({**record, "split_batch": None})["split_batch"] is None


def test_the_published_minimum_has_both_names():
    config = Registry().load("partitioner", "published").Config
    given = {"setting": "practical"}
    assert config(**given).min_samples == 40
    assert config(**given, least=1).min_samples == config(**given, min_samples=1).min_samples == 1
    assert config(**given, min_samples=1).model_dump(by_alias=True)["least"] == 1  # as recorded
