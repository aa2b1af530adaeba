"""Optimisers made of tensors against eager's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from protofl_plugins.engines.eager import make_update
from protofl_plugins.engines.updates import TensorUpdate

KINDS = {"sgd": ("sgd", 0.0), "momentum": ("sgd", 0.9), "adam": ("adam", 0.0)}


def parameters(generator):
    shapes = [(3, 2), (3,), (2, 3, 2, 2)]
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


def gradients(generator, step):
    """The second parameter has none in the first two steps, the third none in the fourth."""
    found = parameters(generator)
    return [
        None if (n == 1 and step < 2) or (n == 2 and step == 3) else g for n, g in enumerate(found)
    ]


@pytest.mark.parametrize("clip", [0.0, 1.5], ids=["free", "clipped"])
@pytest.mark.parametrize("kind", KINDS)
def test_against_eager(kind, clip):
    optimizer, momentum = KINDS[kind]
    ours, theirs = (parameters(torch.Generator().manual_seed(0)) for _ in range(2))
    groups = lambda p: [(p[:2], 0.1), (p[2:], 0.02)]  # noqa: E731
    update = TensorUpdate(groups(ours), optimizer, momentum, clip=clip)
    job = SimpleNamespace(groups=groups(theirs), optimizer=optimizer, momentum=momentum, clip=clip)
    reference = make_update(job)
    generator = torch.Generator().manual_seed(1)
    for step in range(6):
        given = gradients(generator, step)
        update(given)
        reference(given)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("clip", [0.0, 1.5], ids=["free", "clipped"])
@pytest.mark.parametrize("kind", KINDS)
def test_clients_of_a_stack_at_steps_of_their_own(kind, clip):
    optimizer, momentum = KINDS[kind]
    each = [parameters(torch.Generator().manual_seed(seed)) for seed in range(3)]
    stack = [torch.stack(same) for same in zip(*each, strict=True)]
    update = TensorUpdate([(stack, 0.1)], optimizer, momentum, clients=3, clip=clip)
    alone = [TensorUpdate([(own, 0.1)], optimizer, momentum, clip=clip) for own in each]
    generator = torch.Generator().manual_seed(2)
    for start, stop in [(0, 3), (0, 2), (1, 2), (0, 3), (2, 3)]:
        found = [parameters(generator) for _ in range(start, stop)]
        update.at(start, stop)([torch.stack(same) for same in zip(*found, strict=True)])
        for number, given in zip(range(start, stop), found, strict=True):
            alone[number](given)
    for number, own in enumerate(each):
        for a, b in zip(own, stack, strict=True):
            torch.testing.assert_close(a, b[number], rtol=1e-12, atol=1e-12)


def test_state_can_be_zeroed():
    (p,) = [torch.ones(2)]
    update = TensorUpdate([([p], 0.1)], "adam", 0.0)
    update([torch.ones(2)])
    after = p.clone()
    p.fill_(1.0)
    for tensor in update.state:
        tensor.zero_()
    update([torch.ones(2)])
    assert torch.equal(p, after)
