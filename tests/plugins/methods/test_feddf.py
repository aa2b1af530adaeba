"""Tests of FedDF against loops: one model per architecture, distillation, early stopping."""

from __future__ import annotations

import math

import pytest
import torch
from public_toy import (
    DoubleServer,
    Public,
    check_the_papers_run,
    slow_kl,
    slow_scores,
    slow_training,
)

import protofl as pf
from protofl_plugins.methods.feddf import FedDF

CLIENTS = ("dense", "wide..", "dense")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def uploads_of(server):
    """Return models and uploads of clients: initial weights plus noise that differs by client."""
    models, uploads = [], {}
    for i, name in enumerate(CLIENTS):
        model = server.build(name)
        with torch.no_grad():
            for p in model.parameters():
                p += torch.randn(p.shape, generator=torch.Generator().manual_seed(i)).double()
        models.append(model)
        uploads[i] = pf.models.pack_weights(model, "model")
        uploads[i]["samples"] = torch.tensor(3 + i)
    return models, uploads


@pytest.mark.parametrize(("aggregate", "shares"), [("weighted", (3, 5)), ("uniform", (1, 1))])
def test_average(aggregate, shares):
    server = DoubleServer(FedDF.Config(aggregate=aggregate), clients=CLIENTS)
    models, uploads = uploads_of(server)
    found = FedDF().server_aggregate(server, uploads)
    for name, first in models[0].named_parameters():
        other = dict(models[2].named_parameters())[name]
        mean = (shares[0] * first + shares[1] * other) / sum(shares)
        assert torch.allclose(found[f"model@dense/{name}"], mean, rtol=1e-12)
    for name, own in models[1].named_parameters():
        assert torch.allclose(found[f"model@wide../{name}"], own, rtol=1e-12)


def test_distillation():
    config = FedDF.Config(server_epochs=3, server_lr=0.02)
    server = DoubleServer(config, clients=CLIENTS)
    models, uploads = uploads_of(server)
    server.global_state.merge(FedDF().server_aggregate(server, uploads))
    students = {name: server.build(name) for name in ("dense", "wide..")}
    for name, student in students.items():
        pf.models.load_weights(student, server.global_state, f"model@{name}")
    found = FedDF().server_train(server, uploads)
    x = server.public.x
    with torch.no_grad():
        each = [[slow_scores(model, row)[1] for row in x] for model in models]
    teacher = [[sum(m[n][c] for m in each) / 3 for c in range(4)] for n in range(12)]
    for name, student in students.items():
        slow_training(
            student,
            server.orders[f"shuffle {name}"],
            lambda n, student=student: slow_kl(slow_scores(student, x[n])[1], teacher[n]),
            lambda step: 0.02 * (1 + math.cos(math.pi * (step - 1) / 9)) / 2,
            kind="adam",
        )
        for key, weight in student.named_parameters():
            assert torch.allclose(found[f"model@{name}/{key}"], weight, rtol=1e-7, atol=1e-10)


@pytest.mark.slow
def test_rounds(data_dir):
    toy = Public("feddf", data_dir, dry=True).after(2)
    for number in (0, 1):
        for job in toy.jobs(number):
            own = toy.client(job.client).model
            assert set(job.down) == set(pf.models.pack_weights(own, "model"))
            assert set(job.up) - {"samples"} == set(job.down)
    # Clients of one architecture download the same model.
    assert torch.equal(
        toy.jobs(1)[0].down["model/head.weight"], toy.jobs(1)[2].down["model/head.weight"]
    )
    plain = Public("feddf", data_dir, {"aggregate": "uniform"}).after(1)
    assert "samples" not in plain.jobs(0)[0].up


def test_an_absent_architecture_stays(data_dir):
    toy = Public("feddf", data_dir, participation=0.25)
    before = {k: v.clone() for k, v in toy.view.global_state.items()}
    toy.rounds(1)
    here = toy.view.clients[toy.jobs(0)[0].client].architecture
    for key, old in before.items():
        if "/buffer/" not in key:
            moved = not torch.equal(old, toy.view.global_state[key])
            assert moved == key.startswith(f"model@{here}/")


def test_without_distillation_it_averages(data_dir):
    toy = Public("feddf", data_dir, {"server_epochs": 0}).after(1)
    first, second = (toy.jobs(0)[i].up for i in (0, 2))
    n = [int(u["samples"]) for u in (first, second)]
    mean = (n[0] * first["model/head.weight"] + n[1] * second["model/head.weight"]) / sum(n)
    assert torch.allclose(toy.view.global_state["model@dense/head.weight"], mean, atol=1e-7)


def test_epochs_and_refusals(data_dir):
    plan = Public("feddf", data_dir, {"epochs": "paper"}).plan
    assert plan.settings.local_epochs == 30
    check_the_papers_run("feddf", data_dir)
    assert plan.composition.configs["feddf"].server_epochs == 5
    with pytest.raises(pf.UsageError) as caught:
        Public("feddf", data_dir, {}, public=0)
    assert "--public N" in str(caught.value)
