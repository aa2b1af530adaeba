"""Tests of FedSAM: the contract of all methods, and its rounds against a plain loop."""

from __future__ import annotations

import pytest
import torch
from protofl_fedsam import FedSAM
from torch.nn.functional import cross_entropy

from protofl.testing import MethodContract, toy
from protofl.testing.equality import double_precision, ragged_images


class TestFedSAM(MethodContract):
    plugin = FedSAM


def federation(folder, rho, engine):
    plan = toy.make_plan(
        "own",
        folder,
        data=ragged_images(),
        models=toy.group(toy.CNN),
        extra={("method", "own"): FedSAM},  # beside the installed method
        options={"own": {"rho": rho}},
        engine=engine,
        lr=0.1,
        batch_size=1000,
    )
    return toy.Toy(plan)


def sam_step(model, x, y, rho, lr):
    """Do a step as Algorithm 1 says: move to w̃, take the gradient there, go back, and step."""
    parameters = [*model.parameters()]
    g = torch.autograd.grad(cross_entropy(model(x), y), parameters)
    length = sum(each.square().sum() for each in g).sqrt()
    with torch.no_grad():
        for parameter, each in zip(parameters, g, strict=True):
            parameter += rho * each / length
    worst = torch.autograd.grad(cross_entropy(model(x), y), parameters)
    with torch.no_grad():
        for parameter, each, there in zip(parameters, g, worst, strict=True):
            parameter -= rho * each / length + lr * there


@pytest.mark.parametrize("engine", ["eager", "vmapped"])
@pytest.mark.parametrize("rho", [0.5, 0.0])
def test_rounds_equal_a_plain_loop(tmp_path, rho, engine):
    """In float64, with one batch a round: every client steps, and the server takes the mean."""
    with double_precision():
        simulation = federation(tmp_path, rho, engine)
        plan = simulation.plan
        w = plan.info.build("cnn", 0).state_dict()
        simulation.rounds(3)
        for _ in range(3):
            trained = []
            for client in range(6):
                model = plan.initial_model(client, 0)
                model.load_state_dict(w)
                samples = plan.samples(plan.split(0).train(client), False)
                sam_step(model.train(), torch.cat([*samples.chunks(1000)]), samples.y, rho, 0.1)
                trained.append(model.state_dict())
            w = {name: sum(each[name] for each in trained) / len(trained) for name in w}
    for name, expected in w.items():
        found = simulation.server.global_state[f"model/{name}"]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
