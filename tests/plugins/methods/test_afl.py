"""Tests of AFL: the aggregate against the regression on all samples, splits and traffic."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from linear_heads import counted_once, drawn, split_at_random, upload_of
from toy_federation import Toy

from protofl_plugins.methods.afl import AFL

C, K = 5, 12


def ridge(X, y, ridge):
    """Return (XᵀX + ridge·I)⁻¹·XᵀY, K×C."""
    Y = torch.nn.functional.one_hot(y, C).double()
    return torch.linalg.solve(X.T @ X + ridge * torch.eye(X.shape[1], dtype=X.dtype), X.T @ Y)


def federated(X, y, clients, seed, **options):
    """Return W of the federation, K×C, and the least samples and classes of a client."""
    config = AFL.Config(**options)
    split = split_at_random(len(y), clients, seed)
    uploads = {i: upload_of(AFL(), config, X[rows], y[rows], C) for i, rows in split.items()}
    server = SimpleNamespace(
        config=config,
        num_classes=C,
        state={},
        device=X.device,
        clients=dict.fromkeys(range(clients), SimpleNamespace(architecture="net")),
    )
    found = AFL().server_aggregate(server, uploads)
    W = torch.zeros(C, X.shape[1], dtype=X.dtype)
    W[found["classes@net"]] = found["discriminants@net"]
    least = min(len(rows) for rows in split.values())
    return W.T, least, min(len(upload["classes"]) for upload in uploads.values())


def off(found, expected):
    """Return the relative difference of two matrices."""
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("clients", [1, 4, 30])
@pytest.mark.parametrize("stays", [0.0, 0.5])
@pytest.mark.parametrize("gamma", [1e-2, 1.0, 100.0])
def test_it_equals_the_regression_on_all_samples(seed, clients, stays, gamma):
    X, y = drawn(120, K, C - seed % 2, seed)  # in some cases nobody has the last class
    W, least, classes = federated(X, y, clients, seed, lambda_=stays, gamma=gamma)
    assert off(W, ridge(X, y, stays)) < 1e-10
    if clients == 30:
        assert least < K and classes < C - 1


def test_it_equals_the_papers_pairwise_law():
    """The law as printed, with inverses, client after client, and the removal at the end."""
    gamma, clients = 0.7, 6
    X, y = drawn(80, K, C, seed=3)
    eye = torch.eye(K, dtype=X.dtype)
    split = split_at_random(len(y), clients, seed=3)
    W, C_u = None, None
    for rows in split.values():
        C_v, W_v = X[rows].T @ X[rows] + gamma * eye, ridge(X[rows], y[rows], gamma)
        if W is None:
            W, C_u = W_v, C_v
            continue
        R_u, R_v, both = C_u.inverse(), C_v.inverse(), (C_u + C_v).inverse()
        of_u = eye - R_u @ C_v + R_u @ C_v @ both @ C_v
        of_v = eye - R_v @ C_u + R_v @ C_u @ both @ C_u
        W, C_u = of_u @ W + of_v @ W_v, C_u + C_v
    regularised, *_ = federated(X, y, clients, 3, lambda_=clients * gamma, gamma=gamma)
    assert off(regularised, W) < 1e-9
    W = W + clients * gamma * (C_u - clients * gamma * eye).inverse() @ W
    assert off(federated(X, y, clients, 3, gamma=gamma)[0], W) < 1e-9


def test_dependent_features_give_the_smallest_weights():
    X, y = drawn(60, K, C, seed=4)
    X = torch.cat([X, X[:, :3], torch.zeros(60, 1, dtype=X.dtype)], 1)
    W, *_ = federated(X, y, 7, 4)
    expected = torch.linalg.pinv(X) @ torch.nn.functional.one_hot(y, C).double()
    assert off(W, expected) < 1e-9


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def test_solutions_travel_once_and_all_rounds_count(data_dir):
    counted_once("afl", {"ridge", "classes", "gram"}, data_dir)


def test_clients_of_different_heads_take_the_same(data_dir):
    toy = Toy("afl", data_dir, models="heads", set={"scope": "all"}, same_init=True)
    record = toy.rounds(1)[-1]
    assert toy.global_state["discriminants"].shape == (6, 12)
    assert record["train_loss"] == 0
