"""Tests of the cost of a step on methods' pages."""

from __future__ import annotations

import pytest
import step_cost
import torch
from step_cost import BATCH, PAIRS, STEPS, measure_cost, step_plan
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode
from toy_runs import toy_runs


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    monkeypatch.setattr(step_cost, "FIRST", 1)
    monkeypatch.setattr(step_cost, "PAIRS", 2)


def cost_of(method):
    with toy_runs(method) as runs:
        return measure_cost(runs)


@pytest.fixture(scope="module")
def net():
    """Return a client's net and a batch of the measured runs."""
    from protofl.testing import toy

    with toy_runs("local") as runs:
        state = toy.Toy(step_plan(runs)).client(0)
        return state.model, state.train.inputs(slice(BATCH)), state.train.y[:BATCH]


def multiply_adds(run):
    """Count multiply-adds with torch's own counter."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() // 2


@pytest.mark.slow
def test_local_is_as_costly_as_itself():
    cost = cost_of("local")
    assert cost.method.client_calls == cost.baseline.client_calls > 0
    assert cost.method.client_multiply_adds == cost.baseline.client_multiply_adds
    assert cost.method.server_multiply_adds == 0
    assert len(cost.ratios) == 2 and all(ratio > 0 for ratio in cost.ratios)
    assert PAIRS > 2  # of a real card


def test_a_step_of_local_is_forward_and_backward(net):
    """A step is the forward and backward pass of one batch, as torch counts them."""
    model, x, y = net
    step = multiply_adds(lambda: cross_entropy(model.head(model.features(x)), y).backward())
    assert cost_of("local").method.client_multiply_adds == STEPS * step


@pytest.mark.slow
def test_prototypes_cost_one_more_forward_pass(net):
    """FedProto collects prototypes after training: one more pass of all samples through f."""
    model, x, _ = net
    with torch.no_grad():
        forward = multiply_adds(lambda: model.features(x))
    cost = cost_of("fedproto")
    more = cost.method.client_multiply_adds - cost.baseline.client_multiply_adds
    assert more == STEPS * forward
    assert cost.method.client_calls > cost.baseline.client_calls


@pytest.mark.slow
def test_training_on_the_server_counts_for_the_server():
    cost = cost_of("fedtgp")
    assert cost.method.server_multiply_adds > 0 == cost.baseline.server_multiply_adds
    assert cost.method.server_calls > 10 * cost.baseline.server_calls


@pytest.mark.slow
def test_a_method_that_differentiates_on_the_server_is_counted():
    """FedORGP calls `torch.autograd.grad`, in which torch's own counter fails."""
    assert cost_of("fedorgp").method.server_multiply_adds > 0
