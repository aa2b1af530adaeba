"""Tests of MOON: the contrast with the shared and the last local model, and what is kept."""

from __future__ import annotations

import math
from copy import deepcopy

import plain_rounds as plain
import pytest
import torch
from slow_equations import numbers

import protofl as pf
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision
from protofl_plugins.methods.moon import contrast_loss

MU, TAU = 2.0, 0.5


def similarity(a, b):
    product = sum(x * y for x, y in zip(a, b, strict=True))
    return product / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def slow_contrast(z, z_glob, z_prev, tau):
    total = 0.0
    for row, near, far in zip(z, z_glob, z_prev, strict=True):
        towards, away = (math.exp(similarity(row, other) / tau) for other in (near, far))
        total -= math.log(towards / (towards + away))
    return total / len(z)


@pytest.mark.parametrize("tau", [0.1, 0.5, 3.0])
def test_the_contrast_is_eq_3(randn, tau):
    rows = [randn(5, 6, seed=seed) for seed in (1, 2, 3)]
    slow = slow_contrast(*map(numbers, rows), tau)
    assert contrast_loss(*rows, tau).item() == pytest.approx(slow, rel=1e-12)


def test_the_published_code_gives_the_same_contrast():
    """Figures of train_net_fedcon of main.py, QinbinLi/MOON at 8fcba3c, with μ = 2 and τ = 0.5."""
    z, z_glob, z_prev = (
        torch.sin(torch.arange(12).double() + 10 * number).reshape(4, 3) for number in (1, 2, 3)
    )
    loss = MU * contrast_loss(z.requires_grad_(), z_glob, z_prev, TAU)
    assert loss.item() == pytest.approx(5.323305174842596, rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, z)
    row = [-0.7423037334741602, 0.0034996674114312065, 0.7460854902184959]
    assert numbers(gradient[0]) == pytest.approx(row, rel=1e-9)


@pytest.mark.parametrize("variant", ["paper", "official"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_rounds_by_hand(toy, variant, participation):
    with double_precision():
        options = {"mu": MU, "temperature": TAU, "variant": variant}
        found = plain.federation(
            toy, "moon", set=options, participation=participation, local_epochs=2, rounds=4
        )
        samples, w = plain.samples_of(found), plain.server_model(found)
        nets, pool = dict(enumerate(plain.own_models(found))), {}
        lines = found.rounds(4)
        for number in range(4):
            chosen, states = sorted(found.pool.uploads(number)), []
            for client in chosen:
                model, (x, y) = deepcopy(w), samples[client]
                frozen = deepcopy(w).eval(), pool.get(client)
                for _ in range(2):
                    step(model, frozen, x, y)
                nets[client] = deepcopy(model).eval()
                if variant == "paper":
                    pool[client] = nets[client]
                states.append(model.state_dict())
            counts = [len(samples[client][1]) for client in chosen]
            w.load_state_dict(plain.mean_state(states, [n / sum(counts) for n in counts]))
            if variant == "official":  # old_nets_pool of main.py has all nets after round 0
                pool = dict(nets)
        plain.assert_equal_states(plain.global_state(found, "model"), w.state_dict())
        assert "contrast" not in lines[0]["loss_terms"]
        assert "contrast" in lines[3]["loss_terms"]


@pytest.mark.parametrize(("participation", "same"), [(1.0, True), (0.5, False)])
def test_with_all_clients_the_published_code_is_the_paper(toy, participation, same):
    sampling = {"participation": participation}
    paper, official = (
        toy("moon", models=plain.ONE, set={"variant": variant}, drop_last=True, **sampling)
        for variant in ("paper", "official")
    )
    paper.rounds(3)
    official.rounds(3)
    states = (dict(found.server.global_state) for found in (paper, official))
    assert toyfed.same(*states) == same


def step(model, frozen, x, y):
    """Take a step on Eq. 4, with Eq. 3 written out; no ℓ_con without a previous model."""
    model.train()
    z = model.features(x)
    loss = torch.nn.functional.cross_entropy(model.head(z), y)
    w, previous = frozen
    if previous is not None:
        with torch.no_grad():
            z_glob, z_prev = w.features(x), previous.eval().features(x)
        near, far = ((z * o).sum(1) / (z.norm(dim=1) * o.norm(dim=1)) for o in (z_glob, z_prev))
        towards, away = (near / TAU).exp(), (far / TAU).exp()
        loss = loss - MU * (towards / (towards + away)).log().mean()
    gradients = torch.autograd.grad(loss, [*model.parameters()])
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= plain.LR * gradient


def test_mu_0_regresses_to_fedavg(toy):
    average, contrast = (
        toy("fedavg", models=plain.ONE),
        toy("moon", models=plain.ONE, set={"mu": 0}),
    )
    for one, two in zip(average.rounds(3), contrast.rounds(3), strict=True):
        assert one["loss_terms"]["ce"] == two["loss_terms"]["ce"]
        assert one["clients"] == two["clients"]
    assert toyfed.same(dict(average.server.global_state), dict(contrast.server.global_state))


def test_the_last_local_model_is_kept_whole(toy):
    found = toy("moon", models=plain.ONE, participation=0.5)
    found.rounds(1)
    for number in range(4):
        state = found.client(number)
        if number not in found.pool.uploads(0):
            assert "previous" not in state.state.get("moon", {})
            continue
        upload = pf.Payload.from_bytes(found.pool.uploads(0)[number])
        kept = state.state["moon"]["previous"]
        assert toyfed.same(dict(kept), {key: upload[key] for key in kept})
        assert "model/buffer/extractor.2.running_var" in kept


def test_frozen_nets_do_not_train_and_are_not_in_checkpoints(toy):
    found = toy("moon", models=plain.ONE)
    found.rounds(2)
    state = found.client(0)
    slots = dict(state.slots())
    assert [slot.train for slot in slots.values()] == [False, False]
    sent = pf.Payload.from_bytes(found.pool.downloads(1)[0])
    received = slots["moon/received"].module.state_dict()
    assert torch.equal(received["head.weight"], sent["model/head.weight"])
    assert torch.equal(
        received["extractor.2.running_mean"], sent["model/buffer/extractor.2.running_mean"]
    )


def test_defaults(toy):
    config = toy("moon", models=plain.ONE).plan.composition.configs["moon"]
    assert (config.mu, config.temperature, config.first) == (1.0, 0.5, "none")
