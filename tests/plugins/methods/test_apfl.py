"""Tests of APFL: the three steps written out by hand, and the mixed model that predicts."""

from __future__ import annotations

from copy import deepcopy

import plain_rounds as plain
import pytest
import torch

import protofl as pf
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision


def mix(own, w, alpha):
    """Return the net of v̄ = α·v + (1 − α)·w, with the BatchNorm statistics of ``own``."""
    model = deepcopy(own)
    with torch.no_grad():
        for p, v, q in zip(model.parameters(), own.parameters(), w.parameters(), strict=True):
            p.copy_(alpha * v + (1 - alpha) * q)
    return model


def step(own, w, alpha, x, y, learns):
    """Take the steps of w_i, v_i and, if it learns, α_i from their values before; return α_i."""
    mixed = mix(own, w, min(max(alpha, 0), 1))
    gradients = plain.gradients_of(mixed, x, y, None)
    own.load_state_dict({**own.state_dict(), **dict(mixed.named_buffers())})
    by_alpha = sum(
        ((v - q) * g).sum().item()
        for v, q, g in zip(own.parameters(), w.parameters(), gradients, strict=True)
    )
    plain.sgd(w, x, y)
    with torch.no_grad():
        for v, g in zip(own.parameters(), gradients, strict=True):
            v -= plain.LR * min(max(alpha, 0), 1) * g
    return alpha - plain.LR * by_alpha if learns else alpha


@pytest.mark.parametrize(
    ("alpha", "adaptive", "aggregate"),
    [
        (0.3, "round", "uniform"),
        (0.3, "step", "weighted"),
        (1.0, "step", "uniform"),
        (0.6, "never", "uniform"),
    ],
)
def test_three_rounds_by_hand(toy, alpha, adaptive, aggregate):
    with double_precision():
        options = {"alpha": alpha, "adaptive": adaptive, "aggregate": aggregate}
        found = plain.federation(toy, "apfl", set=options, local_epochs=2)
        samples, w = plain.samples_of(found), plain.server_model(found)
        found.rounds(3)
        own, alphas = [deepcopy(w) for _ in samples], [alpha for _ in samples]
        counts = [len(y) if aggregate == "weighted" else 1 for _, y in samples]
        for _ in range(3):
            sent = []
            for number, (x, y) in enumerate(samples):
                w_i = deepcopy(w)
                for learns in (adaptive != "never", adaptive == "step"):
                    alphas[number] = step(own[number], w_i, alphas[number], x, y, learns)
                alphas[number] = min(max(alphas[number], 0), 1)
                sent.append(w_i.state_dict())
            w.load_state_dict(plain.mean_state(sent, [n / sum(counts) for n in counts]))
        plain.assert_equal_states(plain.global_state(found, "model"), w.state_dict())
        for number, v in enumerate(own):
            client = pf.Client(found.client(number), "apfl")
            plain.assert_equal_states(client.module("own").state_dict(), v.state_dict())
            (found_alpha,) = client.module("alpha").parameters()
            assert found_alpha.item() == pytest.approx(alphas[number], rel=1e-9)
            state = found.prepare(number, found.server.global_state)
            state.set_mode(False)
            x = state.test.inputs().double()
            with torch.no_grad():
                scores = found.call("inference", client=client, x=x)
                expected = mix(v, w, alphas[number]).eval()(x)
            torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-11)
        assert (alphas != [alpha] * 4) == (adaptive != "never" and alpha < 1)


def test_the_shared_model_is_that_of_fedavg(toy):
    with double_precision():
        mixed = plain.federation(toy, "apfl")
        average = plain.federation(toy, "fedavg", set={"aggregate": "uniform"})
        lines = [found.rounds(2) for found in (mixed, average)]
        plain.assert_equal_states(
            plain.global_state(mixed, "model"), plain.global_state(average, "model")
        )
        assert lines[0][1]["upload_floats"] == lines[1][1]["upload_floats"]


def test_alpha_is_clipped(toy):
    options = {"alpha": 1.0, "adaptive": "step"}
    found = toy("apfl", models=plain.ONE, set=options, lr=0.5, local_epochs=3)
    found.rounds(2)
    for number in range(4):
        (alpha,) = pf.Client(found.client(number), "apfl").module("alpha").parameters()
        assert 0 <= alpha.item() <= 1


def test_alpha_learns_beyond_the_ends_of_its_range(toy):
    """Outside of [0, 1] the mix has the nearest end, and α still has the gradient there."""
    found = toy("apfl", models=plain.ONE)
    found.rounds(1)
    state = found.prepare(0, found.server.global_state, double=False)
    client = pf.Client(state, "apfl")
    (alpha,) = client.module("alpha").parameters()
    x, y = next(iter(state.train.chunks(8))), state.train.y[:8]
    found_gradients = []
    for value in (1.0, 1.3):
        with torch.no_grad():
            alpha.fill_(value)
        output = pf.Output(client.features(x), client.head(client.features(x)))
        batch, constants = pf.Batch(x, y, torch.arange(8)), {"learns": torch.tensor(1.0)}
        loss = found.call(
            "local_loss", client=client, batch=batch, output=output, constants=constants
        )["ce"]
        found_gradients.append(torch.autograd.grad(loss, alpha)[0].item())
    assert found_gradients[0] == found_gradients[1] != 0


def test_a_client_that_has_not_trained_is_evaluated_with_the_shared_model(toy):
    found = toy("apfl", models=plain.ONE, participation=0.25)
    found.rounds(2)
    (other, *_) = {*range(4)} - {*found.pool.uploads(0)} - {*found.pool.uploads(1)}
    state = found.prepare(other, found.server.global_state, double=False)
    w = found.server.global_state["model/head.weight"]
    assert torch.equal(pf.Client(state, "apfl").module("own").head.weight, w)


def test_own_models_and_shares_stay_on_the_client(toy):
    found = toy("apfl", models=plain.ONE)
    found.rounds(2)
    for blob in found.pool.uploads(1).values():
        assert {key.partition("/")[0] for key in toyfed.header(blob)} == {"model", "samples"}
