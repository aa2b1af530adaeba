"""Tests of FedTGP against loops: Eq. 2, 9, 10 and 11, server training, ablations, inference."""

from __future__ import annotations

import math

import pytest
import torch
from slow_equations import (
    affine,
    aggregated,
    contrastive,
    guided,
    l2,
    mean_cross_entropy,
    means_by_class,
    numbers,
    pairs_of,
)

import protofl as pf
from protofl.testing import toy as toyfed
from protofl_plugins.methods.fedtgp import FedTGP, adaptive_margin

OFFICIAL = {
    "collect": "before",
    "distance": "mse",
    "align": "sample",
    "margin": "nearest",
    "send_initial": False,
}
CLASSES = {0: [0, 1, 3], 1: [2], 4: [1, 3, 0], 7: [0, 2, 3]}


def approx(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.fixture
def uploads(rows):
    """Return prototypes of four clients, some far from the others, as payloads and as lists."""
    payloads, plain = {}, {}
    for client, classes in CLASSES.items():
        payload, by_class = rows(classes, seed=client)
        payload["prototypes"] *= 1 + client
        payloads[client] = payload
        plain[client] = {c: [(1 + client) * v for v in row] for c, row in by_class.items()}
    return payloads, plain


def in_double(found):
    for module in found.server.modules["fedtgp"].values():
        module.double()
    return found.views()[1]


# --- the server's prototypes --------------------------------------------------------------------


def slow_prototypes(found):
    """Return P̂^c = F(e^c; θ_F), F = FC–ReLU–FC."""
    modules = found.server.modules["fedtgp"]
    rows = numbers(modules["vectors"].weight)
    if "F" not in modules:
        return rows
    first, _, second = modules["F"]
    hidden = affine(rows, numbers(first.weight), numbers(first.bias))
    hidden = [[max(v, 0.0) for v in row] for row in hidden]
    return affine(hidden, numbers(second.weight), numbers(second.bias))


@pytest.mark.parametrize("processor", [True, False])
def test_the_first_prototypes_are_sent_from_round_0(toy, processor):
    found = toy("fedtgp", set={"processor": processor})
    modules = found.server.modules["fedtgp"]
    assert modules.keys() == ({"vectors", "F"} if processor else {"vectors"})
    if processor:
        assert [type(m) for m in modules["F"]] == [
            torch.nn.Linear,
            torch.nn.ReLU,
            torch.nn.Linear,
        ]
        assert [m.weight.shape for m in (modules["F"][0], modules["F"][2])] == [(8, 8)] * 2
    slow = slow_prototypes(found)
    download = found.call("download_payload", server=found.views()[1], client_id=0)
    assert download["classes"].tolist() == [0, 1, 2, 3]
    for row, expected in zip(numbers(download["prototypes"]), slow, strict=True):
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-6)
    lines = found.rounds(1)
    assert lines[0]["download_floats"] == 4 * 4 * 8
    assert lines[0]["loss_terms"].keys() == {"ce", "align"}


def test_without_send_initial_round_0_is_as_fedprotos(toy):
    found = toy("fedtgp", set={"send_initial": False})
    lines = found.rounds(2)
    assert lines[0]["download_bytes"] == 0
    assert lines[0]["loss_terms"].keys() == {"ce"}
    assert lines[1]["download_floats"] == 4 * 4 * 8
    assert lines[1]["loss_terms"].keys() == {"ce", "align"}


def test_the_vectors_start_from_a_standard_normal(toy):
    found = toy("fedtgp", models=toyfed.group(toyfed.PIXELS, K=4096))
    vectors = found.server.modules["fedtgp"]["vectors"].weight.detach().flatten()
    count = len(vectors)
    assert count == 4 * 4096
    assert abs(vectors.mean()) < 5 / count**0.5
    assert abs(vectors.std() - 1) < 5 / (2 * count) ** 0.5


def test_the_start_depends_on_the_seed(toy):
    starts = [toy("fedtgp", seed=s).server.global_state["prototypes"] for s in (0, 0, 1)]
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


# --- Eq. 9 --------------------------------------------------------------------------------------


def slow_margin(plain, margin, tau, delta):
    """Return δ(t) from the cluster centres Q^c: unweighted means over the clients that have c."""
    if margin in ("none", "fixed"):
        return delta if margin == "fixed" else 0.0
    Q = aggregated([{c: (row, 1) for c, row in own.items()} for own in plain.values()], "uniform")
    distance = {(a, b): l2(Q[a], Q[b]) for a, b in pairs_of(Q)}
    if margin == "pair":
        return min(max(distance.values(), default=0.0), tau)
    nearest = [min(d for (a, _), d in distance.items() if a == c) for c in Q if len(Q) > 1]
    return min(max(nearest, default=0.0), tau)


