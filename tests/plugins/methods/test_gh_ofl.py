"""Tests of GH-OFL: its heads against loops over samples, for any split, and trained heads."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from linear_heads import counted_once, drawn, features_of, split_at_random, upload_of
from toy_federation import ONE_CLASS, Toy

import protofl as pf
from protofl_plugins.methods.gh_ofl import (
    EPSILON,
    GHOFL,
    covariances,
    fisher_subspace,
    pooled_covariance,
    shrunk,
)

C, K = 5, 6
CLOSED = ("nb-diag", "lda", "qda")
QUICK = {"syn_ns_per_class": 40, "epochs": 2}


def of_class(X, y, c):
    return [x for x, label in zip(X, y.tolist(), strict=True) if label == c]


def slow_covariances(X, y):
    """Return {class: its mean}, Σ and {class: Σ_c} by loops over samples about the means."""
    means, own, total, classes = {}, {}, torch.zeros(K, K, dtype=X.dtype), set(y.tolist())
    for c in classes:
        rows = of_class(X, y, c)
        means[c] = sum(rows) / len(rows)
        scatter = sum(torch.outer(x - means[c], x - means[c]) for x in rows)
        own[c] = scatter / (len(rows) - 1) if len(rows) > 1 else None
        total += scatter
    pooled = total / (len(y) - len(classes))
    return means, pooled, {c: pooled if S is None else S for c, S in own.items()}


def slow_shrunk(S, alpha):
    mean = sum(S[k, k] for k in range(K)) / K
    eye = torch.eye(K, dtype=S.dtype)
    return (1 - alpha) * S + alpha * mean * eye + EPSILON * eye


def slow_scores(X, y, at, head, config):
    """Return the scores of samples ``at`` by the densities of the classes; −∞ without samples."""
    means, pooled, own = slow_covariances(X, y)
    scores = torch.full((len(at), C), -math.inf, dtype=X.dtype)
    for c, mu in means.items():
        rows = of_class(X, y, c)
        if head == "nb-diag":
            v = sum((x - mu) ** 2 for x in rows) / len(rows)
            S = torch.diag(v.clamp(min=EPSILON))
        elif head == "lda":
            S = slow_shrunk(pooled, config.lda_shrink)
        else:
            S = slow_shrunk(own[c], config.qda_shrink)
        for n, x in enumerate(at):
            score = math.log(len(rows) / len(y)) - (x - mu) @ S.inverse() @ (x - mu) / 2
            scores[n, c] = score - (0 if head == "lda" else S.logdet() / 2)
    return scores


def served(X, y, config, *, clients=9, seed=0):
    """Return the server's answer to the uploads of clients that share the samples."""
    method, split = GHOFL(), split_at_random(len(y), clients, seed)
    uploads = {i: upload_of(method, config, X[rows], y[rows], C) for i, rows in split.items()}
    server = SimpleNamespace(
        config=config,
        num_classes=C,
        state={},
        device=X.device,
        epochs=range,
        generator=lambda purpose: torch.Generator().manual_seed(len(purpose)),
        clients=dict.fromkeys(range(clients), SimpleNamespace(architecture="net")),
    )
    found = method.server_aggregate(server, uploads)
    return pf.Payload({name.removesuffix("@net"): tensor for name, tensor in found.items()})


def scores_of(received, config, at):
    client = SimpleNamespace(
        config=config, received=received, num_classes=C, feature_dim=K, features=lambda x: x
    )
    return GHOFL().inference(client, at).double()


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("head", CLOSED)
@pytest.mark.parametrize("shrink", [None, 0.0, 1.0])
def test_scores_equal_the_densities_for_any_split(head, shrink):
    X, y = drawn(60, K, C - 1, seed=1)  # nobody has the last class
    y[y == 3], y[0] = 2, 3  # and the one before has a single sample
    given = {} if shrink is None else {"lda_shrink": shrink, "qda_shrink": shrink}
    config = GHOFL.Config(head=head, **given)
    at = drawn(7, K, C, seed=5)[0]
    wanted = slow_scores(X, y, at, head, config)
    wanted = wanted - wanted[:, :1]  # lda leaves out what all classes have in common
    for seed in range(3):
        found = served(X, y, config, seed=seed)
        W, known = found.table("discriminants", C)
        assert known.tolist() == [True, True, True, True, False]
        linear = at @ W.T + found.table("offsets", C)[0]
        if head == "nb-diag":
            linear -= at.square() @ found.table("inverse_variances", C)[0].T / 2
        if head == "qda":
            P = found.table("precisions", C)[0]
            linear -= torch.stack([(at @ P[c] * at).sum(1) for c in range(C)], 1) / 2
        sent = (linear - linear[:, :1]).masked_fill(~known, -torch.inf)
        # The class of one sample has variances of ε in nb-diag, so its scores are large numbers.
        torch.testing.assert_close(sent, wanted, rtol=1e-8, atol=1e-9)
        scores = scores_of(found, config, at)
        torch.testing.assert_close(scores - scores[:, :1], wanted, rtol=1e-5, atol=1e-3)


