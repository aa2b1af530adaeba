"""Tests of the minimum of samples of a client: options of training do not change a split."""

from __future__ import annotations

import pytest

from protofl.backends import Plan
from protofl.hooks.discovery.registry import Registry

DIGITS = {"models": "cnn4", "dataset": "digits", "clients": 12, "feature_dim": 8}


@pytest.mark.parametrize("partition", ["dirichlet", "pathological", "quantity-skew"])
def test_the_batch_size_changes_no_split(partition):
    def split(**options):
        return Plan.make(given | options, report=lambda line: None).split(0).hash

    given = {"method": "local", "partition": partition, "seed": 2, **DIGITS}
    assert split(batch_size=4) == split(batch_size=10) == split(batch_size=64)
    least = {"options": {"partition": {"min_samples": 86}}}
    assert split(**least, batch_size=4) == split(**least, batch_size=64) != split()


def test_the_published_minimum_has_both_names():
    config = Registry().load("partitioner", "published").Config
    given = {"setting": "practical"}
    assert config(**given).min_samples == 40
    assert config(**given, least=1).min_samples == config(**given, min_samples=1).min_samples == 1
    assert config(**given, min_samples=1).model_dump(by_alias=True)["least"] == 1  # as recorded
