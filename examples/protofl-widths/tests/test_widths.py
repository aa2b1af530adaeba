"""Tests of the group and the partitioner: contracts, model sizes and quantity skew."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from protofl_widths.models import Widths5
from protofl_widths.partition import Quantity

import protofl as pf
from protofl.testing import ModelGroupContract, PartitionerContract


class TestWidths5(ModelGroupContract):
    plugin = Widths5


class TestQuantity(PartitionerContract):
    plugin = Quantity


def test_a_level_has_about_a_quarter_of_the_last_one_s_parameters():
    image = pf.datasets.SampleSpec((1, 28, 28))
    sizes = [
        sum(p.numel() for p in a.build(image, 10, 128).extractor.parameters())
        for a in Widths5().architectures()
    ]
    for wide, narrow in pairwise(sizes):
        assert 1.9 < wide / narrow < 4.1


def split(beta, least=10):
    labels = np.arange(1000) % 10
    config = Quantity.Config(beta=beta)
    return Quantity().partition(labels, 5, least, np.random.default_rng(1), config)


@pytest.mark.parametrize("beta", [0.1, 0.5, 100.0])
def test_every_row_is_given_once_and_everybody_has_the_least(beta):
    parts = split(beta)
    assert sorted(np.concatenate(parts)) == list(range(1000))
    assert min(map(len, parts)) >= 10


def test_a_small_beta_skews_the_quantities():
    skewed = [len(rows) for rows in split(0.1)]
    even = [len(rows) for rows in split(100.0)]
    assert np.std(skewed) > 5 * np.std(even)
