"""Tests of SCAFFOLD: the corrected steps, both options of control variates, the server's steps."""

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
from protofl_plugins.methods.scaffold import SCAFFOLD

ROUNDS = 3


def by_hand(found, option, server_rate, participants, steps=2, rates=(1.0,) * ROUNDS):
    """Return x and c after rounds in which the clients ``participants(round)`` take part.

    c_i of option II is the mean of the gradients of the steps, whatever the learning rate.
    """
    samples, x = plain.samples_of(found), plain.server_model(found)
    c = [torch.zeros_like(p) for p in x.parameters()]
    own = [[torch.zeros_like(p) for p in x.parameters()] for _ in samples]
    for number in range(ROUNDS):
        chosen, moved, changed, states = participants(number), [], [], []
        for client in chosen:
            y_i, (inputs, labels) = deepcopy(x), samples[client]
            parameters, seen = [*y_i.parameters()], []
            at_x = plain.gradients_of(deepcopy(x), inputs, labels, None)
            for _ in range(steps):
                gradients = plain.gradients_of(y_i, inputs, labels, parameters)
                seen.append(gradients)
                with torch.no_grad():
                    for p, g, all_c, own_c in zip(
                        parameters, gradients, c, own[client], strict=True
                    ):
                        p -= plain.LR * rates[number] * (g + all_c - own_c)
            new = at_x if option == "I" else [sum(g) / steps for g in zip(*seen, strict=True)]
            moved.append([p - q for p, q in zip(parameters, x.parameters(), strict=True)])
            changed.append([a - b for a, b in zip(new, own[client], strict=True)])
            states.append(y_i.state_dict())
            own[client] = list(new)
        mean = plain.mean_state(states, [1 / len(chosen)] * len(chosen))
        with torch.no_grad():
            for p, *changes in zip(x.parameters(), *moved, strict=True):
                p += server_rate * sum(changes) / len(chosen)
            c = [
                old + sum(changes) / len(samples) for old, *changes in zip(c, *changed, strict=True)
            ]
            for name, buffer in x.named_buffers():
                buffer.copy_(mean[name])
    return x, c


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize(("server_rate", "participation"), [(1.0, 1.0), (0.6, 0.5)])
def test_three_rounds_by_hand(toy, option, server_rate, participation):
    with double_precision():
        options = {"option": option, "server_rate": server_rate}
        found = plain.federation(
            toy, "scaffold", set=options, local_epochs=2, participation=participation
        )
        found.rounds(ROUNDS)
        chosen = [sorted(found.pool.uploads(number)) for number in range(ROUNDS)]
        assert len(chosen[0]) == 4 * participation
        x, c = by_hand(found, option, server_rate, chosen.__getitem__)
        plain.assert_equal_states(plain.global_state(found, "model"), x.state_dict())
        control = {name: t for (name, _), t in zip(x.named_parameters(), c, strict=True)}
        plain.assert_equal_states(plain.global_state(found, "control"), control)


def test_option_ii_divides_by_the_learning_rate_of_the_round(toy):
    with double_precision():
        schedule = {"schedule": {"factor": 0.5}}
        found = plain.federation(
            toy, "scaffold", local_epochs=2, lr_schedule="exponential", options=schedule
        )
        found.rounds(ROUNDS)
        x, c = by_hand(found, "II", 1.0, lambda number: range(4), rates=(1.0, 0.5, 0.25))
        plain.assert_equal_states(plain.global_state(found, "model"), x.state_dict())
        control = {name: t for (name, _), t in zip(x.named_parameters(), c, strict=True)}
        plain.assert_equal_states(plain.global_state(found, "control"), control)


def test_a_learning_rate_of_0_leaves_control_variates(toy):
    schedule = {"schedule": {"over": 1, "floor": 0}}
    found = toy("scaffold", models=plain.ONE, lr_schedule="cosine", options=schedule)
    found.rounds(1)
    before = found.client(0).state["scaffold"]["control"].clone()
    found.rounds(1)
    assert before.isfinite().all() and before.any()
    assert torch.equal(found.client(0).state["scaffold"]["control"], before)


@pytest.mark.parametrize(("options", "count"), [({"participation": 0.5}, 4), ({"unseen": 1}, 3)])
def test_c_is_the_mean_of_the_clients_that_can_take_part(toy, options, count):
    found = toy("scaffold", models=plain.ONE, **options)
    found.rounds(3)
    own = [found.client(n).state.get("scaffold", {}).get("control") for n in range(4)]
    total = sum(each.double() for each in own if each is not None)
    c = torch.cat(
        [
            found.server.global_state[f"control/{name}"].flatten()
            for name, _ in found.client(0).model.named_parameters()
        ]
    )
    torch.testing.assert_close(c.double(), total / count, rtol=1e-5, atol=1e-6)


