"""Tests of arrays of series, tokens and tables; tests/plugins/datasets/test_npz.py tests images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import protofl as pf
from protofl_plugins.datasets.npz import Npz

rng = np.random.default_rng(0)
Y = np.array([0, 1, 2, 0, 1, 2])
NUMBERS = rng.normal(size=(6, 5))
IDS = rng.integers(0, 40, (6, 5))


def dataset(x, **options):
    return pf.datasets.dataset_from_arrays([(x, Y[: len(x)], "here")], **options)


def failure(x, **options):
    with pytest.raises(pf.UsageError) as error:
        dataset(x, **options)
    return error.value


@pytest.mark.parametrize(
    ("x", "options", "kind", "shape"),
    [
        (NUMBERS, {}, "table", (5,)),
        (NUMBERS.astype(np.float16), {}, "table", (5,)),
        (IDS, {"kind": "table"}, "table", (5,)),
        (IDS.astype(np.uint8), {"kind": "table"}, "table", (5,)),
        (IDS, {}, "tokens", (5,)),
        (IDS.astype(np.uint8), {"kind": "tokens"}, "tokens", (5,)),
        (IDS.astype(np.int16), {}, "tokens", (5,)),
        (NUMBERS, {"kind": "series"}, "series", (1, 5)),
        (rng.normal(size=(6, 3, 7)), {"kind": "series"}, "series", (3, 7)),
        (rng.normal(size=(6, 7, 3)), {}, "image", (1, 7, 3)),
    ],
)
def test_what_the_arrays_are_taken_for(x, options, kind, shape):
    data = dataset(x, **options)
    assert (data.sample.kind, data.sample.shape) == (kind, shape)
    assert data.x.dtype == (torch.int64 if kind == "tokens" else torch.float32)
    assert np.allclose(data.x.numpy().reshape(x.shape), x.astype(np.float32))


def test_a_vocabulary_is_counted_or_given():
    assert dataset(IDS).sample.vocabulary == IDS.max() + 1
    assert dataset(IDS, padding=50).sample.vocabulary == 51
    sample = dataset(IDS, vocabulary=64, padding=0).sample
    assert (sample.vocabulary, sample.padding) == (64, 0)


@pytest.mark.parametrize(
    ("x", "options", "what", "near"),
    [
        (IDS - 45, {}, "integers from -4", "token ids start at 0"),
        (IDS - 45, {"kind": "tokens"}, "token id -", "ids go from 0"),
        (IDS, {"vocabulary": 8}, "in row 0", "ids go from 0 to 7"),
        (IDS, {"vocabulary": 64, "padding": 64}, "padding id 64", "0 to 63"),
        (NUMBERS, {"kind": "tokens"}, "token sequences are float64", "integers"),
        (NUMBERS, {"vocabulary": 9}, "vocabulary=9, but the samples are tables", "only token"),
        (NUMBERS.astype(str), {"kind": "table"}, "tables are <U", "floats or integers"),
        (rng.normal(size=(6, 2, 2)), {"kind": "table"}, "tables of the shape 6×2×2", "N×features"),
        (rng.normal(size=(6, 2, 2, 2)), {"kind": "series"}, "series of the shape", "N×length"),
        (NUMBERS[:, :0], {}, "tables of the shape 6×0", "N×features"),
        (np.zeros((6, 0, 0), np.uint8), {}, "images without content, 6×1×0×0", ""),
        (np.zeros((6, 3, 0)), {"kind": "series"}, "series of the shape 6×3×0", ""),
        (NUMBERS, {"kind": "video"}, "'video' is not a kind", "image, series, tokens, table"),
        (IDS.astype(np.uint8), {}, "images of the shape 6×5", "N×H×W"),
        (IDS, {"standardise": True}, "not for token sequences", ""),
    ],
)
def test_what_is_refused(x, options, what, near):
    error = failure(x, **options)
    assert what in error.what and near in error.near


def test_flattened_images_are_told_from_tables():
    assert "kind=table" in failure(IDS.astype(np.uint8)).do


@pytest.mark.parametrize("kind", ["table", "series"])
def test_a_sample_that_is_not_finite(kind):
    x = NUMBERS.copy()
    x[4, 1] = np.nan
    error = failure(x, kind=kind)
    assert "the sample in row 4 holds NaN" in error.what


def test_parts_of_unlike_width():
    with pytest.raises(pf.UsageError, match="tables are 4 float64") as error:
        pf.datasets.dataset_from_arrays([(NUMBERS, Y, "one"), (NUMBERS[:, :4], Y, "two")])
    assert error.value.near == "one: 5 float64"


def test_a_table_is_standardised_over_its_training_part():
    x = np.column_stack([1000 + 50 * rng.normal(size=30), rng.normal(size=30), np.full(30, 7.0)])
    x[25, 2] = 7e6
    y = np.arange(30) % 3
    parts = [(x[:20], y[:20], "train"), (x[20:], y[20:], "test")]
    plain = pf.datasets.dataset_from_arrays(parts, 20)
    assert "numbers go from" in plain.note and "standardise=true" in plain.note
    data = pf.datasets.dataset_from_arrays(parts, 20, standardise=True)
    train = data.x[:20].double()
    assert torch.allclose(train.mean(0), torch.zeros(3, dtype=torch.double), atol=1e-4)
    assert torch.allclose(train[:, :2].std(0, correction=0), torch.ones(2).double(), atol=1e-4)
    assert (data.x[:, 2] == 0).all()  # one value in the training part
    slow = (x[25, 0] - x[:20, 0].mean()) / x[:20, 0].std()
    assert float(data.x[25, 0]) == pytest.approx(slow, abs=1e-4) and not data.note


def test_series_are_standardised_by_channel():
    x = rng.normal(size=(6, 2, 50)) * [[[3.0], [0.1]]] + [[[5.0], [-5.0]]]
    data = dataset(x, kind="series", standardise=True)
    assert data.x.mean((0, 2)).abs().max() < 1e-4
    assert torch.allclose(data.x.std((0, 2), correction=0), torch.ones(2), atol=1e-4)


def test_options_of_npz(tmp_path):
    path = tmp_path / "ids.npz"
    np.savez(path, x_train=IDS, y_train=Y, x_test=IDS[:3], y_test=Y[:3])
    keys = set()
    for options in ({}, {"vocabulary": 64}, {"padding": 0}, {"kind": "table"}):
        config = Npz.Config(path=str(path), **options)
        keys.add(Npz().cache_key(config=config, data_dir=tmp_path))
        data = Npz().decode(config=config, data_dir=tmp_path)
        assert data.num_train == 6 and len(data.y) == 9
        assert data.sample.kind == options.get("kind", "tokens")
        assert data.sample.padding == options.get("padding")
    assert len(keys) == 4


def test_a_cached_data_set_keeps_its_vocabulary(tmp_path):
    from protofl.data import cache

    made = cache.load("ids", tmp_path, lambda: dataset(IDS, vocabulary=64, padding=3), str)
    again = cache.load("ids", tmp_path, lambda: pytest.fail("it was cached"), str)
    assert made.sample == again.sample == pf.datasets.SampleSpec((5,), "tokens", 64, 3)
    assert again.digest == again.compute_digest()
