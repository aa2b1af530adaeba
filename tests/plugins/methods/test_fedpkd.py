"""Tests of FedPKD against loops: equations, rounds, ablations, options, refusals."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from public_toy import (
    DoubleServer,
    Public,
    check_the_papers_run,
    logits,
    payload,
    slow_kl,
    slow_log_softmax,
    slow_scores,
    slow_training,
    slow_weights,
)
from toy_federation import batch_of, client

from protofl import UsageError
from protofl_plugins.methods.fedpkd import FedPKD, filter_by_prototype

SMALL = {"server_model": "normed"}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def test_private_loss():
    batch, output = batch_of(6, 4, 3)
    P = torch.randn(4, 3, dtype=torch.float64)
    known = torch.tensor([True, False, True, True])
    view = client(FedPKD.Config(epsilon=0.7))
    terms = FedPKD().local_loss(view, batch, output, {"P": P, "known": known})
    ce = align = 0.0
    rows = zip(output.features.tolist(), output.logits.tolist(), batch.y.tolist(), strict=True)
    for feature, scores, y in rows:
        ce -= (scores[y] - math.log(sum(math.exp(s) for s in scores))) / 6
        if known[y]:
            pairs = zip(feature, P[y].tolist(), strict=True)
            align += 0.7 * sum((a - b) ** 2 for a, b in pairs) / 3 / 6
    assert {k: v.item() for k, v in terms.items()} == pytest.approx({"ce": ce, "align": align})
    assert set(FedPKD().local_loss(client(FedPKD.Config()), batch, output, {})) == {"ce"}


def test_public_loss():
    batch, output = batch_of(6, 4, 3)
    batch.phase, batch.y, batch.index = "public", torch.empty(0), torch.tensor([4, 0, 2, 7, 5, 1])
    M_G = logits(1, 8, 4)[0]
    view = client(FedPKD.Config(gamma=0.3))
    terms = FedPKD().local_loss(view, batch, output, {"scores": M_G})
    kl = ce = 0.0
    for scores, row in zip(output.logits, batch.index.tolist(), strict=True):
        kl += 0.3 * slow_kl(list(scores), list(M_G[row])) / 6
        label = max(range(4), key=lambda c: M_G[row, c].item())
        ce -= 0.7 * slow_log_softmax(list(scores))[label] / 6
    assert terms["public_kl"].item() == pytest.approx(kl.item(), rel=1e-10)
    assert terms["public_ce"].item() == pytest.approx(ce.item(), rel=1e-10)


def uploads_of(z, seed=1):
    """Return uploads of clients with two or three of the classes 0, 1 and 2; none has class 3."""
    stream = torch.Generator().manual_seed(seed)
    found = {}
    for i, classes in enumerate(([0, 1], [1, 2], [0, 1, 2])):
        P = torch.randn(len(classes), 3, generator=stream, dtype=torch.float64)
        counts = torch.randint(1, 9, (len(classes),), generator=stream)
        own = {"classes": torch.tensor(classes), "counts": counts}
        found[2 * i] = payload(public_logits=z[i], prototypes=P, **own)
    return found


def slow_prototypes(uploads, mode):
    """Return {class: prototype} by Eq. 8."""
    table = {}
    for j in range(4):
        rows = [
            (u["prototypes"][r], u["counts"][r].item())
            for u in uploads.values()
            for r, c in enumerate(u["classes"].tolist())
            if c == j
        ]
        if rows:
            shares = [1 if mode == "uniform" else n for _, n in rows]
            total = sum(shares) * (len(rows) if mode == "eq3" else 1)
            mixed = sum(s * row for s, (row, _) in zip(shares, rows, strict=True))
            table[j] = mixed / total
    return table


@pytest.mark.parametrize("mode", ["weighted", "uniform", "eq3"])
def test_prototypes(mode):
    uploads = uploads_of(logits(3, 12, 4))
    server = DoubleServer(FedPKD.Config(aggregate=mode))
    found = FedPKD().server_aggregate(server, uploads)
    expected = slow_prototypes(uploads, mode)
    assert found["classes"].tolist() == sorted(expected) == [0, 1, 2]
    for row, j in zip(found["prototypes"], found["classes"].tolist(), strict=True):
        assert torch.allclose(row, expected[j], rtol=1e-12)


@pytest.mark.parametrize(("absent", "known"), [("keep", [0, 1, 3]), ("forget", [1, 3])])
def test_a_class_that_is_absent_from_a_round(absent, known):
    """The class keeps its last prototype, for clients and for the filter, or is forgotten."""
    z = logits(2, 24, 4)

    def upload(classes, seed):
        rows = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed)).double()
        counts = torch.tensor([2, 3])
        own = {"classes": torch.tensor(classes), "counts": counts, "prototypes": rows}
        return {i: payload(public_logits=z[i], **own) for i in range(2)}

    # No training; the filter keeps one sample per pseudo-class with a prototype.
    config = FedPKD.Config(absent=absent, theta=0.01, server_epochs=0)
    server = DoubleServer(config, samples=24)
    server.modules["model"] = server.build("server")
    first, second = upload([0, 1], 1), upload([1, 3], 2)
    for uploads in (first, second):
        update = FedPKD().server_aggregate(server, uploads)
        kept = FedPKD().server_train(server, uploads)["public_index"]
    assert update["classes"].tolist() == known
    last = dict(zip([0, 1], first[0]["prototypes"], strict=True))
    last |= dict(zip([1, 3], second[0]["prototypes"], strict=True))
    for c, row in zip(known, update["prototypes"], strict=True):
        assert torch.allclose(row, last[c], rtol=1e-12)

    beta = slow_weights(z.tolist())
    S = [[sum(beta[m][n] * z[m, n, c] for m in range(2)) for c in range(4)] for n in range(24)]
    label = [max(range(4), key=lambda c, n=n: S[n][c]) for n in range(24)]
    assert label.count(0) > 1
    found = [label[n] for n in kept.tolist()]
    for c in {*label}:
        assert found.count(c) == (1 if c in known else label.count(c))


PLAIN = {"weights": "uniform", "ce": False, "theta": 1, "delta": 1, "gamma": 1, "epsilon": 0}
"""Options of the KD-based method of Eq. 3."""


@pytest.mark.parametrize(
    ("theta", "delta", "kept_count", "options"),
    [
        (0.6, 0.5, None, {}),
        (1.0, 0.3, 12, {}),
        (0.6, 1.0, None, {}),
        (0.6, 0.5, None, {"weights": "uniform"}),
        (0.6, 0.5, None, {"ce": False}),
        (1.0, 1.0, 12, PLAIN),
    ],
)
def test_server_step(theta, delta, kept_count, options):
    config = FedPKD.Config(
        **{"theta": theta, "delta": delta, **options}, server_epochs=3, server_lr=0.02
    )
    server = DoubleServer(config)
    server.modules["model"], model = server.build("server"), server.build("server")
    z = logits(3, 12, 4)
    uploads, x = uploads_of(z), server.public.x
    found = FedPKD().server_train(server, uploads)

    beta = slow_weights(z.tolist())
    if "weights" in options:
        beta = [[1 / 3] * 12] * 3
    P = slow_prototypes(uploads, "weighted")
    S = [[sum(beta[m][n] * z[m, n, c] for m in range(3)) for c in range(4)] for n in range(12)]
    label = [max(range(4), key=lambda c, n=n: S[n][c]) for n in range(12)]
    assert 3 in label  # a pseudo-class without a prototype
    kept = []
    for j in range(4):
        own = [n for n in range(12) if label[n] == j]
        if j in P:
            far = {
                n: math.dist([v.item() for v in slow_scores(model, x[n])[0]], P[j].tolist())
                for n in own
            }
            own = sorted(own, key=far.get)[: math.ceil(theta * len(own) - 1e-9)]
        kept += own
    kept.sort()
    assert found["public_index"].tolist() == kept
    assert len(kept) == (kept_count or len(kept)) and (theta == 1 or len(kept) < 12)

    def loss(position):
        n = kept[position]
        y = label[n]
        features, scores = slow_scores(model, x[n])
        kd = slow_kl(scores, S[n])
        if "ce" not in options:
            kd = kd - slow_log_softmax(scores)[y]
        pull = 0.0
        if y in P:
            pull = sum((a - b) ** 2 for a, b in zip(features, P[y], strict=True)) / 3
        return delta * kd + (1 - delta) * pull

    assert len(server.orders["shuffle"]) == 3
    slow_training(model, server.orders["shuffle"], loss, lambda step: 0.02, kind="adam")
    for row, n in zip(found["public_logits"], kept, strict=True):
        expected = torch.stack(slow_scores(model, x[n])[1])
        assert torch.allclose(row, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_rounds(data_dir):
    toy = Public("fedpkd", data_dir, SMALL, dry=True).after(2)
    for job in toy.jobs(0) + toy.jobs(1):
        assert job.up["public_logits"].shape == (20, 6)
    assert 0 <= toy.lines[0]["extra"]["server_test_accuracy"] <= 1
    plain = Public("fedpkd", data_dir, {**SMALL, "aggregate": "uniform"}).after(1)
    assert "counts" not in plain.jobs(0)[0].up


def test_round(data_dir):
    toy = Public("fedpkd", data_dir, SMALL, participation=0.5).after(3)
    assert all(not job.down for job in toy.jobs(0))
    assert list(toy.lines[0]["loss_terms"]) == ["ce", "public_ce", "public_kl"]
    before = {job.client for job in toy.jobs(0)}
    for number in (1, 2):
        clients = {job.client for job in toy.jobs(number)}
        assert {job.client for job in toy.jobs(number, "after_server")} == clients
        # Clients that hold the last round's download get nothing; the others get all of it.
        for job in toy.jobs(number):
            assert job.held == (job.client in before) == (not job.down)
        before = clients
    for job in toy.jobs(2, "after_server"):
        assert not job.up
        kept = job.down["public_index"]
        assert job.down["public_logits"].shape == (len(kept), 6)
        assert 0 < len(kept) < 20 and kept.tolist() == sorted(set(kept.tolist()))


def test_ablations(data_dir):
    whole = Public("fedpkd", data_dir, {**SMALL, "theta": 1.0}).after(1)
    assert whole.server.global_state["public_index"].tolist() == list(range(20))
    half = Public("fedpkd", data_dir, SMALL).after(1)
    alone = Public("fedpkd", data_dir, {**SMALL, "delta": 1.0}).after(1)
    # delta changes the training but not the filter.
    assert torch.equal(
        alone.server.global_state["public_index"], half.server.global_state["public_index"]
    )
    assert not torch.equal(
        alone.server.global_state["public_logits"], half.server.global_state["public_logits"]
    )


def test_the_kd_based_method_is_an_ablation(data_dir):
    words = FedPKD.ablations["KD-based (Fig. 1 to 3, Eq. 3)"].replace("--set ", "").split()
    given = dict(word.split("=") for word in words)
    toy = Public("fedpkd", data_dir, {**SMALL, **given}, dry=True).after(2)
    config = toy.plan.composition.configs["fedpkd"].model_dump()
    assert {name: config[name] for name in PLAIN} == PLAIN
    terms = toy.lines[1]["loss_terms"]
    assert terms["ce"] > 0 and terms["public_kl"] > 0
    assert terms["align"] == terms["public_ce"] == 0
    # The server trains on all public samples.
    assert toy.server.global_state["public_index"].tolist() == list(range(20))


def test_epochs(data_dir):
    def make(**set):
        plan = Public("fedpkd", data_dir, {**SMALL, **set}).plan
        config = plan.composition.configs["fedpkd"]
        public = plan.composition.phases(plan.info)[1].epochs
        return plan.settings.local_epochs, public, config.server_epochs

    assert make() == (1, 1, 1)
    assert make(epochs="paper") == (15, 10, 40)
    assert make(epochs="paper", server_epochs=2) == (15, 10, 2)
    assert make(public_epochs=3) == (1, 3, 1)
    plan = Public("fedpkd", data_dir, {**SMALL, "epochs": "paper"}, local_epochs=2).plan
    assert plan.settings.local_epochs == 2
    check_the_papers_run("fedpkd", data_dir, SMALL)


def test_refusals(data_dir):
    with pytest.raises(UsageError, match="cannot run") as caught:
        Public("fedpkd", data_dir, {"server_model": "resnet99"})
    assert "one of these works: cnn4, dense, normed" in str(caught.value)
    with pytest.raises(UsageError) as caught:
        Public("fedpkd", data_dir, SMALL, public=0)
    assert "--public N" in str(caught.value)


# --- the filter -----------------------------------------------------------------------------------


def _randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def naive_filter(features, labels, prototypes, known, keep):
    mask = [False] * len(labels)
    for c in range(len(prototypes)):
        members = [i for i, y in enumerate(labels.tolist()) if y == c]
        if known[c]:
            distance = {i: math.dist(features[i].tolist(), prototypes[c].tolist()) for i in members}
            number = math.ceil(Fraction(str(keep)) * len(members))
            members = sorted(members, key=lambda i: (distance[i], i))[:number]
        for i in members:
            mask[i] = True
    return mask


@pytest.mark.parametrize("keep", [0.7, 0.01, 0.5, 1.0, 0.34])
@pytest.mark.parametrize("n", [0, 1, 40])
def test_filter_is_the_loop(n, keep):
    features, prototypes = _randn(n, 3, seed=n), _randn(6, 3, seed=7)
    labels = (torch.arange(n) * torch.arange(n)) % 5  # no sample of class 5
    known = torch.tensor([True, False, True, True, True, True])
    prototypes[1] = math.nan
    got = filter_by_prototype(features, labels, prototypes, known, keep)
    assert got.dtype == torch.bool
    assert got.tolist() == naive_filter(features, labels, prototypes, known, keep)


def test_filter_breaks_ties_by_index():
    features = torch.tensor([[1.0], [-1.0], [0.0], [1.0], [-1.0]])
    labels, prototypes = torch.zeros(5, dtype=torch.long), torch.zeros(1, 1)
    got = filter_by_prototype(features, labels, prototypes, torch.tensor([True]), 0.6)
    assert got.tolist() == [True, True, True, False, False]


@pytest.mark.parametrize(("keep", "n", "number"), [(0.07, 100, 7), (0.7, 10, 7), (0.29, 100, 29)])
def test_filter_takes_the_ceiling_of_the_decimal(keep, n, number):
    features, labels = _randn(n, 2), torch.zeros(n, dtype=torch.long)
    known = torch.tensor([True])
    got = filter_by_prototype(features, labels, torch.zeros(1, 2).double(), known, keep)
    assert got.sum().item() == number
