"""Tests of the optimisers: clipping, stacks of clients, a state of zeros.

`test_eager` compares them with torch.optim.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from protofl_plugins.engines import updates
from protofl_plugins.engines.updates import Update

KINDS = {"sgd": ("sgd", 0.0), "momentum": ("sgd", 0.9), "adam": ("adam", 0.0)}


def parameters(generator):
    shapes = [(3, 2), (3,), (2, 3, 2, 2)]
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


def rules(kind, clip=0.0, decay=None, scheduled=False):
    """Return the attributes of a `pf.backends.TrainJob` that an optimiser reads."""
    optimizer, momentum = KINDS[kind]
    device = torch.device("cpu")
    return SimpleNamespace(
        optimizer=optimizer,
        momentum=momentum,
        weight_decay=decay,
        clip=clip,
        device=device,
        scheduled=scheduled,
    )


def gradients(generator, step):
    """Return gradients: the second is None in the first two steps, the third in the fourth."""
    found = parameters(generator)
    return [
        None if (n == 1 and step < 2) or (n == 2 and step == 3) else g for n, g in enumerate(found)
    ]


@pytest.mark.parametrize("clip", [0.0, 1.5], ids=["free", "clipped"])
@pytest.mark.parametrize("kind", KINDS)
def test_counting_on_the_device_changes_nothing(kind, clip):
    ours, theirs = (parameters(torch.Generator().manual_seed(0)) for _ in range(2))
    update, reference = (
        Update(rules(kind, clip), [(p[:2], 0.1), (p[2:], 0.02)], fixed=fixed)
        for p, fixed in ((ours, True), (theirs, False))
    )
    generator = torch.Generator().manual_seed(1)
    for step in range(6):
        given = gradients(generator, step)
        update(given)
        reference(given)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("clip", "decay"), [(0.0, None), (1.5, 0.1)], ids=["free", "clipped"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fixed", [True, False])
def test_one_kernel_for_all_parameters_changes_nothing(fixed, kind, clip, decay, monkeypatch):
    """A GPU updates them so; a gradient may come in another layout than its parameter."""
    ours, theirs = (parameters(torch.Generator().manual_seed(0)) for _ in range(2))
    reference = Update(rules(kind, clip, decay), [(theirs[:2], 0.1), (theirs[2:], 0.02)])
    monkeypatch.setattr(updates, "fuses", lambda device: True)
    update = Update(rules(kind, clip, decay), [(ours[:2], 0.1), (ours[2:], 0.02)], fixed=fixed)
    assert update._fused
    generator = torch.Generator().manual_seed(1)
    for step in range(6):
        given = gradients(generator, step)
        given[0] = given[0].t().contiguous().t()
        update(given)
        reference(given)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_rates_on_the_device_are_not_rounded_to_float32(monkeypatch):
    monkeypatch.setattr(updates, "fuses", lambda device: True)
    weights = parameters(torch.Generator().manual_seed(0))
    assert not Update(rules("sgd", scheduled=True), [(weights, 0.1)], fixed=True)._fused


@pytest.mark.parametrize("clip", [0.0, 1.5], ids=["free", "clipped"])
@pytest.mark.parametrize("kind", KINDS)
def test_clients_of_a_stack_at_steps_of_their_own(kind, clip):
    each = [parameters(torch.Generator().manual_seed(seed)) for seed in range(3)]
    stack = [torch.stack(same) for same in zip(*each, strict=True)]
    update = Update(rules(kind, clip), [(stack, 0.1)], clients=3)
    alone = [Update(rules(kind, clip), [(own, 0.1)]) for own in each]
    generator = torch.Generator().manual_seed(2)
    for start, stop in [(0, 3), (0, 2), (1, 2), (0, 3), (2, 3)]:
        found = [parameters(generator) for _ in range(start, stop)]
        update([torch.stack(same) for same in zip(*found, strict=True)], slice(start, stop))
        for number, given in zip(range(start, stop), found, strict=True):
            alone[number](given)
    for number, own in enumerate(each):
        for a, b in zip(own, stack, strict=True):
            torch.testing.assert_close(a, b[number], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_zeros_is_the_start(kind):
    (p,) = [torch.ones(2)]
    update = Update(rules(kind), [([p], 0.1)], fixed=True)
    update([torch.ones(2)])
    after = p.clone()
    p.fill_(1.0)
    for tensor in update.state:
        tensor.zero_()
    update([torch.ones(2)])
    assert torch.equal(p, after)