def test_the_first_round_is_that_of_fedavg_with_the_plain_mean(toy):
    with double_precision():
        controlled = plain.federation(toy, "scaffold")
        average = plain.federation(toy, "fedavg", set={"aggregate": "uniform"})
        controlled.rounds(1)
        average.rounds(1)
        plain.assert_equal_states(
            plain.global_state(controlled, "model"), plain.global_state(average, "model")
        )


def test_the_full_gradient_leaves_the_model_as_it_is(toy):
    with double_precision():
        found = toy("scaffold", models=plain.ONE, set={"option": "I"}, data=plain.images())
        received = found.call("download_payload", server=found.views()[1], client_id=2)
        state = found.prepare(2, received)
        before = deepcopy(state.model.state_dict())
        found.prepare(2, received)
        assert toyfed.same(dict(state.model.state_dict()), dict(before))
        assert not any(module.training for module in state.model.modules())


def test_twice_the_model_travels_each_way(toy):
    found = toy("scaffold", models=plain.ONE)
    each = sum(p.numel() for p in found.client(0).model.parameters())
    for line in found.rounds(2):
        assert line["upload_floats"] == line["download_floats"] == 4 * 2 * each
    download = toyfed.header(found.pool.downloads(0)[0])
    assert {key.partition("/")[0] for key in download} == {"model", "control"}
    assert not any(key.startswith("control/buffer/") for key in download)
    upload = toyfed.header(found.pool.uploads(0)[0])
    assert {key.partition("/")[0] for key in upload} == {"model_update", "control_update"}


def test_local_buffers_stay_on_the_client(toy):
    found = toy("scaffold", models=plain.ONE, set={"buffers": "local"})
    found.rounds(2)
    for blob in [*found.pool.uploads(1).values(), *found.pool.downloads(1).values()]:
        assert not any("/buffer/" in name for name in toyfed.header(blob))


@pytest.mark.parametrize(
    ("options", "has"),
    [({"momentum": 0.9}, "momentum 0.9"), ({"optimizer": "adam"}, "adam"), ({"clip": 5}, "clip 5")],
)
def test_option_ii_needs_plain_sgd(toy, options, has):
    with pytest.raises(pf.UsageError, match=f"the run has {has}; --optimizer sgd --momentum 0"):
        toy("scaffold", models=plain.ONE, **options)
    toy("scaffold", models=plain.ONE, set={"option": "I"}, **options).rounds(1)


def _filled(number):
    """Return sin(j + 10·number) for j = 0…5, as 2×3."""
    return torch.sin(torch.arange(6).double() + 10 * number).reshape(2, 3)


def test_the_published_step_and_control_variate():
    """Figures of SCAFFOLDOptimizer and update_yc of TsingZ0/PFLlib at d832e76; η_l = 0.1, K = 1."""
    x, y, gradient, c, c_i = (_filled(number) for number in (1, 1, 3, 4, 5))
    net = torch.nn.Linear(3, 2, bias=False).double()
    net.weight.data.copy_(y)
    client = SimpleNamespace(
        config=SCAFFOLD.Config(),
        task=pf.datasets.Task(),
        parameters=lambda: [net.weight],
        module=lambda name: net,
        received=pf.Payload({"model/weight": x, "control/weight": c}),
        state={"control": c_i.flatten()},
        scratch={},
        steps=1,
        round_lr=0.1,
    )
    scores = torch.zeros(2, 2, dtype=torch.float64)
    batch = pf.Batch(scores, torch.tensor([0, 1]), torch.arange(2))
    constants = SCAFFOLD().before_training(client)
    terms = SCAFFOLD().local_loss(client, batch, pf.Output(scores, scores), constants)
    (correction,) = torch.autograd.grad(terms["correction"], net.weight)
    net.weight.data -= 0.1 * (gradient + correction)
    assert numbers(net.weight.flatten()) == pytest.approx(
        [-0.5459667499, -0.8767012576, -0.4014006721, 0.4429458401, 0.8800499897, 0.5080402373],
        rel=1e-8,
    )
    SCAFFOLD().after_training(client)
    assert numbers(client.state["control"]) == pytest.approx(
        [-0.9880316241, -0.4040376453, 0.5514266812, 0.9999118601, 0.5290826861, -0.4281826695],
        rel=1e-8,
    )
    change = client.scratch["change"] - (client.state["control"] - c_i.flatten())
    assert change.abs().max() < 1e-12
