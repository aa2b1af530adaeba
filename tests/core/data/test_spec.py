"""Tests of `SampleSpec`: in words, from a data set's arrays, and after preparation."""

from __future__ import annotations

import pytest
import torch

import protofl as pf
from protofl.data.spec import AsStored, Pixels, in_words

IMAGE = pf.datasets.SampleSpec((3, 8, 12))
SERIES = pf.datasets.SampleSpec((2, 50), "series")
TOKENS = pf.datasets.SampleSpec((16,), "tokens", vocabulary=90, padding=0)
TABLE = pf.datasets.SampleSpec((13,), "table")


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (IMAGE, "images 3×8×12"),
        (SERIES, "series 2×50"),
        (TOKENS, "sequences of 16 tokens (90 ids)"),
        (TABLE, "rows of 13 numbers"),
    ],
)
def test_a_batch_of_zeros_and_the_words(sample, words):
    x = sample.zeros(4)
    assert x.shape == (4, *sample.shape) and x.dtype == sample.dtype
    assert x.dtype == (torch.int64 if sample is TOKENS else torch.float32)
    assert str(sample) == words


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shape": (3, 8)}, r"theirs is \(channels, height, width\)"),
        ({"shape": (3, 8, 8), "kind": "series"}, r"theirs is \(channels, length\)"),
        ({"shape": (0,), "kind": "table"}, "each at least 1"),
        ({"shape": (4,), "kind": "video"}, "kinds: image, series, tokens, table"),
        ({"shape": (4,), "kind": "table", "vocabulary": 4}, "tables have no vocabulary"),
        ({"shape": (4,), "kind": "tokens"}, "need a vocabulary"),
        ({"shape": (4,), "kind": "tokens", "vocabulary": 9, "padding": 9}, "padding id 9"),
    ],
)
def test_what_is_no_sample(given, message):
    with pytest.raises(pf.UsageError, match=message):
        pf.datasets.SampleSpec(**given)


@pytest.mark.parametrize(
    ("x", "more", "expected"),
    [
        (torch.zeros(2, 3, 8, 12, dtype=torch.uint8), {}, IMAGE),
        (torch.zeros(2, 3, 8, 12), {}, IMAGE),
        (torch.zeros(2, 2, 50), {}, SERIES),
        (torch.zeros(2, 16, dtype=torch.int64), {"vocabulary": 90, "padding": 0}, TOKENS),
        (torch.zeros(2, 13), {}, TABLE),
    ],
)
def test_a_data_set_s_samples_follow_from_its_array(x, more, expected):
    data = pf.datasets.Dataset(x, torch.tensor([0, 1]), 2, ["a", "b"], **more)
    assert data.sample == expected


@pytest.mark.parametrize("x", [torch.zeros(4), torch.zeros(4, 2, dtype=torch.float16)])
def test_an_array_of_no_samples(x):
    with pytest.raises(pf.UsageError, match="x is 4"):
        _ = pf.datasets.Dataset(x, torch.zeros(4), 4, ["a", "b"]).sample


def test_the_digest_knows_the_vocabulary():
    x, y = torch.ones(4, 5, dtype=torch.int64), torch.tensor([0, 1, 0, 1])
    digests = {
        pf.datasets.Dataset(x, y, 4, ["a", "b"], vocabulary=v, padding=p).compute_digest()
        for v, p in ((5, None), (6, None), (5, 0))
    }
    assert len(digests) == 3


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 9), (1, 40, 30), (3, 28, 28)])
def test_what_is_said_of_prepared_images_is_what_they_are(shape):
    prepare = Pixels(3, 28)
    x = prepare(torch.zeros(2, *shape, dtype=torch.uint8), channels_last=True)
    seen = prepare.seen(pf.datasets.SampleSpec(shape))
    assert x.shape[1:] == seen.shape and min(seen.shape[1:]) >= 28
    height, width = shape[1:]
    assert abs(seen.shape[1] / seen.shape[2] - height / width) < 0.05  # the aspect ratio is kept


@pytest.mark.parametrize("sample", [SERIES, TOKENS, TABLE])
def test_other_samples_are_seen_as_they_are(sample):
    x = sample.zeros(3)
    assert torch.equal(AsStored()(x, channels_last=True), x)
    assert AsStored().seen(sample) == sample


def test_kinds_in_words():
    assert in_words(["table"]) == "tables"
    assert in_words(["image", "series", "table"]) == "images, series or tables"
