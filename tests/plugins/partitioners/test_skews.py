"""Tests of quantity skew and long tails."""

from __future__ import annotations

import numpy as np
import pytest

import protofl as pf
from protofl_plugins.partitioners.long_tail import LongTail
from protofl_plugins.partitioners.quantity_skew import QuantitySkew


def split(plugin, labels, clients, seed=0, least=10, **options):
    notes = []
    given = {
        "labels": labels,
        "num_clients": clients,
        "min_samples": least,
        "generator": np.random.default_rng(seed),
        "config": plugin.Config(**options),
        "notes": notes,
    }
    if plugin is LongTail:
        given["num_classes"] = int(labels.max()) + 1
    return plugin().partition(**given), notes


LABELS = np.random.default_rng(1).permutation(np.arange(6000) % 10)


def test_sizes_follow_a_dirichlet_distribution_and_classes_do_not():
    for seed in range(3):
        parts, _ = split(QuantitySkew, LABELS, 8, seed=seed, least=1)
        q = np.random.default_rng(seed).dirichlet(np.full(8, 0.5))
        sizes = np.array([len(part) for part in parts])
        assert np.abs(sizes - 6000 * q).max() <= 2
        large = LABELS[parts[int(sizes.argmax())]]
        assert np.abs(np.bincount(large) / len(large) - 0.1).max() < 0.03
        assert sorted(np.concatenate(parts).tolist()) == list(range(6000))


@pytest.mark.parametrize("beta", [1e-9, 1e-3, 0.5, 1e9])
def test_no_client_is_too_small(beta):
    parts, notes = split(QuantitySkew, LABELS, 20, least=14, beta=beta)
    sizes = [len(part) for part in parts]
    assert min(sizes) >= 14 and sum(sizes) == 6000
    assert any("moved" in note for note in notes) == (beta < 1e9)
    assert f"clients have {min(sizes)} to {max(sizes)} samples" in notes[-1]


def test_too_few_samples_for_quantity_skew():
    with pytest.raises(pf.UsageError, match="60 samples are too few for 8 clients"):
        split(QuantitySkew, LABELS[:60], 8)


@pytest.mark.parametrize("beta", [None, 0.5])
def test_class_sizes_fall_off_exponentially(beta):
    parts, notes = split(LongTail, LABELS, 4, ratio=50, beta=beta)
    rows = np.concatenate(parts)
    assert len({*rows.tolist()}) == len(rows)
    expected = [int(600 * 50 ** (-c / 9) + 1e-9) for c in range(10)]
    assert np.bincount(LABELS[rows]).tolist() == expected
    assert expected[0] == 600 and expected[-1] == 12
    assert f"{sum(expected)} of 6000 samples, 600 of the largest class and 12" in notes[0]
    if beta is None:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_no_class_keeps_more_than_it_has():
    labels = np.repeat(np.arange(4), [100, 0, 3, 60])
    rows = np.concatenate(split(LongTail, labels, 2, ratio=2, beta=None)[0])
    assert np.bincount(labels[rows], minlength=4).tolist() == [100, 0, 3, 50]
    assert len(np.concatenate(split(LongTail, labels, 2, ratio=1, beta=None)[0])) == 163


def test_a_long_tail_of_too_few_samples():
    with pytest.raises(pf.UsageError, match="too few for 200 clients"):
        split(LongTail, LABELS, 200)
