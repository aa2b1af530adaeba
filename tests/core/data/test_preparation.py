"""Tests of preparations: what data sets do to raw samples, in their caches and in `public`."""

from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest
import torch

import protofl as pf
from protofl.data import cache
from protofl_plugins.datasets.arrays import ArrayData

Preparation, Scaling, Words = pf.datasets.Preparation, pf.datasets.Scaling, pf.datasets.Words


def table(standardise=True, rows=60, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(3.0, 5.0, (rows, 4)) * [1.0, 10.0, 1000.0, 0.0] + [0.0, 0.0, 1e5, 7.0]
    y = np.arange(rows) % 3
    data = pf.datasets.dataset_from_arrays(
        [(x[:40], y[:40], "a"), (x[40:], y[40:], "b")], 40, standardise=standardise, kind="table"
    )
    return x, data


def test_standardised_data_say_by_what():
    x, data = table()
    raw = torch.from_numpy(x.astype(np.float32))
    assert torch.equal(data.preparation(raw), data.x) and not data.faults()
    scaling = data.preparation.scaling
    np.testing.assert_allclose(scaling.shift, raw[:40].double().mean(0))
    assert scaling.scale[3] == scaling.SILENT and scaling.decimals == 5  # a constant column is 0
    assert table(standardise=False)[1].preparation == Preparation()


def test_a_series_is_scaled_by_channel():
    x = np.random.default_rng(0).normal(2, 3, (9, 2, 5)).astype(np.float32)
    own = Preparation(Scaling((1, 2), (4, 8)))
    arrays = [(x, np.arange(9) % 2, "a")]
    data = pf.datasets.dataset_from_arrays(arrays, kind="series", preparation=own)
    expected = (x - np.array([1, 2])[:, None]) / np.array([4, 8])[:, None]
    np.testing.assert_allclose(data.x.numpy(), expected, rtol=1e-6)
    with pytest.raises(pf.UsageError, match="give one of both"):
        pf.datasets.dataset_from_arrays(arrays, kind="series", standardise=True, preparation=own)


def test_words_are_numbered_cut_and_padded():
    words = Words(("a", "bc"), length=3)
    texts = ["BC, a! bc a", "d"]
    assert words.ids(map(words.split, texts)).tolist() == [[3, 2, 3], [1, 0, 0]]
    assert (words.vocabulary, words.padding) == (4, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Größe, Fuß", ["größe", "fuß"]),
        ("COVID-19: pCO2 7.35, 1,5 mg.", ["covid", "19", "pco2", "7.35", "1,5", "mg"]),
        ("感冒 CT发烧。", ["感", "冒", "ct", "发", "烧"]),
        ("πόνος боль", ["πόνος", "боль"]),
        ("cafe\u0301 ＡＢ", ["café", "ab"]),  # composed, and of usual width
        ("हिन्दी में, ไข้", ["हिन्दी", "में", *"ไข้"]),  # vowels are not letters in Unicode
        ("שָׁלוֹם مُحَمَّد 한국어", ["שָׁלוֹם", "مُحَمَّد", "한국어"]),
        ("... !", []),
    ],
)
def test_words_of_all_alphabets(text, words):
    found = Words((), 1).split(text)
    assert found == [unicodedata.normalize("NFKC", word) for word in words]


def test_the_way_of_splitting_is_stored():
    letters = Preparation(words=Words(("a",), 4, "[a-z]+"))
    values = json.loads(json.dumps(letters.as_json()))
    assert Preparation.of_json(values, "f").words.split("a1 ö") == ["a"]
    assert Preparation(words=Words(("a",), 4)).as_json()["words"]["pattern"]
    values["words"]["pattern"] = "(a"
    with pytest.raises(pf.UsageError, match=r"the pattern .* of words is invalid"):
        Preparation.of_json(values, "f")


def test_they_are_read_as_they_were_written():
    whole = Preparation(Scaling((0.1, 1e-300), (3.0, 1 / 3), 4), Words(("x", "é"), 7))
    assert Preparation.of_json(json.loads(json.dumps(whole.as_json())), "f") == whole
    assert Preparation.of_json({}, "f") == Preparation()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "f: a preparation is a table, got list"),
        ({"imputation": {}}, "unknown part 'imputation'"),
        ({"scaling": {"shift": [1.0]}}, "f: the preparation is damaged"),
        ({"scaling": {"shift": ["x"], "scale": [1.0]}}, "f: the preparation is damaged"),
        ({"scaling": {"shift": [1.0], "scale": [0.0]}}, "a scale of 0"),
        ({"scaling": {"shift": [1.0], "scale": [1.0, 2.0]}}, "1 shifts and 2 scales"),
        ({"words": {"words": ["a", "a"], "length": 3}}, "occurs twice"),
        ({"words": {"words": ["a"], "length": "b"}}, "f: the preparation is damaged"),
    ],
)
def test_damage_is_said(values, words):
    with pytest.raises(pf.UsageError) as error:
        Preparation.of_json(values, "f")
    assert words in str(error.value)


def test_a_preparation_of_other_samples_is_a_fault():
    _, data = table()
    data.preparation = Preparation(Scaling((1, 2), (1, 1)))
    assert "scales 2 columns of rows of 4 numbers" in data.faults()[0]
    data.preparation = Preparation(words=Words(("a",), 4))
    assert "makes sequences of 4 tokens (3 ids)" in data.faults()[0]


def test_arrays_with_another_preparation_are_other_data():
    _, data = table()
    before = ArrayData.of(data).name
    data.preparation = Preparation()
    assert ArrayData.of(data).name != before


# --- the cache ------------------------------------------------------------------------------------


def test_the_cache_keeps_it(tmp_path):
    _, data = table()
    for _ in range(2):
        assert cache.load("a", tmp_path, lambda: data).preparation == data.preparation
    data.preparation = None
    for _ in range(2):
        assert cache.load("b", tmp_path, lambda: data).preparation is None
