"""Tests of FedDyn: rounds written out by hand, with g_k of each client and h of the server."""

from __future__ import annotations

from copy import deepcopy

import plain_rounds as plain
import pytest
import torch

import protofl as pf
from protofl.testing.equality import double_precision

ALPHA = 0.3


def by_hand(found, participants, steps, aggregate):
    """Return θ after rounds in which ``participants[t]`` take part."""
    samples, shared = plain.samples_of(found), plain.server_model(found)
    g = [[torch.zeros_like(p) for p in shared.parameters()] for _ in samples]
    h = [torch.zeros_like(p) for p in shared.parameters()]
    for chosen in participants:
        trained = []
        for k in chosen:
            theta, (x, y) = deepcopy(shared), samples[k]
            for _ in range(steps):
                gradients = plain.gradients_of(theta, x, y, None)
                both = zip(theta.parameters(), gradients, g[k], shared.parameters(), strict=True)
                with torch.no_grad():
                    for p, gradient, own, start in both:
                        p -= plain.LR * (gradient - own + ALPHA * (p - start))
            pairs = zip(g[k], theta.parameters(), shared.parameters(), strict=True)
            g[k] = [(own - ALPHA * (p - start)).detach() for own, p, start in pairs]
            trained.append(theta)
        counts = [len(samples[k][1]) if aggregate == "weighted" else 1 for k in chosen]
        states = [theta.state_dict() for theta in trained]
        mean = plain.mean_state(states, [n / sum(counts) for n in counts])
        with torch.no_grad():
            for place, (name, start) in enumerate(shared.named_parameters()):
                moved = sum(theta.get_parameter(name) - start for theta in trained)
                h[place] = h[place] - ALPHA * moved / len(samples)
                mean[name] = mean[name] - h[place] / ALPHA
        shared.load_state_dict(mean)
    return shared


@pytest.mark.parametrize(("participation", "aggregate"), [(1.0, "uniform"), (0.5, "weighted")])
def test_three_rounds_by_hand(toy, participation, aggregate):
    with double_precision():
        options = {"alpha": ALPHA, "aggregate": aggregate}
        found = plain.federation(
            toy, "feddyn", set=options, local_epochs=2, participation=participation
        )
        found.rounds(3)
        participants = [sorted(found.pool.uploads(t)) for t in range(3)]
        assert len(participants[0]) == 4 * participation
        shared = by_hand(found, participants, 2, aggregate)
        plain.assert_equal_states(plain.global_state(found, "model"), shared.state_dict())


def test_h_is_divided_by_the_clients_that_can_take_part(toy):
    """With all of m clients in the round θ = 2·mean − θ⁰, if the fourth client is unseen, too."""
    with double_precision():
        found = plain.federation(toy, "feddyn", unseen=1)
        before = dict(found.server.global_state)
        found.rounds(1)
        uploads = [pf.Payload.from_bytes(blob) for blob in found.pool.uploads(0).values()]
        assert len(uploads) == 3
        key = "model/head.weight"
        mean = sum(upload[key] for upload in uploads) / 3
        torch.testing.assert_close(
            found.server.global_state[key], 2 * mean - before[key], rtol=1e-9, atol=1e-11
        )


def test_each_architecture_has_its_own_h(toy):
    found = toy("feddyn", set={"scope": "architecture"})
    found.rounds(2)
    keys = found.server.state["feddyn"]["h"].keys()
    assert {key.partition("/")[0] for key in keys} == {"model@cnn", "model@norm"}
    assert not any("/buffer/" in key for key in keys)
    assert all(t.isfinite().all() for t in found.server.global_state.values())


def test_the_traffic_is_that_of_fedavg(toy):
    lines = [toy(name, models=plain.ONE).rounds(2) for name in ("feddyn", "fedavg")]
    for ours, other in zip(*lines, strict=True):
        assert ours["upload_floats"] == other["upload_floats"] > 0
        assert ours["download_floats"] == other["download_floats"]
