"""Training on the server in steps: recorded ones compute what the code does, one launch each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from public_toy import Public
from simulated_gpu import GPU
from slowness import quick
from torch import nn
from torch.utils._pytree import tree_map_only

import protofl as pf
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision
from protofl_plugins.engines import server_steps
from protofl_plugins.engines.server_steps import minimise, steps

METHODS = {
    "fedtgp": {"S": 12},
    "fedorgp": {"epochs": 25},
    "fedgh": {"epochs": 25},
    "fedre": {"epochs": 25},
    "fedgen": {"epochs": 40, "eta_g": 0.01},
    "fedktl": {"E_S": 35},
    "fedpkd": {"server_epochs": 20, "server_model": "normed"},
    "feddf": {"server_epochs": 10},
    "fedet": {"server_epochs": 10, "server_model": "normed"},
    "ds-fl": {"server_epochs": 10, "server_model": "normed"},
}
"""Options with enough steps for a recording."""

PUBLIC = "fedpkd", "feddf", "fedet", "ds-fl"


class Server(SimpleNamespace):
    """The little of a server that steps need."""

    def __init__(self, *, replays=True):
        device = torch.device("simgpu" if replays else "cpu")
        super().__init__(device=device, replays=replays, scratch={}, notes=[])

    def note(self, line):
        self.notes.append(line)


# --- methods --------------------------------------------------------------------------------------


def federation(method, folder, device):
    """Return a federation before its first round."""
    if method in PUBLIC:
        return Public(method, folder, METHODS[method], device=device)
    images = toyfed.make_images(toyfed.MIXED)
    images = replace(images, x=images.x.to(torch.float32))
    plan = toyfed.make_plan(
        method, folder, data=images, device=device, options={method: METHODS[method]}
    )
    return toyfed.Toy(plan)


def learned(found, uploads, *, replays):
    """Return what a server has learned from the uploads of two rounds, in host memory."""
    found.server.replays = replays
    side = found.federation._server_side
    for number, blobs in enumerate(uploads):
        side.begin(number)
        device = found.plan.device
        side.learn({c: pf.Payload.from_bytes(blob, device) for c, blob in blobs.items()})
    state = toyfed.server_state(found.server)
    return tree_map_only(torch.Tensor, lambda t: t.cpu(), state)


@pytest.mark.slow
@pytest.mark.parametrize("method", quick(METHODS, "fedtgp"))
def test_recorded_steps_equal_the_code(method, tmp_path, gpu):
    with double_precision():  # Adam makes steps of gradients that are rounding alone
        clients = federation(method, tmp_path, "cpu")
        clients.rounds(2)
        uploads = [clients.pool.uploads(number) for number in range(2)]
        expected = learned(federation(method, tmp_path, "cpu"), uploads, replays=False)
        plain = learned(federation(method, tmp_path, "simgpu"), uploads, replays=False)
        server = federation(method, tmp_path, "simgpu")
        with gpu.watched() as launches:
            actual = learned(server, uploads, replays=True)
    torch.testing.assert_close(plain, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-7)
    if method in ("fedtgp", "fedorgp", "fedgh", "fedre"):
        assert toyfed.same(actual, plain)
    replays, notes = sum(what == "graph" for _, what in launches), server.server.notes
    if method == "fedet":  # its loss selects samples by a mask
        assert not replays and "one operation at a time" in notes[0]
    else:
        assert replays > 20 and not notes, notes


# --- steps ----------------------------------------------------------------------------------------


def descend(server, rounds=2, *, lr=0.1, epochs=30, rows=22, size=5):
    """Fit a line by SGD for some rounds; return the weights, and the launches of each round."""
    torch.manual_seed(0)
    net = nn.Linear(3, 1).to(server.device)
    weights, launches = [*net.parameters()], []
    for number in range(rounds):
        x = torch.randn(rows + number, 3).to(server.device)
        goal = torch.randn(1).to(server.device)

        rate = lr[number] if isinstance(lr, list) else lr

        def step(x, goal, rate=rate):
            gradients = torch.autograd.grad((net(x) - goal).square().mean(), weights)
            with torch.no_grad():
                torch._foreach_add_(weights, gradients, alpha=-rate)

        batches = [r for _ in range(epochs) for r in torch.randperm(rows + number).split(size)]
        with GPU.watched() as launched:
            steps(server, step, batches, of=[x], given=[goal], changes=weights)
        launches.append([what for _, what in launched])
    return torch.cat([w.detach().cpu().flatten() for w in weights]), launches


@pytest.mark.slow
def test_a_step_is_one_launch(gpu):
    expected, _ = descend(Server(replays=False))
    server = Server()
    actual, launches = descend(server)
    assert torch.equal(actual, expected), server.notes
    # Round 0 has batches of 5 and 2, round 1 of 5 and 3; three steps of each are recorded first.
    assert launches[0].count("graph") == 30 * 5 - 2 * 3
    assert launches[1].count("graph") == 30 * 5 - 1 - 3
    last = [n for n, what in enumerate(launches[1]) if what == "graph"][20:]
    assert last == [*range(last[0], last[0] + len(last))]  # nothing between


@pytest.mark.parametrize(("lr", "second"), [(0.1, 39), ([0.1, 0.01, 0.01], 43)])
def test_eight_steps_in_a_row_are_one_launch(lr, second, gpu, monkeypatch):
    many = {"epochs": 20, "rows": 47, "rounds": 3, "lr": lr}  # nine batches of 5, and a smaller one
    expected, _ = descend(Server(replays=False), **many)
    monkeypatch.setattr(server_steps, "CHAIN_PAYS", 100)
    server = Server()
    actual, launches = descend(server, **many)
    assert torch.equal(actual, expected), server.notes
    # An epoch is a chain and a step. In the first one, three steps are recorded; later, one is
    # compared, and with another learning rate the steps are recorded anew.
    assert [each.count("graph") for each in launches] == [6 + 19 * 2, second, 1 + 19 * 2]


def test_a_chain_that_cannot_be_captured_is_told(gpu, monkeypatch):
    """And all steps run their code."""
    captured = server_steps.Recorder._captured

    def fails_for_chains(self, body, memory):
        if body.__name__ == "steps":
            raise RuntimeError("out of memory")
        return captured(self, body, memory)

    monkeypatch.setattr(server_steps.Recorder, "_captured", fails_for_chains)
    monkeypatch.setattr(server_steps, "CHAIN_PAYS", 100)
    server = Server()
    actual, launches = descend(server, epochs=20, rows=47)
    assert torch.equal(actual, descend(Server(replays=False), epochs=20, rows=47)[0])
    assert "out of memory" in server.notes[0] and not launches[1].count("graph")


def test_few_steps_are_not_recorded(gpu):
    server = Server()
    actual, launches = descend(server, epochs=1, rounds=3)
    assert torch.equal(actual, descend(Server(replays=False), epochs=1, rounds=3)[0])
    assert not any("graph" in each for each in launches)


@pytest.mark.slow
def test_another_learning_rate_is_recorded_anew(gpu):
    rates = [0.1, 0.01, 0.001]
    expected, _ = descend(Server(replays=False), rounds=3, lr=rates)
    server = Server()
    actual, launches = descend(server, rounds=3, lr=rates)
    assert torch.equal(actual, expected), server.notes
    assert all(each.count("graph") > 100 for each in launches)


@pytest.mark.slow
def test_many_rows_go_in_parts(gpu, monkeypatch):
    expected, _ = descend(Server(replays=False))
    monkeypatch.setattr(server_steps, "ROWS", 64)
    actual, launches = descend(Server(), rounds=2)
    assert torch.equal(actual, expected)
    assert launches[0].count("graph") > 50


def test_a_batch_larger_than_the_memory(gpu, monkeypatch):
    monkeypatch.setattr(server_steps, "ROWS", 4)
    expected, _ = descend(Server(replays=False), rows=12, size=12)
    actual, _ = descend(Server(), rows=12, size=12)
    assert torch.equal(actual, expected)


def run_odd(server, change, count=40):
    """Run steps that do something odd."""
    torch.manual_seed(1)
    w, other = torch.zeros(2).to(server.device), torch.zeros(2).to(server.device)
    calls = Counter()

    def step(x):
        calls["steps"] += 1
        w.add_(x.sum(0))
        change(w, other, calls["steps"])

    steps(server, step, [*torch.randn(count, 3, 2)], changes=[w])
    return w.cpu(), other.cpu(), calls


ODD = {
    "waits": lambda w, other, n: w.mul_(0.5 if w[0].item() > 0 else 1),
    "writes": lambda w, other, n: other.add_(1),
    "counts": lambda w, other, n: w.add_(n),
}


@pytest.mark.parametrize("name", ODD)
def test_a_step_that_cannot_be_recorded_runs_its_code(name, gpu):
    expected = run_odd(Server(replays=False), ODD[name])
    server = Server()
    w, other, calls = run_odd(server, ODD[name])
    assert torch.equal(other, expected[1])
    if name != "counts":  # a step that is tried twice counts twice
        assert torch.equal(w, expected[0])
    assert calls["steps"] >= 40 and "one operation at a time" in server.notes[0]


def test_steps_without_a_batch(gpu):
    for server in (Server(replays=False), Server()):
        w = torch.zeros(1, device=server.device)
        steps(server, lambda w=w: w.add_(1), [()] * 40, changes=[w])
        assert w.cpu().item() == 40


def test_weights_elsewhere_are_recorded_anew(gpu):
    server = Server()
    for _ in range(2):  # a new model each round
        w = torch.zeros(2, device=server.device)
        steps(server, lambda x, w=w: w.add_(x.sum(0)), [*torch.ones(40, 3, 2)], changes=[w])
        assert w.tolist() == [120, 120]


# --- optimisers -----------------------------------------------------------------------------------


def fitted(server, kind, *, rates=None, clip=0.0, rounds=2):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 1)).to(
        server.device
    )
    optimizer = kind(net.parameters())
    for _ in range(rounds):
        x, y = torch.randn(24, 3).to(server.device), torch.randn(24, 1).to(server.device)
        minimise(
            server,
            lambda x, y: (net(x) - y).square().mean(),
            optimizer,
            [rows for _ in range(10) for rows in torch.randperm(24).split(6)],
            of=(x, y),
            changes=[net],
            clip=clip,
            rates=rates and [rates * (1 - n / 40) for n in range(40)],
        )
    return net.state_dict(), optimizer.state_dict()["state"]


KINDS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
}


@pytest.mark.slow
@pytest.mark.parametrize("clip", quick([0.0, 0.1], 0.1))
@pytest.mark.parametrize("rates", quick([None, 0.02], 0.02))
@pytest.mark.parametrize("kind", KINDS)
def test_optimisers(kind, rates, clip, gpu):
    expected = fitted(Server(replays=False), KINDS[kind], rates=rates, clip=clip)
    server = Server()
    with gpu.watched() as launches:
        actual = fitted(server, KINDS[kind], rates=rates, clip=clip)
    assert sum(what == "graph" for _, what in launches) > 60, server.notes
    moved = tree_map_only(torch.Tensor, lambda t: t.cpu(), actual)
    torch.testing.assert_close(moved[0], expected[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(moved[1], expected[1], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_another_optimiser_runs_its_code(gpu):
    server = Server()
    fitted(server, lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.9)))
    assert server.notes == ["the server's steps run one operation at a time: Adam"] * 2
