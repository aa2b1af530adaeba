"""Tests of FedALA: rounds written out by hand, with the learned share of each weight."""

from __future__ import annotations

import statistics
from copy import deepcopy

import plain_rounds as plain
import pytest
import torch
from torch.nn.functional import cross_entropy

from protofl.testing.equality import double_precision
from protofl_plugins.methods.fedala import LAST, MOST, higher_layers

ETA = 40.0


def mixed(shared, own, W):
    """Return Θ with θ_i + (Θ − θ_i) ⊙ W in its head, number by number."""
    model = deepcopy(shared)
    with torch.no_grad():
        for name, w in W.items():
            mine, theirs = own.get_parameter(name).flatten(), shared.get_parameter(name).flatten()
            numbers = zip(mine.tolist(), theirs.tolist(), w.flatten().tolist(), strict=True)
            values = [a + (b - a) * share for a, b, share in numbers]
            model.get_parameter(name).copy_(torch.tensor(values).view_as(w))
    return model


def learn(shared, own, W, x, y, threshold=None):
    """Learn W for one epoch, or until the losses of ten epochs deviate by less; count epochs."""
    losses = []
    while len(losses) < (1 if threshold is None else MOST):
        model = mixed(shared, own, W)
        losses.append(cross_entropy(deepcopy(model).train()(x), y).item())
        gradients = plain.gradients_of(model, x, y, [model.get_parameter(name) for name in W])
        for (name, w), gradient in zip([*W.items()], gradients, strict=True):
            difference = shared.get_parameter(name) - own.get_parameter(name)
            W[name] = (w - ETA * gradient * difference).detach().clamp(0, 1)
        last = losses[-LAST:]
        if threshold and len(last) == LAST and statistics.pstdev(last) < threshold:
            break
    return len(losses)


@pytest.mark.parametrize("threshold", [1e-4, 10.0])
def test_three_rounds_by_hand(toy, threshold):
    """The first model is shared; W is learned until it settles, and later for one epoch."""
    with double_precision():
        options = {"s": 100, "eta": ETA, "threshold": threshold}
        found = plain.federation(toy, "fedala", set=options)
        samples, shared = plain.samples_of(found), plain.server_model(found)
        found.rounds(3)
        own = [deepcopy(shared) for _ in samples]
        shares = [
            {
                name: torch.ones_like(shared.get_parameter(name))
                for name in ("head.weight", "head.bias")
            }
            for _ in samples
        ]
        weights = [len(y) / sum(len(y) for _, y in samples) for _, y in samples]
        for number in range(3):
            epochs = []
            for client, (x, y) in enumerate(samples):
                W = shares[client]
                if number:
                    until = threshold if number == 1 else None
                    epochs.append(learn(shared, own[client], W, x, y, until))
                own[client] = mixed(shared, own[client], W)
                plain.sgd(own[client], x, y)
            states = [model.state_dict() for model in own]
            shared.load_state_dict(plain.mean_state(states, weights))
            if number == 1:
                assert {*epochs} == {LAST} if threshold > 1 else max(epochs) > LAST
        plain.assert_equal_states(plain.global_state(found, "model"), shared.state_dict())
        for client, W in enumerate(shares):
            state = found.client(client)
            plain.assert_equal_states(state.model.state_dict(), own[client].state_dict())
            plain.assert_equal_states(state.state["fedala"]["W"], W)
            numbers = torch.cat([w.flatten() for w in W.values()])
            assert 0 <= numbers.min() < 1 and numbers.max() <= 1


def test_without_higher_layers_it_is_fedavg(toy):
    with double_precision():
        found = plain.federation(toy, "fedala", set={"p": 0})
        other = plain.federation(toy, "fedavg")
        for each in (found, other):
            each.rounds(3)
        plain.assert_equal_states(
            plain.global_state(found, "model"), plain.global_state(other, "model")
        )


def test_higher_layers_are_the_last_ones_with_weights():
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3))
    assert higher_layers(net, 0) == []
    assert higher_layers(net, 1) == ["2.weight", "2.bias"]
    assert higher_layers(net, 9) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    net[2].weight.requires_grad_(False)
    assert higher_layers(net, 1) == ["2.bias"]