def test_clients_send_only_what_the_head_needs():
    X, y = drawn(30, K, C, seed=2)
    keys = {"feature_sums", "counts", "classes"}
    for head, moments, shape in (
        ("nb-diag", "feature_squares", (C, K)),
        ("lda", "gram", (K, K)),
        ("qda", "class_grams", (C, K, K)),
        ("fisher-mix", "class_grams", (C, K, K)),
        ("proto-hyper", "class_grams", (C, K, K)),
    ):
        sent = upload_of(GHOFL(), GHOFL.Config(head=head), X, y, C)
        assert sent.keys() == {*keys, moments} and sent[moments].shape == shape


def moments_of(X, y, classes=C):
    """Return μ_c, N_c, Σ_c and Σ."""
    A = torch.zeros(classes, X.shape[1], dtype=X.dtype).index_add(0, y, X)
    N = torch.bincount(y, minlength=classes).to(X.dtype)
    S = torch.stack([X[y == c].T @ X[y == c] for c in range(classes)])
    mu = A / N.clamp(min=1).unsqueeze(1)
    return mu, N, covariances(mu, N, S), pooled_covariance(mu, N, S)


def test_the_fisher_subspace_is_that_of_the_generalised_eigenproblem():
    X, y = drawn(80, K, C, seed=3)
    mu, N, _, pooled = moments_of(X, y)
    S, pi = shrunk(pooled, 0.05), N / N.sum()
    between = sum(
        p * torch.outer(m, m) for p, m in zip(pi, mu - (pi.unsqueeze(1) * mu).sum(0), strict=True)
    )
    values = torch.linalg.eigvals(S.inverse() @ between).real.sort(descending=True).values
    V = fisher_subspace(mu, pi, S, 1.0, 99)
    k = V.shape[1]
    eye = torch.eye(k, dtype=X.dtype)
    # So lda and the spherical naive Bayes of the published code are one teacher.
    torch.testing.assert_close(V.T @ S @ V, eye, rtol=0, atol=1e-9)
    torch.testing.assert_close(V.T @ between @ V, torch.diag(values[:k]), rtol=1e-8, atol=1e-9)
    assert fisher_subspace(mu, pi, S, 1.0, 2).shape == (K, 2)
    first = (values[0] / values.sum()).item()
    assert fisher_subspace(mu, pi, S, first - 1e-6, 99).shape == (K, 1)
    assert fisher_subspace(mu, pi, S, first + 1e-6, 99).shape == (K, 2)


def test_trained_heads_start_from_nothing_and_from_lda():
    X, y = drawn(90, K, C, seed=4)
    at = drawn(50, K, C, seed=6)[0]
    off = {"epochs": 0, "syn_ns_per_class": 3, "fisher_energy": 1.0}
    nothing = served(X, y, GHOFL.Config(head="fisher-mix", **off))
    assert not nothing["discriminants"].any() and not nothing["offsets"].any()
    # In the subspace of all directions between classes, the residual's start is lda.
    found = [
        scores_of(served(X, y, config), config, at)
        for config in (GHOFL.Config(head="proto-hyper", **off), GHOFL.Config(head="lda"))
    ]
    start, lda = (scores - scores[:, :1] for scores in found)
    torch.testing.assert_close(start, lda, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", ["fisher-mix", "proto-hyper"])
def test_trained_heads_learn_the_classes(head):
    X, y = drawn(300, K, C, seed=7)
    X = X + 2 * torch.nn.functional.one_hot(y, K)
    config = GHOFL.Config(head=head, syn_ns_per_class=100, epochs=1000)
    own = (scores_of(served(X, y, config), config, X).argmax(1) == y).double().mean()
    lda = GHOFL.Config()
    assert own > (scores_of(served(X, y, lda), lda, X).argmax(1) == y).double().mean() - 0.05 > 0.8


def test_clients_of_an_architecture_share_a_head(data_dir):
    toy = Toy("gh-ofl", data_dir, same_init=True, set={"head": "qda"})
    toy.rounds(1)
    for first in (0, 1):  # two architectures take turns
        found = [features_of(toy, client) for client in (first, first + 2)]
        X, y = (torch.cat(each) for each in zip(*found, strict=True))
        _, _, S, _ = moments_of(X, y, 6)
        there = torch.bincount(y, minlength=6) > 0
        P = shrunk(S, 0.1)[there].inverse()
        torch.testing.assert_close(toy.down[0, first]["precisions"], P, rtol=1e-6, atol=1e-6)


def test_sums_travel_once_and_all_rounds_count(data_dir):
    counted_once("gh-ofl", {"feature_sums", "counts", "classes", "gram"}, data_dir)


@pytest.mark.parametrize("head", ["nb-diag", "qda", "fisher-mix", "proto-hyper"])
def test_clients_of_one_class_have_one_head(head, data_dir):
    options = {"scope": "all", "head": head, **QUICK}
    toy = Toy("gh-ofl", data_dir, set=options, clients=6, **ONE_CLASS)
    toy.rounds(1)
    assert toy.global_state["discriminants"].shape == (6, 12)
    assert toy.global_state["discriminants"].isfinite().all()