@pytest.mark.parametrize("margin", ["pair", "nearest", "fixed", "none"])
@pytest.mark.parametrize("tau", [100.0, 2.5])
def test_the_margin_is_eq_9(toy, uploads, margin, tau):
    payloads, plain = uploads
    found = toy("fedtgp", set={"margin": margin, "tau": tau, "delta": 1.75})
    delta = adaptive_margin(found.views()[1], payloads)
    assert float(delta) == approx(slow_margin(plain, margin, tau, 1.75))


def test_the_margins_differ_in_these_tests(uploads):
    _, plain = uploads
    found = [slow_margin(plain, m, 100.0, 1.75) for m in ("pair", "nearest", "fixed", "none")]
    assert found[0] > found[1] > 2.5 > found[2] > found[3]


def test_the_margin_is_0_where_only_one_class_was_sent(toy, uploads):
    found = toy("fedtgp")
    assert float(adaptive_margin(found.views()[1], {1: uploads[0][1]})) == 0


# --- Eq. 10 and the S epochs --------------------------------------------------------------------


def slow_loss(anchored, labels, P_hat, delta):
    """Return Eq. 10 of a mini-batch as a mean over its rows, in torch scalars for the gradient."""
    total = 0.0
    for row, c in zip(anchored, labels, strict=True):
        distances = [(row - p).pow(2).sum().sqrt() for p in P_hat]
        own = torch.exp(-(distances[c] + delta))
        others = sum(torch.exp(-d) for other, d in enumerate(distances) if other != c)
        total = total - torch.log(own / (own + others))
    return total / len(labels)


def slow_training(modules, payloads, *, delta, S, round_, batch_size=5, lr=0.05):
    """Run Alg. 1, line 9: S epochs of SGD over mini-batches of the received prototypes."""
    parameters = [p for m in modules.values() for p in m.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=lr)
    anchored = [row for p in payloads.values() for row in p["prototypes"]]
    labels = [int(c) for p in payloads.values() for c in p["classes"]]
    shuffle = pf.random_stream(0, "fedtgp", "shuffle", round_, "server")
    for _ in range(S):
        order = torch.randperm(len(labels), generator=shuffle).tolist()
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            vectors = modules["vectors"].weight
            P_hat = modules["F"](vectors) if "F" in modules else vectors
            optimizer.zero_grad()
            slow_loss(
                [anchored[i] for i in chosen], [labels[i] for i in chosen], P_hat, delta
            ).backward()
            optimizer.step()
    vectors = modules["vectors"].weight
    return (modules["F"](vectors) if "F" in modules else vectors).detach()


@pytest.mark.parametrize("margin", ["pair", "nearest", "fixed", "none"])
@pytest.mark.parametrize("processor", [True, False])
def test_two_rounds_of_server_training(toy, uploads, margin, processor):
    payloads, plain = uploads
    options = {"margin": margin, "processor": processor, "S": 3, "tau": 20.0, "delta": 1.75}
    found, copy = toy("fedtgp", set=options), toy("fedtgp", set=options)
    server = in_double(found)
    in_double(copy)
    modules = copy.server.modules["fedtgp"]
    delta = slow_margin(plain, margin, 20.0, 1.75)
    for round_, chosen in enumerate(([0, 1, 4, 7], [1, 7])):  # weights persist over rounds
        found.server.round = round_
        own = {client: payloads[client] for client in chosen}
        if round_:
            delta = slow_margin({c: plain[c] for c in chosen}, margin, 20.0, 1.75)
        before = found.server.modules["fedtgp"]["vectors"].weight.detach().clone()
        result = found.call("server_train", server=server, uploads=own)
        expected = slow_training(modules, own, delta=delta, S=3, round_=round_)
        assert result.keys() == {"prototypes", "classes"}
        assert result["classes"].tolist() == [0, 1, 2, 3]
        assert torch.allclose(result["prototypes"], expected, rtol=1e-9, atol=1e-11)
        assert not torch.allclose(before, found.server.modules["fedtgp"]["vectors"].weight)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"server_lr": 0.2}, {"lr": 0.2}),
        ({"server_batch_size": 3}, {"batch_size": 3}),
        ({"server_lr": 0.01, "server_batch_size": 100}, {"lr": 0.01, "batch_size": 100}),
    ],
)
def test_the_servers_own_learning_rate_and_batch_size(toy, uploads, options, steps):
    payloads, plain = uploads
    found, copy = (toy("fedtgp", set={"S": 3, **options}) for _ in range(2))
    server = in_double(found)
    in_double(copy)
    found.server.round = 0
    result = found.call("server_train", server=server, uploads=payloads)
    delta = slow_margin(plain, "pair", 100.0, 1.0)
    modules = copy.server.modules["fedtgp"]
    expected = slow_training(modules, payloads, delta=delta, S=3, round_=0, **steps)
    assert torch.allclose(result["prototypes"], expected, rtol=1e-9, atol=1e-11)


