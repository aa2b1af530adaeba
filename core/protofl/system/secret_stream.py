"""A cryptographic random stream, for draws that hide something.

torch's and NumPy's generators are made for statistics: whoever tries their 2³² or 2⁶⁴ seeds, or
sees enough of their draws, finds the others. SHAKE-256 (FIPS 202) of a secret key can't be told
from random bytes without the key, and takes all bits of the key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def derived_key(secret: bytes, *context: str | int) -> bytes:
    """Return the key of 32 bytes for one use of a secret: HMAC-SHA256 (RFC 2104) of the context."""
    return hmac.digest(secret, json.dumps(context).encode(), "sha256")


class SecretStream:
    """Draws from SHAKE-256 of a key. Two streams of one key are equal.

    Args:
        key: 32 bytes; draws are as secret as these.
    """

    def __init__(self, key: bytes) -> None:
        self._key, self._calls = key, 0

    def uniform(self, count: int) -> Tensor:
        """Return numbers [count] in [0, 1), as float64 on the CPU: 53 bits each."""
        return torch.from_numpy(np.ldexp((self._words(count) >> 11).astype(np.float64), -53))

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Return standard normal numbers of a shape, as float64 on the CPU.

        Box and Muller ("A Note on the Generation of Random Normal Deviates", 1958): √(−2 ln u) is
        the radius, 2πv the angle. u has 75 bits, so tails are dense up to 10 deviations. All
        numbers take the same steps, so the time tells nothing of them.
        """
        count = int(np.prod(shape))
        first, second = self._words(2 * (-(-count // 2))).reshape(2, -1)
        low = (second & np.uint64(2047)) + np.uint64(1)
        u = np.ldexp(first.astype(np.float64), -64) + np.ldexp(low.astype(np.float64), -75)
        angle = 2 * np.pi * np.ldexp((second >> 11).astype(np.float64), -53)
        radius = np.sqrt(-2 * np.log(np.minimum(u, 1)))
        pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)])
        return torch.from_numpy(pairs.reshape(-1)[:count].reshape(tuple(shape)))

    def _words(self, count: int) -> np.ndarray:
        """Return the next 64-bit numbers [count]."""
        message = self._key + self._calls.to_bytes(8, "little")
        self._calls += 1
        return np.frombuffer(hashlib.shake_256(message).digest(8 * count), "<u8")
