"""Tests of the gradients of adaptive pooling that ``--deterministic`` uses on a GPU, on the CPU."""

from __future__ import annotations

import pytest
import torch

from protofl.system import pooling_gradients
from protofl.system.device import deterministic_kernels
from protofl.system.pooling_gradients import average_gradient, maximum_gradient, repeatable_pooling

POOLS = {
    "average": torch.nn.functional.adaptive_avg_pool2d,
    "maximum": torch.nn.functional.adaptive_max_pool2d,
}

SIZES = [  # H, W, h, w
    (10, 7, 3, 2),
    (1, 64, 1, 10),
    (1, 10, 1, 64),
    (1, 2048, 1, 512),
    (2, 100, 1, 33),
    (5, 5, 5, 5),
    (3, 3, 7, 7),
    (7, 9, 2, 9),
]


def sample(shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def gradient(pool, x, g):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(pool(x, g.shape[-2:]), x, g)[0]


@pytest.mark.parametrize("leading", [(3,), (2, 3)])
@pytest.mark.parametrize("sizes", SIZES)
def test_they_are_those_of_torch(sizes, leading):
    x, g = sample((*leading, *sizes[:2])), sample((*leading, *sizes[2:]))
    torch.testing.assert_close(average_gradient(g, x), gradient(POOLS["average"], x, g))
    _, indices = POOLS["maximum"](x, sizes[2:], return_indices=True)
    torch.testing.assert_close(maximum_gradient(g, x, indices), gradient(POOLS["maximum"], x, g))


@pytest.fixture
def calls(monkeypatch):
    """The names of our gradients that were called."""
    result = []
    for name in ("average_gradient", "maximum_gradient"):
        ours = getattr(pooling_gradients, name)

        def noted(*given, name=name, ours=ours):
            result.append(name)
            return ours(*given)

        monkeypatch.setattr(pooling_gradients, name, noted)
    return result


def test_torch_calls_them_inside_of_the_block_alone(calls):
    x, g = sample((2, 3, 10, 7)), sample((2, 3, 3, 2))
    wanted = {name: gradient(pool, x, g) for name, pool in POOLS.items()}
    with repeatable_pooling("CPU"), repeatable_pooling("CPU"):
        pass
    assert not calls
    with repeatable_pooling("CPU"):
        with repeatable_pooling("CPU"):
            pass
        for name, pool in POOLS.items():
            torch.testing.assert_close(gradient(pool, x, g), wanted[name])
        narrow = torch.nn.functional.adaptive_avg_pool1d  # by which features get the width K
        features = x[0].clone().requires_grad_()
        torch.autograd.grad(narrow(features, 3).sum(), features)
    assert calls == ["average_gradient", "maximum_gradient", "average_gradient"]
    gradient(POOLS["average"], x, g)
    assert len(calls) == 3


@pytest.mark.parametrize("name", POOLS)
def test_clients_in_one_batch(name, calls):
    """`vmapped` trains clients of one architecture with one call."""
    x, g = sample((4, 2, 3, 10, 7)), sample((2, 3, 3, 2))

    def loss(x):
        return (POOLS[name](x, (3, 2)) * g).sum()

    wanted = torch.stack([torch.func.grad(loss)(each) for each in x])
    with repeatable_pooling("CPU"):
        found = torch.vmap(torch.func.grad(loss))(x)
    torch.testing.assert_close(found, wanted)
    assert calls


def test_deterministic_runs_use_them(monkeypatch):
    entered = []

    def kernels(kind):
        entered.append(kind)
        return object()

    monkeypatch.setattr(pooling_gradients, "_kernels", kernels)
    with deterministic_kernels(False):
        pass
    assert not entered
    with deterministic_kernels(True), deterministic_kernels(True):
        assert entered == ["CUDA"]
    with deterministic_kernels(True):
        assert entered == ["CUDA", "CUDA"]
