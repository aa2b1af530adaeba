"""Tests of FedPFT: mixtures against scikit-learn, samples, traffic and clients of few samples."""

from __future__ import annotations

import pytest
import torch
from linear_heads import drawn, sent_by, upload_of
from sklearn.mixture import GaussianMixture
from toy_federation import ONE_CLASS, Toy

from protofl_plugins.methods.fedpft import FedPFT
from protofl_plugins.shared import gaussian_mixtures
from protofl_plugins.shared.gaussian_mixtures import Mixtures, first_responsibilities, maximised

C, K = 4, 3
KINDS = ("spherical", "diag", "full")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def by_scikit_learn(X, start, kind, iterations):
    """Return w, μ and Σ after some iterations from a mixture of one class."""
    weights, means, S = (part[0].numpy() for part in start)
    precisions = torch.linalg.inv(start.covariances[0]).numpy() if kind == "full" else 1 / S
    model = GaussianMixture(
        len(weights),
        covariance_type=kind,
        tol=gaussian_mixtures.TOLERANCE,
        max_iter=iterations,
        weights_init=weights,
        means_init=means,
        precisions_init=precisions,
    )
    return model.fit(X.numpy())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_mixtures_equal_those_of_scikit_learn(kind, components):
    X, y = drawn(403, K, C, seed=1)  # classes of unequal sizes
    classes, iterations = torch.tensor([0, 1, 3]), 6
    found = gaussian_mixtures.fit(X, y, classes, components, kind, iterations, seeded())
    # The same start, whose draws need the samples of all classes together.
    rows = [X[y == c] - X[y == c].mean(0) for c in classes]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    there = torch.arange(padded.shape[1]) < torch.tensor([[len(r)] for r in rows])
    start = maximised(padded, first_responsibilities(padded, there, components, seeded()), kind)
    for place, c in enumerate(classes):
        own = Mixtures(*(part[place : place + 1] for part in start))
        middle = X[y == c].mean(0)
        model = by_scikit_learn(X[y == c] - middle, own, kind, iterations)
        for part, wanted in (
            (found.weights, model.weights_),
            (found.means - middle, model.means_),
            (found.covariances, model.covariances_),
        ):
            torch.testing.assert_close(part[place], torch.from_numpy(wanted), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_one_component_is_the_mean_and_the_covariance(kind):
    X, y = drawn(40, K, C, seed=2)
    found = gaussian_mixtures.fit(X + 1e4, y, torch.arange(C), 1, kind, 100, seeded())
    for c in range(C):
        rows = X[y == c]
        S = torch.cov(rows.T, correction=0)
        wanted = {"full": S, "diag": S.diagonal(), "spherical": S.diagonal().mean()}[kind]
        wanted = wanted + 1e-6 * (torch.eye(K) if kind == "full" else 1)
        torch.testing.assert_close(found.covariances[c, 0], wanted, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(found.means[c, 0], rows.mean(0) + 1e4)


@pytest.mark.parametrize("kind", KINDS)
def test_components_are_found(kind):
    """Two clusters far apart in each class, of a third and two thirds of the samples."""
    generator = seeded(3)
    near = torch.randn(300, K, generator=generator, dtype=torch.float64)
    X = torch.cat([near[:100] + 20, near[100:]])
    y = torch.arange(300) % 2
    found = gaussian_mixtures.fit(X, y, torch.tensor([0, 1]), 2, kind, 1000, seeded(4))
    order = found.weights.argsort(1)
    weights = found.weights.gather(1, order)
    torch.testing.assert_close(weights, torch.tensor([[1 / 3, 2 / 3]] * 2).double())
    for c in (0, 1):
        first = X[:100][y[:100] == c].mean(0)
        torch.testing.assert_close(found.means[c, order[c, 0]], first)


def test_equal_samples_have_a_mixture():
    found = gaussian_mixtures.fit(
        torch.ones(4, K), torch.zeros(4).long(), torch.tensor([0]), 3, "full", 10, seeded()
    )
    assert all(part.isfinite().all() for part in found)
    torch.testing.assert_close(found.weights.sum(), torch.tensor(1.0).double())
    torch.testing.assert_close(found.means[0, 0], torch.ones(K).double())


@pytest.mark.parametrize("kind", KINDS)
def test_samples_have_the_moments_of_the_mixtures(kind):
    X, y = drawn(60, K, C, seed=5)
    mixtures = gaussian_mixtures.fit(X, y, torch.arange(C), 2, kind, 50, seeded())
    counts = torch.tensor([40000, 0, 1, 40000])
    drawn_x = gaussian_mixtures.sample(mixtures, counts, seeded(6)).double()
    assert drawn_x.shape == (80001, K)
    for c, rows in ((0, drawn_x[:40000]), (3, drawn_x[40001:])):
        w, mu, S = (part[c] for part in mixtures)
        if kind != "full":
            S = torch.diag_embed(S.unsqueeze(1).expand(-1, K) if kind == "spherical" else S)
        mean = w @ mu
        apart = mu - mean
        cov = (w.view(-1, 1, 1) * (S + apart.unsqueeze(2) * apart.unsqueeze(1))).sum(0)
        torch.testing.assert_close(rows.mean(0), mean, rtol=0, atol=0.05)
        torch.testing.assert_close(torch.cov(rows.T), cov, rtol=0, atol=0.1)


def test_rounded_covariances_can_be_drawn_from():
    """A covariance of rank 1 in float32 has eigenvalues below 0."""
    direction = torch.full((K,), 1e3)
    S = torch.outer(direction, direction) - 1e-3 * torch.eye(K)
    mixtures = Mixtures(torch.ones(1, 1), torch.zeros(1, 1, K), S.view(1, 1, K, K))
    assert gaussian_mixtures.sample(mixtures, torch.tensor([5]), seeded()).isfinite().all()


def test_classes_with_few_samples_are_not_sent():
    X, y = drawn(20, K, C, seed=7)
    y[y == 3] = 2
    y[0] = 3
    config = FedPFT.Config(n_mixtures=1, cov_type="diag")
    method = FedPFT()
    X = X.float()
    sent = upload_of(Seeded(method), config, X, y, C)
    counts = torch.bincount(y, minlength=C)
    assert sent["classes"].tolist() == [0, 1, 2] and sent["counts"].tolist() == counts[:3].tolist()
    assert sent["mixture_covariances"].shape == (3, 1, K)
    sent = upload_of(Seeded(method), FedPFT.Config(n_mixtures=20), X, y, C)
    assert sent["mixture_means"].shape == (0, 20, K)


class Seeded:
    """A method whose client draws its seeds."""

    def __init__(self, method):
        self.method = method

    def upload_payload(self, client):
        client.generator = lambda purpose: seeded()
        return self.method.upload_payload(client)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


KEYS = {"mixture_weights", "mixture_means", "mixture_covariances", "counts", "classes"}


def test_mixtures_travel_once(data_dir):
    toy = Toy("fedpft", data_dir, same_init=True, participation=0.5, rounds=8)
    toy.rounds(8)
    assert sorted(client for _, client in sent_by(toy)) == [0, 1, 2, 3]
    assert all(upload.keys() == KEYS for upload in sent_by(toy).values())


def test_the_head_is_trained_on_all_mixtures(data_dir):
    toy = Toy("fedpft", data_dir, set={"scope": "all", "epochs": 3}, clients=6, **ONE_CLASS)
    toy.rounds(1)
    W = toy.global_state["discriminants"]
    assert W.shape == (6, 12) and (W.norm(dim=1) > 0).all()


def test_without_any_mixture_clients_keep_their_own_head(data_dir):
    toy = Toy("fedpft", data_dir, set={"n_mixtures": 500})
    toy.rounds(2)
    assert "discriminants" not in str(list(toy.global_state))
