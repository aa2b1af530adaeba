"""Tests of Ditto: each client's own model near the shared one, which alone travels."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace

import plain_rounds as plain
import pytest
import torch
from slow_equations import numbers

import protofl as pf
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision
from protofl_plugins.methods.ditto import Ditto

LAMBDA = 0.7


def test_three_rounds_by_hand(toy):
    with double_precision():
        found = plain.federation(toy, "ditto", set={"lambda": LAMBDA})
        samples, w = plain.samples_of(found), plain.server_model(found)
        own = [deepcopy(w) for _ in samples]
        lines = found.rounds(3)
        counts = [len(y) for _, y in samples]
        shares = [n / sum(counts) for n in counts]
        for _ in range(3):
            shared = []
            for v, (x, y) in zip(own, samples, strict=True):
                gradients = plain.gradients_of(v, x, y, [*v.parameters()])
                with torch.no_grad():
                    for p, g, q in zip(v.parameters(), gradients, w.parameters(), strict=True):
                        p -= plain.LR * (g + LAMBDA * (p - q))
                w_k = deepcopy(w)
                plain.sgd(w_k, x, y)
                shared.append(w_k.state_dict())
            w.load_state_dict(plain.mean_state(shared, shares))
        for number, v in enumerate(own):
            plain.assert_equal_states(found.client(number).model.state_dict(), v.state_dict())
        plain.assert_equal_states(plain.global_state(found, "model"), w.state_dict())
        assert lines[0]["loss_terms"]["prox"] == 0 < lines[1]["loss_terms"]["prox"]


def test_the_distance_is_that_of_eq_1(toy, randn):
    with double_precision():
        found = plain.federation(toy, "ditto", set={"lambda": LAMBDA})
        found.rounds(1)
        received = {
            key: t + 0.1 for key, t in found.server.global_state.items() if t.is_floating_point()
        }
        state = found.prepare(1, found.server.global_state | received)
        total = 0.0
        for name, p in state.model.named_parameters():
            w = numbers(received[f"model/{name}"].flatten())
            total += sum((a - b) ** 2 for a, b in zip(numbers(p.flatten()), w, strict=True))
        client, y = found.views(1)[0], torch.tensor([0, 1, 2])
        batch = pf.Batch(randn(3, 1, toyfed.SIDE, toyfed.SIDE), y, torch.arange(3))
        output = pf.Output(client.features(batch.x), state.model(batch.x))
        terms = found.call(
            "local_loss",
            client=client,
            batch=batch,
            output=output,
            constants=found.given[1]["ditto"],
        )
        assert terms["prox"].item() == pytest.approx(LAMBDA / 2 * total, rel=1e-12)
        assert terms.keys() == {"ce", "prox", "shared_ce"}


def test_lambda_0_is_local_training_from_the_shared_model(toy):
    with double_precision():
        found = plain.federation(toy, "ditto", set={"lambda": 0})
        samples, w = plain.samples_of(found), plain.server_model(found)
        found.rounds(2)
        for number, (x, y) in enumerate(samples):
            v = deepcopy(w)
            for _ in range(2):
                plain.sgd(v, x, y)
            plain.assert_equal_states(found.client(number).model.state_dict(), v.state_dict())


def test_the_published_start_is_the_model_before_round_0(toy):
    with double_precision():
        chosen = {"lambda": 0, "start": "initial"}
        found = plain.federation(toy, "ditto", set=chosen, participation=0.25)
        samples, w = plain.samples_of(found), plain.server_model(found)
        found.rounds(2)
        (late,) = found.pool.uploads(1).keys() - found.pool.uploads(0).keys()
        v = deepcopy(w)
        plain.sgd(v, *samples[late])
        plain.assert_equal_states(found.client(late).model.state_dict(), v.state_dict())
        (absent, *_) = {*range(4)} - found.pool.uploads(0).keys() - {late}
        state = found.prepare(absent, found.server.global_state)
        plain.assert_equal_states(state.model.state_dict(), w.state_dict())


def test_the_shared_model_is_that_of_fedavg(toy):
    with double_precision():
        ditto, average = plain.federation(toy, "ditto"), plain.federation(toy, "fedavg")
        ditto.rounds(3)
        average.rounds(3)
        plain.assert_equal_states(
            dict(ditto.server.global_state), dict(average.server.global_state)
        )


def test_own_models_stay_and_predict(toy):
    found = toy("ditto", models=plain.ONE)
    lines = found.rounds(2)
    own = [deepcopy(found.client(number).model.state_dict()) for number in range(4)]
    assert not any(torch.equal(own[0]["head.weight"], other["head.weight"]) for other in own[1:])
    for number in range(4):
        state = found.prepare(number, found.server.global_state, double=False)
        assert toyfed.same(dict(state.model.state_dict()), dict(own[number]))
        upload = pf.Payload.from_bytes(found.pool.uploads(1)[number])
        assert not torch.equal(upload["model/head.weight"], own[number]["head.weight"])
    each = sum(p.numel() for p in found.client(0).model.parameters())
    assert all(line["upload_floats"] == line["download_floats"] == 4 * each for line in lines)


def test_a_client_that_has_not_trained_is_evaluated_with_the_shared_model(toy):
    found = toy("ditto", models=plain.ONE, participation=0.5)
    found.rounds(1)
    (other, *_) = {*range(4)} - {*found.pool.uploads(0)}
    own = found.client(other).model.head.weight.clone()
    state = found.prepare(other, found.server.global_state, double=False)
    assert torch.equal(state.model.head.weight, found.server.global_state["model/head.weight"])
    assert not torch.equal(own, state.model.head.weight)


def _filled(number):
    """Return sin(j + 10·number) for j = 0…5, as 2×3."""
    return torch.sin(torch.arange(6).double() + 10 * number).reshape(2, 3)


def test_the_published_step():
    """Figures of PerturbedGradientDescent, system/flcore/optimizers of TsingZ0/PFLlib at d832e76.

    λ = 0.5, η = 0.1, and the gradient of F_k is the third table of numbers.
    """
    v, x = _filled(1).requires_grad_(), torch.zeros(2, 2, dtype=torch.float64)
    client = SimpleNamespace(
        config=Ditto.Config(**{"lambda": 0.5}),
        task=pf.datasets.Task(),
        parameters=lambda: [v],
        module=lambda name: lambda inputs: inputs,
    )
    batch = pf.Batch(x, torch.tensor([0, 1]), torch.arange(2))
    constants = {"w": _filled(2).flatten()}
    terms = Ditto().local_loss(client, batch, pf.Output(x, x), constants)
    (pull,) = torch.autograd.grad(terms["prox"], v)
    stepped = v.detach() - 0.1 * (_filled(3) + pull)
    assert numbers(stepped.flatten()) == pytest.approx(
        [-0.3723696304, -0.8677541498, -0.5653295057, 0.2568564788, 0.8428898012, 0.6539741276],
        rel=1e-8,
    )
