"""Tests of FedRep: the contract of all methods, and the parameters that each phase trains."""

from __future__ import annotations

import torch
from protofl_fedrep import FedRep

from protofl.testing import MethodContract, toy


class TestFedRep(MethodContract):
    plugin = FedRep


def federation(folder, **options):
    extra = {("method", "own"): FedRep}  # next to the installed method
    plan = toy.make_plan("own", folder, models=toy.group(toy.NORM), extra=extra, **options)
    return toy.Toy(plan)


def test_each_phase_moves_its_part(tmp_path):
    """A plain loop trains the head on fixed features, then the extractor, to the same weights."""
    one = {"tau": 1, "body_epochs": 1}
    simulation = federation(tmp_path, batch_size=1000, options={"own": one}, lr=0.1)
    plan = simulation.plan
    model = plan.initial_model(0, 0)
    model.extractor.load_state_dict(plan.info.build("norm", 0).extractor.state_dict())
    simulation.rounds(1)
    model.train()
    rows = plan.split(0).train(0)
    samples = plan.samples(rows, False)
    x, y = torch.cat([*samples.chunks(1000)]), samples.y
    for module in (model.head, model.extractor):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, [*module.parameters()])
        with torch.no_grad():
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    trained = simulation.client(0).model.state_dict()
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(trained[name], expected, rtol=1e-4, atol=1e-5)


def test_clients_share_the_body_and_keep_their_heads(tmp_path):
    simulation = federation(tmp_path)
    simulation.rounds(2)
    heads = [simulation.client(c).model.head.weight for c in range(4)]
    assert not any(torch.equal(heads[0], other) for other in heads[1:])
    names = {key.partition("/")[0] for key in simulation.server.global_state}
    assert names == {"body"}


def test_it_trains_the_models_of_protofls_fedrep(tmp_path):
    """With one batch an epoch, as the order of samples depends on the names of phases."""
    own = federation(tmp_path, batch_size=1000, options={"own": {"tau": 2}})
    options = {"fedrep": {"head_epochs": 2}}
    plan = toy.make_plan(
        "fedrep", tmp_path, models=toy.group(toy.NORM), batch_size=1000, options=options
    )
    shipped = toy.Toy(plan)
    own.rounds(2)
    shipped.rounds(2)
    for client in range(4):
        expected = shipped.client(client).model.state_dict()
        for name, tensor in own.client(client).model.state_dict().items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)
