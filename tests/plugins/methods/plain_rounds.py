"""Clients, samples and steps for rounds that tests write out by hand, in plain PyTorch.

Each client has one batch per epoch, so the order of its samples does not matter. Models and samples
are in float64: call everything inside of `protofl.testing.equality.double_precision`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from protofl.testing import toy as toyfed

LR = 0.1
CLIENTS = 4
ONE = toyfed.group(toyfed.NORM)


def images():
    """Return the toy images in float32, which data sets have in any precision."""
    made = toyfed.make_images(toyfed.MIXED)
    return replace(made, x=made.x.to(torch.float32))


def federation(toy, method, **options):
    """Return a federation whose clients train on all of their samples in one batch."""
    return toy(method, data=images(), models=ONE, batch_size=1000, lr=LR, **options)


def own_models(found):
    """Return the clients' models before the first round."""
    return [found.plan.initial_model(number, 0) for number in range(CLIENTS)]


def server_model(found):
    """Return the model that the server builds."""
    return found.plan.info.build(found.plan.info.architectures[0].name, 0)


def samples_of(found):
    """Return inputs and labels of each client's training samples."""
    result = []
    for number in range(CLIENTS):
        samples = found.plan.samples(found.plan.split(0).train(number), False)
        result.append((torch.cat([*samples.chunks(1000)]), samples.y))
    return result


def gradients_of(model, x, y, parameters):
    """Return gradients of the mean cross-entropy in train mode, by default of all parameters."""
    model.train()
    parameters = [*model.parameters()] if parameters is None else parameters
    return torch.autograd.grad(cross_entropy(model(x), y), parameters)


def sgd(model, x, y, parameters=None):
    """Take a step of SGD on some parameters, by default on all."""
    chosen = [*model.parameters()] if parameters is None else [*parameters]
    gradients = gradients_of(model, x, y, chosen)
    with torch.no_grad():
        for parameter, gradient in zip(chosen, gradients, strict=True):
            parameter -= LR * gradient


def global_state(found, part):
    """Return the server's tensors ``PART/*`` by the names of a model's state."""
    state = found.server.global_state.select(f"{part}/*")
    return {key.removeprefix(f"{part}/").removeprefix("buffer/"): t for key, t in state.items()}


def mean_state(states, shares):
    """Return Σ share · state of each floating-point tensor; the maximum of counters."""
    result = {}
    for name, first in states[0].items():
        if first.is_floating_point():
            result[name] = sum(s * state[name] for s, state in zip(shares, states, strict=True))
        else:
            result[name] = max(state[name] for state in states).clone()
    return result


def assert_equal_states(actual, expected):
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=1e-9, atol=1e-11, msg=name)
