"""Tests of the embeddings of `tiny-text`."""

from __future__ import annotations

import torch

from protofl_plugins.text_encoders.tiny_text import LONGEST, TinyText

CPU = torch.device("cpu")


def opened(dim=8):
    encoder = TinyText([], dim, None)
    encoder.load(CPU)
    return encoder


def test_weights_are_the_same_in_every_run():
    torch.manual_seed(3)
    one = opened().embed(["A photo of a cat."])
    torch.manual_seed(4)
    assert torch.equal(one, opened().embed(["A photo of a cat."]))
    assert opened(12).embed(["x", "y"]).shape == (2, 12)


def test_prompts_take_the_place_of_the_first_tokens():
    encoder, prompts = opened(), torch.randn(1, 3, 64)
    # The start token and two bytes are replaced, so texts that differ there are the same.
    same = [encoder.embed_prompts([text], prompts) for text in ("ab cat", "xy cat")]
    assert torch.allclose(*same, atol=1e-6)
    other = encoder.embed_prompts(["ab cow"], prompts)
    assert not torch.allclose(same[0], other, atol=1e-4)


def test_prompts_may_be_more_than_tokens():
    encoder, prompts = opened(), torch.randn(2, 6, 64)
    both = encoder.embed_prompts(["a", "a much longer text"], prompts)
    alone = encoder.embed_prompts(["a"], prompts[:1])
    assert torch.allclose(both[:1], alone, atol=1e-5)


def test_empty_and_long_texts():
    encoder = opened()
    assert encoder.embed([""]).isfinite().all()
    long = "a" * LONGEST
    assert torch.allclose(*encoder.embed([long, long + "b"]), atol=1e-6)
