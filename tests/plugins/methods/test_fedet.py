"""Tests of FedET against loops: server step, shared layer; the server's model is not sent."""

from __future__ import annotations

import pytest
import torch
from public_toy import (
    DoubleServer,
    Public,
    check_the_papers_run,
    slow_kl,
    slow_log_softmax,
    slow_scores,
    slow_training,
    slow_weights,
)

import protofl as pf
from protofl_plugins.methods.fedet import FedET

CLIENTS = ("dense", "wide..", "dense")
SMALL = {"server_model": "normed"}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def uploads_of(server, spread=1.0):
    models, uploads = [], {}
    for i, name in enumerate(CLIENTS):
        model = server.build(name)
        with torch.no_grad():
            for p in model.parameters():
                push = torch.randn(p.shape, generator=torch.Generator().manual_seed(i)).double()
                p += spread * push
        models.append(model)
        uploads[i] = pf.models.pack_weights(model, "model")
    return models, uploads


@pytest.mark.parametrize(("lambda_", "kind"), [(0.0, "sgd"), (0.4, "sgd"), (0.4, "adam")])
def test_server_step(lambda_, kind):
    given = {"server_epochs": 3, "server_lr": 0.05, "server_optimizer": kind}
    config = FedET.Config(**{"lambda": lambda_}, server_model="s", **given)
    server = DoubleServer(config, samples=24, clients=CLIENTS)
    server.global_state.merge(FedET().setup_server(server))
    models, uploads = uploads_of(server)
    server.global_state.merge(FedET().server_aggregate(server, uploads))
    found, model = FedET().server_train(server, uploads), server.build("s")

    with torch.no_grad():
        for key in ("weight", "bias"):
            mean = sum(getattr(m.head, key) for m in models) / 3
            getattr(model.head, key).copy_(mean)
        x = server.public.x
        z = [[slow_scores(m, row)[1] for row in x] for m in models]
    alpha = slow_weights([[[v.item() for v in row] for row in client] for client in z])
    targets = []
    for n in range(24):
        S = [sum(alpha[i][n] * z[i][n][c] for i in range(3)) for c in range(4)]
        label = max(range(4), key=S.__getitem__)
        V = [i for i in range(3) if max(range(4), key=z[i][n].__getitem__) != label]
        total = sum(alpha[i][n] for i in V)
        s_div = [sum(alpha[i][n] * z[i][n][c] for i in V) / total for c in range(4)] if V else None
        targets.append((label, s_div))
    assert {s_div is None for _, s_div in targets} == {True, False}

    def loss(n):
        label, s_div = targets[n]
        scores = slow_scores(model, x[n])[1]
        ce = -slow_log_softmax(scores)[label]
        return ce if s_div is None else ce + lambda_ * slow_kl(scores, s_div)

    orders = server.orders["shuffle"]
    slow_training(model, orders, loss, lambda step: 0.05, kind=kind, momentum=0.9)
    for ours, theirs in zip(server.modules["model"].parameters(), model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-10)
    # Every architecture gets the server's head; no other layer of its model is sent.
    assert set(found) == {f"model@{n}/head.{k}" for n in CLIENTS for k in ("weight", "bias")}
    for name in CLIENTS:
        assert torch.allclose(found[f"model@{name}/head.weight"], model.head.weight, rtol=1e-8)


def test_where_nobody_dissents_there_is_no_diversity():
    def trained(lambda_):
        config = FedET.Config(**{"lambda": lambda_}, server_model="s")
        server = DoubleServer(config, clients=("dense",))
        server.global_state.merge(FedET().setup_server(server))
        upload = {0: pf.models.pack_weights(server.build("dense"), "model")}
        FedET().server_train(server, upload)
        return torch.cat([p.flatten() for p in server.modules["model"].parameters()])

    assert torch.equal(trained(0.0), trained(5.0))
    assert torch.isfinite(trained(5.0)).all()


@pytest.mark.parametrize(("aggregate", "shares"), [("weighted", (3, 5)), ("uniform", (1, 1))])
def test_average(aggregate, shares):
    server = DoubleServer(FedET.Config(aggregate=aggregate), clients=CLIENTS)
    models, uploads = uploads_of(server)
    for i, upload in uploads.items():
        upload["samples"] = torch.tensor(3 + i)
    found = FedET().server_aggregate(server, uploads)
    for name, first in models[0].named_parameters():
        other = dict(models[2].named_parameters())[name]
        mean = (shares[0] * first + shares[1] * other) / sum(shares)
        assert torch.allclose(found[f"model@dense/{name}"], mean, rtol=1e-12)


def test_rounds(data_dir):
    toy = Public("fedet", data_dir, {**SMALL, "aggregate": "weighted"}, dry=True).after(2)
    model = toy.view.modules["model"]
    for job in toy.jobs(0) + toy.jobs(1):
        own = toy.client(job.client).model
        assert set(job.down) == set(pf.models.pack_weights(own, "model"))
    # All clients start with the same head; at the end, every head is the server's.
    heads = [job.down["model/head.weight"] for job in toy.jobs(0)]
    assert all(torch.equal(head, heads[0]) for head in heads)
    for name in ("dense", "normed"):
        key = f"model@{name}/head.weight"
        assert torch.equal(toy.view.global_state[key], model.head.weight)
    assert 0 <= toy.lines[1]["extra"]["server_test_accuracy"] <= 1
    plain = Public("fedet", data_dir, SMALL).after(1)
    assert "samples" not in plain.jobs(0)[0].up


def test_epochs_and_refusals(data_dir):
    plan = Public("fedet", data_dir, {**SMALL, "epochs": "paper"}).plan
    assert plan.settings.local_epochs == 10
    check_the_papers_run("fedet", data_dir, SMALL)
    config = plan.composition.configs["fedet"]
    assert (config.server_epochs, config.server_optimizer, config.server_lr) == (10, "adam", 1e-3)
    config = FedET.Config(server_lr=0.01)
    assert (config.server_epochs, config.server_optimizer, config.server_lr) == (1, "sgd", 0.01)
    for set, options, text in (
        (SMALL, {"public": 0}, "--public N"),
        ({"server_model": "resnet99"}, {}, "one of these works: cnn4, dense, normed"),
        ({"server_model": "dense"}, {"models": "heads"}, "share the classifier"),
    ):
        with pytest.raises(pf.UsageError) as caught:
            Public("fedet", data_dir, set, **options)
        assert text in str(caught.value)
