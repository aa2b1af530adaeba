"""Tests of alignment by angles against a loop."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from protofl.functional import cosine_alignment


def points(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))


@pytest.mark.parametrize("known", [[True] * 4, [True, False, True, True], [False] * 4])
def test_cosine_alignment_is_the_loop(known):
    f, P, y = points(6, 5), points(4, 5, seed=1), [0, 1, 1, 3, 2, 0]
    slow = sum(1 - cosine(r, P[c].tolist()) for r, c in zip(f.tolist(), y, strict=True) if known[c])
    found = cosine_alignment(f, torch.tensor(y), P, torch.tensor(known))
    assert found.item() == pytest.approx(slow / 6, rel=1e-12, abs=1e-15)
    assert gradcheck(
        lambda z: cosine_alignment(z, torch.tensor(y), P, torch.tensor(known)), f.requires_grad_()
    )
