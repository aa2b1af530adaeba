"""Tests of AlignFed's loss towards fixed points against a loop."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from protofl_plugins.methods.alignfed import fixed_point_loss


def points(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def unit(row):
    length = math.sqrt(sum(x * x for x in row))
    return [x / length for x in row]


@pytest.mark.parametrize("over", ["batch", "classes"])
def test_fixed_point_loss_is_the_loop(over):
    f, v, y = points(5, 6), points(4, 6, seed=1), [0, 2, 2, 3, 0]
    cosines = [
        [sum(a * b for a, b in zip(unit(row), unit(point), strict=True)) for point in v.tolist()]
        for row in f.tolist()
    ]
    total = 0.0
    for c in range(4):
        own = [n for n in range(5) if y[n] == c]
        for n in own:
            others = [row[c] for row in cosines] if over == "batch" else cosines[n]
            p = math.exp(cosines[n][c]) / sum(map(math.exp, others))
            total -= math.log(p) / len(own) / 4
    found = fixed_point_loss(f, torch.tensor(y), v, over)
    assert found.item() == pytest.approx(total, rel=1e-9)
    assert gradcheck(lambda z: fixed_point_loss(z, torch.tensor(y), v, over), f.requires_grad_())
