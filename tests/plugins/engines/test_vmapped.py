"""Tests of groups of clients whose parameters are stacked."""

from __future__ import annotations

import pytest
from engine_toys import make_plan
from torch import nn

from protofl.testing import toy as toyfed
from protofl.testing.equality import RESIDUAL, Run, assert_equal_runs, double_precision
from protofl_plugins.engines import vmapped


def tied(sample, width):
    """Return a net with one weight in two layers."""
    first, second = (nn.Linear(width, width) for _ in range(2))
    second.weight = first.weight
    start = nn.Linear(toyfed.SIDE**2, width)
    return nn.Sequential(nn.Flatten(), start, nn.ReLU(), first, nn.ReLU(), second)


TIED = toyfed.architecture("tied", tied)


@pytest.mark.parametrize("clients_of_a_stack", [1, 2, 6])
@pytest.mark.parametrize("net", [RESIDUAL, TIED], ids=lambda net: net.name)
def test_stacks_equal_eager(clients_of_a_stack, net, tmp_path, monkeypatch):
    """Whatever the memory of a stack allows, and where modules share a weight."""
    with double_precision():
        plans = [make_plan("local", tmp_path, [net], **of) for of in ({}, {"engine": "vmapped"})]
        wanted = Run(plans[0], rounds=2)
        weights = wanted.federation.pool.client(0).model.state_dict().values()
        size = sum(tensor.nbytes for tensor in weights)
        monkeypatch.setattr(vmapped, "STACKED", clients_of_a_stack * size)
        found = Run(plans[1], rounds=2)
    assert not found.notes
    assert_equal_runs(found, wanted, 1e-9)


def test_a_client_s_own_weights_are_back_after_each_batch(tmp_path, monkeypatch):
    """Hooks of a batch see the client's model, never a part of a stack."""
    seen = []
    step = vmapped.Lockstep._step

    def watched(self, *given):
        step(self, *given)
        seen.append([p.shape for p in self._model.parameters()])

    monkeypatch.setattr(vmapped.Lockstep, "_step", watched)
    run = Run(make_plan("local", tmp_path, [RESIDUAL], engine="vmapped"))
    own = [p.shape for p in run.federation.pool.client(0).model.parameters()]
    assert seen and all(shapes == own for shapes in seen)
