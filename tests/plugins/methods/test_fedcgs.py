"""Tests of FedCGS: the Gaussian head against loops, splits, traffic and its options."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from linear_heads import counted_once, drawn, features_of, sent_by, split_at_random, upload_of
from toy_federation import ONE_CLASS, Toy

import protofl as pf
from protofl_plugins.methods.fedcgs import FedCGS, gaussian_head


def slow_head(X, y, C, covariance, gamma):
    """Return W and b by loops over samples; classes without samples get zeros and −∞."""
    X, y, n, K = X.tolist(), y.tolist(), len(y), X.shape[1]
    counts = [y.count(c) for c in range(C)]
    means = [
        [sum(x[k] for x, c in zip(X, y, strict=True) if c == own) / max(counts[own], 1)
         for k in range(K)]
        for own in range(C)
    ]  # fmt: skip
    mean = [sum(x[k] for x in X) / n for k in range(K)]
    sigma = [[gamma * (j == k) for k in range(K)] for j in range(K)]
    freedom = n - (1 if covariance == "global" else sum(count > 0 for count in counts))
    for x, c in zip(X, y, strict=True):
        middle = mean if covariance == "global" else means[c]
        for j in range(K):
            for k in range(K):
                sigma[j][k] += (x[j] - middle[j]) * (x[k] - middle[k]) / freedom
    inverse = torch.linalg.inv(torch.tensor(sigma, dtype=torch.float64)).tolist()
    W = [[sum(m[j] * inverse[j][k] for j in range(K)) for k in range(K)] for m in means]
    b = [
        math.log(count / n) - sum(w * m for w, m in zip(W[c], means[c], strict=True)) / 2
        if count
        else -math.inf
        for c, count in enumerate(counts)
    ]
    return torch.tensor(W, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)


@pytest.mark.parametrize("covariance", ["global", "within"])
@pytest.mark.parametrize("gamma", [0.0, 0.3])
def test_the_head_equals_a_loop_for_any_split(covariance, gamma):
    C, K = 5, 6
    X, y = drawn(60, K, C - 1, seed=1)  # nobody has the last class
    W, b = slow_head(X, y, C, covariance, gamma)
    config = FedCGS.Config(covariance=covariance, gamma=gamma)
    for seed in range(4):
        uploads = {
            client: upload_of(FedCGS(), config, X[rows], y[rows], C)
            for client, rows in split_at_random(len(y), 9, seed).items()
        }
        server = SimpleNamespace(
            config=config, num_classes=C, state={}, device=X.device, clients=ONE_ARCHITECTURE
        )
        found = FedCGS().server_aggregate(server, uploads)
        assert found["classes@net"].tolist() == [0, 1, 2, 3]
        torch.testing.assert_close(found["discriminants@net"], W[:4], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found["offsets@net"], b[:4], rtol=1e-9, atol=1e-9)


ONE_ARCHITECTURE = dict.fromkeys(range(9), SimpleNamespace(architecture="net"))


def test_features_that_never_vary_are_left_out():
    X, y = drawn(40, 5, 3, seed=2)
    constant = torch.cat([X, torch.full((40, 1), 3.0, dtype=X.dtype), X[:, :1]], 1)
    A = torch.zeros(3, 7, dtype=X.dtype).index_add(0, y, constant)
    N = torch.bincount(y).to(X.dtype)
    W, b = gaussian_head(A, N, constant.T @ constant)
    plain_W, plain_b = slow_head(X, y, 3, "global", 0.0)
    expected = X @ plain_W.T + plain_b
    torch.testing.assert_close(constant @ W.T + b, expected, rtol=1e-9, atol=1e-9)


def test_one_sample_and_one_class_give_the_shares():
    x = torch.ones(1, 3, dtype=torch.float64)
    A, N = torch.cat([x, 0 * x]), torch.tensor([1.0, 0.0], dtype=torch.float64)
    for covariance in ("global", "within"):
        W, b = gaussian_head(A, N, x.T @ x, covariance)
        assert not W.any() and b.tolist() == [0.0, -math.inf]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def test_clients_of_an_architecture_share_a_head(data_dir):
    toy = Toy("fedcgs", data_dir, same_init=True)
    toy.rounds(1)
    for first in (0, 1):  # two architectures take turns
        found = [features_of(toy, client) for client in (first, first + 2)]
        X, y = (torch.cat(each) for each in zip(*found, strict=True))
        A = torch.zeros(6, X.shape[1], dtype=X.dtype).index_add(0, y, X)
        W, b = gaussian_head(A, torch.bincount(y, minlength=6).to(X.dtype), X.T @ X)
        view = pf.Client(toy.client(first), "fedcgs")
        view._state.received = toy.down[0, first]
        scores = FedCGS().inference(view, toy.client(first).train.inputs())
        expected = found[0][0] @ W.T + b
        torch.testing.assert_close(scores.double(), expected, rtol=1e-4, atol=1e-4)


def test_sums_travel_once_and_all_rounds_count(data_dir):
    counted_once("fedcgs", {"feature_sums", "counts", "classes", "gram"}, data_dir)


def test_one_head_for_all_and_lonely_classes(data_dir):
    toy = Toy("fedcgs", data_dir, set={"scope": "all"}, clients=6, **ONE_CLASS)
    toy.rounds(1)
    assert all(len(upload["classes"]) == 1 for upload in sent_by(toy).values())
    assert toy.global_state["discriminants"].shape == (6, 12)


@pytest.mark.parametrize("method", ["fedcgs", "afl", "gh-ofl"])
def test_unseen_clients_need_no_training(method, tmp_path):
    run = pf.run(
        method,
        models="mlp",
        dataset="wine",
        clients=6,
        unseen=2,
        set={"models.only": "mlp2"},
        backend="local",
        device="cpu",
        out=tmp_path / "run",
        data_dir=tmp_path,
    )
    (record,) = run.record
    assert record["unseen_accuracy"] > 0.8
    assert record["fine_tuned_accuracy"] == record["unseen_accuracy"]