def test_the_servers_own_learning_rate_is_not_the_clients(toy):
    """server_lr changes the server's steps but not the clients' first round."""
    plain, own = (toy("fedtgp", set={"S": 5, **o}) for o in ({}, {"server_lr": 0.5}))
    a, b = plain.rounds(2), own.rounds(2)
    assert plain.pool.uploads(0) == own.pool.uploads(0)
    assert a[0]["loss_terms"] == b[0]["loss_terms"]
    assert a[1]["loss_terms"] != b[1]["loss_terms"]


def test_the_slow_loss_is_eq_10(randn):
    P_hat, row = randn(4, 8, seed=1), randn(8, seed=2)
    plain = dict(enumerate(numbers(P_hat)))
    for c in range(4):
        slow = float(slow_loss([row], [c], P_hat, 0.8))
        assert slow == approx(contrastive(numbers(row), c, plain, 0.8))
    assert math.isclose(
        contrastive(numbers(row), 0, plain, 0.0),
        mean_cross_entropy([[-l2(numbers(row), p) for p in plain.values()]], [0]),
        rel_tol=1e-9,
    )  # margin 0 is Eq. 6


def test_no_epochs_leave_the_prototypes(toy, uploads):
    found = toy("fedtgp", set={"S": 0})
    start = found.server.global_state["prototypes"].clone()
    result = found.call("server_train", server=found.views()[1], uploads=uploads[0])
    assert torch.equal(result["prototypes"], start)


def test_training_lowers_eq_10(toy, uploads):
    payloads, _ = uploads
    anchored = torch.cat([p["prototypes"] for p in payloads.values()])
    labels = torch.cat([p["classes"] for p in payloads.values()])
    losses = []
    for S in (0, 100):
        found = toy("fedtgp", set={"S": S, "margin": "fixed", "delta": 1.0})
        server = in_double(found)
        P_hat = found.call("server_train", server=server, uploads=payloads)["prototypes"]
        losses.append(float(slow_loss(list(anchored), labels.tolist(), P_hat, 1.0)))
    assert losses[1] < 0.8 * losses[0]


def test_the_server_has_no_other_trace_of_the_prototypes(toy):
    found = toy("fedtgp")
    found.rounds(1)
    assert found.server.global_state.keys() == {"prototypes", "classes"}
    assert not any(found.server.state.values())


# --- Eq. 11 and Eq. 2 ---------------------------------------------------------------------------


@pytest.mark.parametrize("distance", ["l2", "mse"])
@pytest.mark.parametrize("align", ["class", "sample"])
def test_local_loss_is_eq_11(toy, randn, rows, distance, align):
    found = toy("fedtgp", set={"distance": distance, "align": align})
    payload, prototypes = rows([0, 1, 2, 3], seed=3)
    record = found.prepare(0, payload)
    z, y = randn(6, 8, seed=2), [1, 1, 3, 0, 3, 3]
    terms = found.terms(record, z, torch.tensor(y))
    head = record.model.head
    scores = affine(numbers(z), numbers(head.weight), numbers(head.bias))
    assert terms.keys() == {"ce", "align"}
    assert terms["ce"].item() == approx(mean_cross_entropy(scores, y))
    weight = {"l2": 0.1, "mse": 10.0}[distance]
    slow = weight * guided(numbers(z), y, prototypes, distance, align)
    assert terms["align"].item() == approx(slow)


def test_the_upload_is_eq_2_without_counts(toy):
    found = toy("fedtgp")
    found.rounds(1)
    for number, blob in found.pool.uploads(0).items():
        upload = pf.Payload.from_bytes(blob)
        assert upload.keys() == {"prototypes", "classes"}
        record = found.client(number)
        record.model.eval()
        with torch.no_grad():
            z = numbers(record.model.features(record.train.inputs()))
        slow = means_by_class(z, record.train.y.tolist())
        assert upload["classes"].tolist() == sorted(slow)
        for row, c in zip(numbers(upload["prototypes"]), sorted(slow), strict=True):
            assert row == pytest.approx(slow[c], rel=1e-4, abs=1e-6)


def test_online_collection_is_an_option_that_no_variant_takes(toy):
    for variant, collect in (("paper", "eval"), ("official", "before")):
        found = toy("fedtgp", set={"variant": variant})
        assert found.plan.composition.configs["fedtgp"].collect == collect
    online = toy("fedtgp", set={"collect": "online"})
    online.rounds(1)
    found = toy("fedtgp")
    found.rounds(1)
    a, b = (pf.Payload.from_bytes(f.pool.uploads(0)[0]) for f in (online, found))
    assert a.keys() == b.keys() and torch.equal(a["classes"], b["classes"])
    assert not torch.allclose(a["prototypes"], b["prototypes"], rtol=1e-3)


