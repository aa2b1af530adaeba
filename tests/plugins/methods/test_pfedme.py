"""Tests of pFedMe: inner steps, steps of w_i and the server's step written out by hand."""

from __future__ import annotations

from copy import deepcopy

import plain_rounds as plain
import pytest
import torch

import protofl as pf
from protofl.testing.equality import double_precision

LAMBDA, K, RATE = 2.0, 3, 0.2


def round_of(w, x, y, steps, rate, inner_rate):
    """Return w_{i,R} and θ̃ after the steps of a round, from w."""
    local, theta = deepcopy(w), deepcopy(w)
    for _ in range(steps):
        for _ in range(K):
            gradients = plain.gradients_of(theta, x, y, None)
            with torch.no_grad():
                for p, g, q in zip(theta.parameters(), gradients, local.parameters(), strict=True):
                    p -= inner_rate * (g + LAMBDA * (p - q))
        local.train()(x)  # BatchNorm statistics of w_i
        with torch.no_grad():
            for q, p in zip(local.parameters(), theta.parameters(), strict=True):
                q -= rate * LAMBDA * (q - p)
    return local, theta


@pytest.mark.parametrize(
    ("beta", "aggregate", "schedule"),
    [(1.0, "uniform", None), (2.0, "weighted", None), (0.5, "uniform", "exponential")],
)
def test_three_rounds_by_hand(toy, beta, aggregate, schedule):
    with double_precision():
        own = {"lambda": LAMBDA, "K": K, "inner_rate": RATE, "beta": beta, "aggregate": aggregate}
        run = {"local_epochs": 2}
        if schedule:
            run |= {"lr_schedule": schedule, "options": {"schedule": {"factor": 0.5}}}
        found = plain.federation(toy, "pfedme", set=own, **run)
        samples, w = plain.samples_of(found), plain.server_model(found)
        found.rounds(3)
        counts = [len(y) if aggregate == "weighted" else 1 for _, y in samples]
        for number in range(3):
            factor = 0.5**number if schedule else 1.0
            pairs = [round_of(w, x, y, 2, plain.LR * factor, RATE * factor) for x, y in samples]
            states = [local.state_dict() for local, _ in pairs]
            mean = plain.mean_state(states, [n / sum(counts) for n in counts])
            for name, p in w.named_parameters():
                mean[name] = (1 - beta) * p.detach() + beta * mean[name]
            w.load_state_dict(mean)
        plain.assert_equal_states(plain.global_state(found, "model"), w.state_dict())
        for number, (_, theta) in enumerate(pairs):
            state = found.client(number)
            kept = pf.Client(state, "pfedme").module("theta")
            plain.assert_equal_states(kept.state_dict(), theta.state_dict())
            state.set_mode(False)
            x = state.test.inputs().double()
            with torch.no_grad():
                scores = found.call("inference", client=pf.Client(state, "pfedme"), x=x)
                torch.testing.assert_close(scores, theta.eval()(x), rtol=1e-9, atol=1e-11)


def test_the_personal_model_stays_when_the_client_receives_w(toy):
    found = toy("pfedme", models=plain.ONE, participation=0.25)
    found.rounds(2)
    last, absent = {*found.pool.uploads(1)}, {*range(4)} - {*found.pool.uploads(0)}
    w = found.server.global_state["model/head.weight"]
    for number in (*last, *(absent - last)):
        state = found.client(number)
        state.received = pf.Payload(found.server.global_state)
        client = pf.Client(state, "pfedme")
        found.lifecycle("receive", client=client)
        theta = client.module("theta")
        assert torch.equal(theta.head.weight, w) == (number not in last)


def test_the_traffic_is_that_of_fedavg(toy):
    lines = [toy(name, models=plain.ONE).rounds(2) for name in ("pfedme", "fedavg")]
    for ours, other in zip(*lines, strict=True):
        assert ours["upload_floats"] == other["upload_floats"] > 0
        assert ours["download_floats"] == other["download_floats"]


def test_a_learning_rate_of_0_moves_nothing(toy):
    schedule = {"schedule": {"over": 1, "floor": 0}}
    found = toy("pfedme", models=plain.ONE, lr_schedule="cosine", options=schedule)
    found.rounds(1)
    w = dict(found.server.global_state)
    found.rounds(1)
    for key, tensor in found.server.global_state.items():
        if "/buffer/" not in key:
            assert tensor.isfinite().all()
            torch.testing.assert_close(tensor, w[key])


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"optimizer": "adam"}, {"clip": 5}])
def test_plain_sgd_is_needed(toy, options):
    with pytest.raises(pf.UsageError, match="its steps are plain SGD"):
        toy("pfedme", models=plain.ONE, **options)
