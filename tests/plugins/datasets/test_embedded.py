"""Tests of tables, series and token sequences that need no download."""

from __future__ import annotations

import sys
import types
from collections import Counter

import numpy as np
import pytest
import torch

import protofl as pf
from protofl_plugins.datasets import python_docs
from protofl_plugins.datasets.digits import Digits, DigitsSeries
from protofl_plugins.datasets.python_docs import PythonDocs, passages
from protofl_plugins.datasets.tables import BreastCancer, Wine
from protofl_plugins.datasets.texts import common_words, word_ids


@pytest.mark.parametrize(
    ("plugin", "rows", "columns", "classes"),
    [(Wine, 178, 13, 3), (BreastCancer, 569, 30, 2)],
)
def test_tables(plugin, rows, columns, classes, tmp_path):
    from sklearn import datasets

    loader = {Wine: datasets.load_wine, BreastCancer: datasets.load_breast_cancer}[plugin]
    source = loader()
    plain = plugin().decode(plugin.Config(standardise=False), tmp_path)
    assert str(plain.sample) == f"rows of {columns} numbers"
    assert (len(plain.y), plain.num_classes, plain.num_train) == (rows, classes, rows)
    assert np.array_equal(plain.x.numpy(), source.data.astype(np.float32))
    assert plain.y.tolist() == source.target.tolist() and "standardise=true" in plain.note
    data = plugin().decode(plugin.Config(), tmp_path)
    expected = (source.data - source.data.mean(0)) / source.data.std(0)
    np.testing.assert_allclose(data.x.numpy(), expected, atol=1e-5)
    keys = {plugin().cache_key(plugin.Config(standardise=s), tmp_path) for s in (True, False)}
    assert len(keys) == 2


def test_digits_as_series_are_the_images_row_by_row(tmp_path):
    config = pf.Config()
    series, images = (p().decode(config, tmp_path) for p in (DigitsSeries, Digits))
    assert str(series.sample) == "series 1×64" and series.y.equal(images.y)
    pixels = images.x.flatten(1).float() / 127.5 - 1
    assert (series.x[:, 0] - pixels).abs().max() < 1 / 127


def test_passages_of_python_s_documentation(tmp_path):
    config = PythonDocs.Config(length=16, vocabulary=500)
    data = PythonDocs().decode(config, tmp_path)
    sample = data.sample
    assert (sample.kind, sample.shape, sample.padding) == ("tokens", (16,), 0)
    assert sample.vocabulary <= 500 and data.num_classes == 7
    assert 0.15 < 1 - data.num_train / len(data.y) < 0.25
    for part in (data.y[: data.num_train], data.y[data.num_train :]):
        assert (torch.bincount(part, minlength=7) > 0).all()
    filled = data.x == 0
    assert (filled.int().diff(dim=1) >= 0).all()  # padding comes last
    assert (~filled).sum(1).min() >= python_docs.LEAST
    trained = Counter(data.x[: data.num_train].flatten().tolist())
    assert all(trained[i] >= 2 for i in range(2, sample.vocabulary))  # words in training
    ids = [trained[i] for i in range(2, sample.vocabulary)]
    assert ids == sorted(ids, reverse=True)  # the most frequent words first


def test_words_and_their_ids():
    assert passages("One two-three FOUR; five_5 six " * 2, 10) == [
        ["one", "two", "three", "four", "five_", "six", "one", "two", "three", "four"]
    ]
    assert common_words([["b", "a", "a"], ["b", "c"], ["a"]], 10) == ("a", "b")
    assert common_words([["b", "a", "a"], ["b"]], 3) == ("a",)


def test_another_text_has_another_key(tmp_path, monkeypatch):
    def key(**options):
        return PythonDocs().cache_key(PythonDocs.Config(**options), tmp_path)

    before = key()
    assert before == key() != key(length=64)
    other = types.ModuleType("pydoc_data.topics")
    other.topics = {name: f"{name} " * 40 for name in python_docs.TOPICS}
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", other)
    assert key() != before
    del other.topics["debugger"]
    with pytest.raises(pf.UsageError, match="has no topic debugger"):
        key()
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(pf.UsageError, match="pydoc_data"):
        key()


def test_texts_without_a_word_are_counted():
    texts = ["Größe 7.35", "größe 7.35 120", "--", "骨折骨", ""]
    ids, words, note = word_ids(texts, 5, 4, 100, "f")
    assert words.words == ("7.35", "größe", "骨") and note.startswith("2 of 5 texts are empty")
    assert ids.tolist() == [[3, 2, 0, 0], [3, 2, 1, 0], [0] * 4, [4, 1, 4, 0], [0] * 4]
    with pytest.raises(pf.UsageError, match="no word occurs twice") as error:
        word_ids(["a", "b"], 2, 4, 100, "f")
    assert "letters of any alphabet" in error.value.near
