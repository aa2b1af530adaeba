"""Tests of `class-embeddings`: rows by name or by order, and refused files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import protofl as pf
from protofl_plugins.text_encoders.class_embeddings import ClassEmbeddings

CPU = torch.device("cpu")
CLASSES = ["cat", "dog", "sea lion"]
ROWS = np.arange(15, dtype=np.float64).reshape(3, 5)


@pytest.fixture
def saved(tmp_path):
    def save(**arrays):
        np.savez(tmp_path / "e.npz", **arrays)
        return tmp_path / "e.npz"

    return save


def opened(path, classes=CLASSES):
    encoder = ClassEmbeddings(classes, 8, path)
    encoder.load(CPU)
    return encoder


def test_rows_without_names_are_in_the_data_s_order(saved):
    encoder = opened(saved(embeddings=ROWS))
    assert torch.equal(encoder.embed(["dog", "cat"]), torch.tensor(ROWS[[1, 0]]).float())
    assert (encoder.dim, encoder.token_dim, encoder.names_only) == (5, 0, True)
    assert encoder.logit_scale == 4.6052


def test_rows_with_names_may_be_more_and_in_any_order(saved):
    names = np.array(["sea lion", "cow", "cat", "dog"])
    encoder = opened(saved(embeddings=np.eye(4), classes=names, logit_scale=np.float64(3.5)))
    assert torch.equal(encoder.embed(CLASSES), torch.eye(4)[[2, 3, 0]])
    assert encoder.logit_scale == 3.5


def test_a_changed_file_is_read_again(saved):
    assert float(opened(saved(embeddings=ROWS)).embed(["cat"])[0, 0]) == 0
    assert float(opened(saved(embeddings=ROWS + 1)).embed(["cat"])[0, 0]) == 1


NAN = ROWS.copy()
NAN[1, 2] = np.nan


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": ROWS}, "e.npz has no embeddings"),
        ({"embeddings": ROWS[0]}, "expected numbers C×K in embeddings, got 5 of float64"),
        ({"embeddings": ROWS.astype(str)}, "expected numbers C×K in embeddings"),
        ({"embeddings": NAN}, "row 1 of embeddings holds NaN or infinity"),
        ({"embeddings": ROWS[:2]}, "embeddings has 2 rows, and the data have 3 classes"),
        (
            {"embeddings": ROWS, "classes": np.array(["cat", "dog", "sealion"])},
            "classes lacks 'sea lion' and 0 more of the data's 3 classes\ndid you mean 'sealion'?",
        ),
        (
            {"embeddings": ROWS, "classes": np.array(["cat", "dog", "cat"])},
            "expected 3 different names in classes",
        ),
        (
            {"embeddings": ROWS, "logit_scale": np.array([1.0, 2.0])},
            "expected one finite number in logit_scale",
        ),
        (
            {"embeddings": np.array([{"a": 1}], dtype=object)},
            "cannot be read as .npz without pickles",
        ),
    ],
)
def test_a_bad_file_is_named(saved, arrays, words):
    with pytest.raises(pf.UsageError) as caught:
        ClassEmbeddings(CLASSES, 8, saved(**arrays))
    assert words in str(caught.value) and "e.npz" in caught.value.what
    assert caught.value.do


def test_a_missing_file_and_a_damaged_one_are_named(tmp_path):
    path = tmp_path / "none.npz"
    with pytest.raises(pf.UsageError, match=r"none\.npz cannot be read: No such file"):
        ClassEmbeddings(CLASSES, 8, path)
    path.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(pf.UsageError, match=r"none\.npz cannot be read as \.npz"):
        ClassEmbeddings(CLASSES, 8, path)
    with pytest.raises(pf.UsageError, match="needs a file"):
        ClassEmbeddings(CLASSES, 8, None)
