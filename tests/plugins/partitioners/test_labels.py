"""Tests of exact label sets from a file."""

from __future__ import annotations

import json

import numpy as np
import pytest

import protofl as pf
from protofl.backends import Plan
from protofl_plugins.partitioners.labels import Labels

LABELS = np.random.default_rng(1).permutation(np.arange(400) % 4)
NAMES = ["cat", "dog", "owl", "emu"]


def write(folder, content):
    path = folder / "labels.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def split(folder, content, seed=0, names=NAMES, clients=None):
    config = Labels.Config(path=write(folder, content))
    notes = []
    parts = Labels().partition(
        labels=LABELS,
        num_classes=4,
        class_names=names,
        num_clients=clients or Labels().count_clients(config=config),
        generator=np.random.default_rng(seed),
        config=config,
        notes=notes,
    )
    counts = [np.bincount(LABELS[rows], minlength=4).tolist() for rows in parts]
    rows = np.concatenate(parts)
    assert len({*rows.tolist()}) == len(rows) and rows.dtype == np.int64
    return parts, counts, notes


def test_exact_and_disjoint_label_sets(tmp_path):
    content = {
        "a": ["cat"],
        "b": ["dog", 2],
        "c": {"classes": ["owl", "3"], "samples": 31},
        "d": {"emu": 7, "dog": 50},
    }
    _, counts, notes = split(tmp_path, content)
    assert counts == [[100, 0, 0, 0], [0, 50, 84, 0], [0, 0, 16, 15], [0, 50, 0, 7]]
    assert notes == [
        "labels: clients 0…3 are a, b, c, d",
        "labels: no client gets 78 of 400 samples",
    ]


def test_what_others_leave_is_shared_evenly_and_drawn_by_the_seed(tmp_path):
    content = {"a": ["cat"], "b": ["cat"], "c": ["cat"], "d": NAMES[1:]}
    first, counts, notes = split(tmp_path, content)
    assert counts == [[34, 0, 0, 0], [33, 0, 0, 0], [33, 0, 0, 0], [0, 100, 100, 100]]
    assert len(notes) == 1
    again, other = split(tmp_path, content)[0], split(tmp_path, content, seed=1)[0]
    assert all(map(np.array_equal, first, again))
    assert not np.array_equal(np.sort(first[0]), np.sort(other[0]))


def test_classes_named_by_numbers(tmp_path):
    names = ["0", "2", "4", "9"]
    assert split(tmp_path, {"a": [2], "b": ["9"]}, names=names)[1] == [
        [0, 100, 0, 0],
        [0, 0, 0, 100],
    ]
    with pytest.raises(pf.UsageError, match="no class '1'"):
        split(tmp_path, {"a": [1]}, names=names)


@pytest.mark.parametrize(
    ("content", "what", "near"),
    [
        ({"a": ["cta"]}, "client 'a': the data have no class 'cta'", "did you mean 'cat'?"),
        ({"a": [4]}, "no class '4'", "classes: cat, dog, owl, emu"),
        ({"a": ["cat", 0]}, "lists a class twice", "expected"),
        ({"a": []}, "lists no class", "expected"),
        ({"a": 3}, "client 'a' has 3", "expected"),
        ({"a": {"cat": 1}}, "fewer than 2 samples", "at least 1 training and 1 test"),
        ({"a": {"cat": 2.5}}, "class 'cat': 2.5 samples", "whole number"),
        ({"a": {"classes": ["cat"], "sample": 3}}, "unknown key 'sample'", "classes, samples"),
        ({"a": {"cat": 90}, "b": {"cat": 20}}, "100 samples, too few for 110", "a, b"),
        ({"a": {"cat": 100}, "b": ["cat", "dog"]}, "100, and at least 1 for each", "a, b"),
        ("{}", "names no clients", ""),
        ("[1, 2]", "names no clients", ""),
        ('{"a": ["cat"],\n "b" ["dog"]}', "is not JSON: Expecting ':' delimiter in line 2", ""),
        ('{"a": ["cat"], "a": ["dog"]}', "'a' occurs twice", ""),
    ],
)  # fmt: skip
def test_files_that_do_not_fit(tmp_path, content, what, near):
    with pytest.raises(pf.UsageError) as error:
        split(tmp_path, content)
    assert what in error.value.what and near in error.value.near
    assert "labels.json" in error.value.what


def test_in_a_run(tmp_path):
    path = write(tmp_path, {"low": [0, 1, 2], "high": {"8": 20, "9": 20}})
    given = {
        "method": "local",
        "dataset": "digits",
        "models": "cnn4",
        "partition": f"labels:{path}",
    }
    plan = Plan.make(given)
    assert plan.settings.clients == 2
    train, test = plan.split(0).counts(plan.data.y, 10)
    assert [(t > 0).nonzero().flatten().tolist() for t in train] == [[0, 1, 2], [8, 9]]
    assert (train + test)[1, 8:].tolist() == [20, 20]
    with pytest.raises(pf.UsageError, match="2 clients, not 3"):
        Plan.make({**given, "clients": 3})
    with pytest.raises(pf.UsageError, match="cannot be read"):
        Plan.make({**given, "partition": f"labels:{tmp_path / 'none.json'}"})
