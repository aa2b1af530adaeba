"""Tests of the cryptographic random stream."""

from __future__ import annotations

import hashlib

import pytest
import torch
from scipy import stats

import protofl as pf
from protofl.system.secret_stream import SecretStream, derived_key


def test_draws_are_uniform_and_normal():
    stream = SecretStream(b"key")
    assert stats.kstest(stream.uniform(20_000).numpy(), "uniform").pvalue > 0.01
    drawn = stream.normal((20_001,)).numpy()
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    pairs = stats.pearsonr(drawn[:10_000], drawn[10_001:])  # sine and cosine of one angle
    assert abs(pairs.statistic) < 0.05
    assert stream.normal((2, 3, 5)).shape == (2, 3, 5) and stream.normal((0, 4)).shape == (0, 4)


def test_words_are_those_of_shake_256():
    words = hashlib.shake_256(b"key" + bytes(8)).digest(16)
    expected = [(int.from_bytes(words[at : at + 8], "little") >> 11) / 2**53 for at in (0, 8)]
    assert SecretStream(b"key").uniform(2).tolist() == expected


def test_the_tail_is_dense(monkeypatch):
    """The smallest u are 2⁻⁷⁵ apart, so a radius above 8 has no gaps that a server could find."""
    import numpy as np

    def radius(first, low):
        words = np.array([first, low], dtype="<u8")
        monkeypatch.setattr(SecretStream, "_words", lambda self, count: words)
        return float(SecretStream(b"").normal((2,)).norm())

    assert radius(0, 0) == pytest.approx((2 * 75 * np.log(2)) ** 0.5)  # 10.2
    assert radius(2**64 - 1, 2047) == 0.0
    # 8.3 deviations: neighbours of u are nearer together than a step of the noise's grid.
    assert 0 < radius(2**13, 5) - radius(2**13, 6) < 2**-24


def test_all_bits_of_the_key_count():
    """torch's generator has 2³² starts on the CPU: that is why no noise that hides may use it."""
    assert torch.equal(
        *(torch.randn(9, generator=torch.Generator().manual_seed(s)) for s in (5, 5 + 2**32))
    )
    base = bytes(32)
    drawn = {tuple(SecretStream(base).normal((3,)).tolist())}
    for bit in range(256):
        key = (1 << bit).to_bytes(32, "little")
        drawn.add(tuple(SecretStream(key).normal((3,)).tolist()))
    assert len(drawn) == 257
    keys = {derived_key(b"secret", 7, "a", "b"), derived_key(b"secret", 7, "ab", "")}
    keys |= {derived_key(b"other", 7, "a", "b"), derived_key(b"", 7, "a", "b")}
    assert len(keys) == 4 and all(len(key) == 32 for key in keys)
    assert pf.random_stream(7, "a").initial_seed() >= 2**32, (
        "other streams keep 63 bits of their key"
    )