@pytest.mark.slow
def test_collection_before_training_sends_the_prototypes_of_the_round_before(toy):
    """With λ = 0, the server's prototypes do not affect clients, so the models are the same."""
    after, before = (
        toy("fedtgp", set={"lambda": 0, "S": 1, "collect": collect})
        for collect in ("eval", "before")
    )
    untrained = toy("fedtgp", set={"collect": "before"})
    models = [after.plan.initial_model(i, 0).eval() for i in range(after.plan.settings.clients)]
    after.rounds(3), before.rounds(3), untrained.rounds(1)
    assert before.pool.uploads(2) == after.pool.uploads(1) != after.pool.uploads(2)
    assert before.pool.uploads(1) == after.pool.uploads(0)
    assert before.pool.uploads(0) == untrained.pool.uploads(0)
    for number, blob in untrained.pool.uploads(0).items():
        upload, train = pf.Payload.from_bytes(blob), after.client(number).train
        with torch.no_grad():
            z = numbers(models[number].features(train.inputs()))
        slow = means_by_class(z, train.y.tolist())
        for row, c in zip(numbers(upload["prototypes"]), upload["classes"].tolist(), strict=True):
            assert row == pytest.approx(slow[c], rel=1e-4, abs=1e-6)


# --- inference ----------------------------------------------------------------------------------


def test_inference_is_the_nearest_of_all_prototypes(toy, rows):
    """Classes that the client lacks can be predicted: client 0 has no class 3."""
    found = toy("fedtgp", models=toyfed.group(toyfed.PIXELS, K=36))
    payload, prototypes = rows([0, 1, 2, 3], K=36, seed=4)
    record = found.prepare(0, payload)
    assert int(record.class_counts[3]) == 0
    x = torch.cat([torch.randn(30, 1, 6, 6), torch.tensor(prototypes[3]).reshape(1, 1, 6, 6)])
    scores = found.call("inference", client=pf.Client(record, "fedtgp"), x=x)
    chosen = scores.argmax(1).tolist()
    for image, c in zip(x, chosen, strict=True):
        z = numbers(image.flatten())
        assert c == min(prototypes, key=lambda c: l2(z, prototypes[c]))
    assert chosen[-1] == 3
    assert scores.isfinite().all()


# --- options ------------------------------------------------------------------------------------


def test_official_is_all_deviations_together(toy):
    by_name = toy("fedtgp", set={"variant": "official", "S": 5})
    assert by_name.plan.settings.drop_last
    one_by_one = toy("fedtgp", set={**OFFICIAL, "S": 5}, drop_last=True, same_init=True)
    assert toyfed.same(by_name.rounds(3), one_by_one.rounds(3))
    assert not toy("fedtgp").plan.settings.drop_last


def test_one_deviation_changes_one_option(toy):
    def options(**set_):
        return toy("fedtgp", set=set_).plan.composition.configs["fedtgp"].model_dump()

    paper = options()
    for option, value in OFFICIAL.items():
        one = options(**{option: value})
        changed = {name for name in paper if one[name] != paper[name]}
        assert changed == {option} | ({"lambda_"} if option == "distance" else set())
    assert {*FedTGP.Config.deviations} == {*OFFICIAL}


@pytest.mark.parametrize("option", OFFICIAL)
def test_one_deviation_changes_the_run_where_it_should(toy, option):
    """Margin and collection do not change the first round's loss; the other options do."""
    few = {"S": 5}
    paper, one = toy("fedtgp", set=few), toy("fedtgp", set={**few, option: OFFICIAL[option]})
    a, b = paper.rounds(2), one.rounds(2)
    assert (paper.pool.uploads(0) == one.pool.uploads(0)) == (option == "margin")
    assert (a[0]["loss_terms"] == b[0]["loss_terms"]) == (option in ("margin", "collect"))
    assert a[1]["loss_terms"] != b[1]["loss_terms"]


@pytest.mark.parametrize(
    "options", [{"margin": "none"}, {"margin": "fixed", "delta": 2.0}, {"processor": False}]
)
def test_the_ablations_of_table_6_change_the_run(toy, options):
    ablated, whole = toy("fedtgp", set={"S": 5, **options}), toy("fedtgp", set={"S": 5})
    config = ablated.plan.composition.configs["fedtgp"].model_dump()
    assert {k: config[k] for k in options} == options
    assert ablated.rounds(2)[1]["loss_terms"] != whole.rounds(2)[1]["loss_terms"]
