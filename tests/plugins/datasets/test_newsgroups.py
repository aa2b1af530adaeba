"""Tests of 20 Newsgroups, with a small file as scikit-learn keeps it."""

from __future__ import annotations

import codecs
import pickle
import urllib.request

import numpy as np
import pytest
from sklearn.utils import Bunch

import protofl as pf
from protofl_plugins.datasets.newsgroups import Newsgroups


def decode(data_dir, **options):
    return Newsgroups().decode(config=Newsgroups.Config(**options), data_dir=data_dir)


def test_20_newsgroups(tmp_path):
    names = ["alt.atheism", "sci.space"]
    train = [
        "From: a@b.c\nSubject: x\n\nThe moon and the sun and the stars",
        "Subject: y\n\nthe moon",
    ]
    test = ["Subject: z\n\nThe sun > and Mars"]
    cache = {
        part: Bunch(data=texts, target=np.array(y), target_names=names, filenames=np.array(texts))
        for part, texts, y in (("train", train, [1, 0]), ("test", test, [1]))
    }
    content = codecs.encode(pickle.dumps(cache), "zlib_codec")
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "20news-bydate_py3.pkz").write_bytes(content)
    data = decode(tmp_path, length=8)
    # Words that occur twice or more in training: the (4), and (2), moon (2). 0: padding, 1: others.
    assert data.x.tolist() == [
        [2, 4, 3, 2, 1, 3, 2, 1],
        [2, 4, 0, 0, 0, 0, 0, 0],
        [2, 1, 3, 1, 0, 0, 0, 0],
    ]
    assert (data.vocabulary, data.padding, data.num_train) == (5, 0, 2)
    assert data.classes == names and data.y.tolist() == [1, 0, 1]


def test_without_internet(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no internet")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(pf.UsageError) as error:
        decode(tmp_path)
    assert "newsgroups cannot be downloaded" in error.value.what
    assert error.value.near.startswith("address: http")
    assert "--dataset npz:FILE" in error.value.do
