"""Tests of FedORGP against loops: Eq. 5 on the server, Eq. 8 on clients."""

from __future__ import annotations

import math

import pytest
import torch
from slow_equations import affine, mean_cross_entropy, means_by_class, numbers

import protofl as pf

CLASSES = {0: [0, 1, 3], 1: [2], 4: [1, 3, 0], 7: [0, 2, 3]}


def approx(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))


# --- Eq. 5 ----------------------------------------------------------------------------------------


def slow_training(modules, payloads, *, epochs, batch_size, lr=0.05):
    """Run SGD on Eq. 5 with torch's optimiser; sum Eq. 3 and 4 one pair at a time."""
    parameters = [p for m in modules.values() for p in m.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=lr)
    rows = [row for p in payloads.values() for row in p["prototypes"]]
    labels = [int(c) for p in payloads.values() for c in p["classes"]]
    shuffle, similar = (
        pf.random_stream(0, "fedorgp", "shuffle", 0, "server"),
        torch.cosine_similarity,
    )
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=shuffle).tolist()
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            P, loss = modules["F"](modules["vectors"].weight), 0.0
            for i in chosen:
                own = 1 - similar(rows[i], P[labels[i]], dim=0)
                others = [similar(rows[i], P[c], dim=0).abs() for c in range(4) if c != labels[i]]
                loss = loss + (0.5 * own + 4 * sum(others) / 3) / len(chosen)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return modules["F"](modules["vectors"].weight).detach()


@pytest.mark.parametrize(("epochs", "size"), [(1, 32), (3, 4)])
def test_the_servers_training_is_sgd_on_eq_5(toy, rows, epochs, size):
    options = {"epochs": epochs, "server_batch_size": size}
    options |= {"lambda_s": 0.5, "gamma": 4}
    payloads = {client: rows(classes, seed=client)[0] for client, classes in CLASSES.items()}
    found, copy = (toy("fedorgp", set=options) for _ in range(2))
    for one in (found, copy):
        for module in one.server.modules["fedorgp"].values():
            module.double()
    found.server.round = 0
    result = found.call("server_train", server=found.views()[1], uploads=payloads)
    expected = slow_training(
        copy.server.modules["fedorgp"],
        payloads,
        epochs=epochs,
        batch_size=size,
    )
    assert result["classes"].tolist() == [0, 1, 2, 3]
    assert torch.allclose(result["prototypes"], expected, rtol=1e-9, atol=1e-11)


# --- Eq. 8 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [[0, 1, 2, 3], [0, 3]])
def test_local_loss_is_eq_8(toy, randn, rows, known):
    found = toy("fedorgp", set={"lambda_c": 3.0})
    payload, prototypes = rows(known, seed=3)
    record = found.prepare(0, payload)
    z, y = randn(6, 8, seed=2), [1, 1, 3, 0, 3, 3]
    terms = found.terms(record, z, torch.tensor(y))
    head = record.model.head
    scores = affine(numbers(z), numbers(head.weight), numbers(head.bias))
    assert terms.keys() == {"ce", "align"}
    assert terms["ce"].item() == approx(mean_cross_entropy(scores, y))
    apart = [1 - cosine(r, prototypes[c]) for r, c in zip(numbers(z), y, strict=True) if c in known]
    assert terms["align"].item() == approx(3 * sum(apart) / 6)


def test_prototypes_are_sent_from_round_0_or_after_it(toy):
    first = toy("fedorgp").rounds(1)[0]
    late = toy("fedorgp", set={"variant": "official"}).rounds(2)
    assert first["download_floats"] == late[1]["download_floats"] == 4 * 4 * 8
    assert first["loss_terms"].keys() == late[1]["loss_terms"].keys() == {"ce", "align"}
    assert late[0]["download_bytes"] == 0
    assert late[0]["loss_terms"].keys() == {"ce"}


def test_the_own_head_decides(toy, rows):
    found = toy("fedorgp")
    record = found.prepare(0, rows([0, 1, 2, 3])[0], double=False)
    record.model.eval()
    x = record.test.inputs()
    client = pf.Client(record, "fedorgp")
    assert torch.equal(found.call("inference", client=client, x=x), record.model(x))


# --- Eq. 2 ----------------------------------------------------------------------------------------


def test_the_upload_is_the_mean_of_the_samples_without_counts(toy):
    found = toy("fedorgp")
    found.rounds(1)
    for number, blob in found.pool.uploads(0).items():
        upload = pf.Payload.from_bytes(blob)
        assert upload.keys() == {"prototypes", "classes"}
        record = found.client(number)
        record.model.eval()
        with torch.no_grad():
            z = record.model.features(record.train.inputs())
        slow = means_by_class(numbers(z), record.train.y.tolist())
        assert upload["classes"].tolist() == sorted(slow)
        for row, c in zip(numbers(upload["prototypes"]), sorted(slow), strict=True):
            assert row == pytest.approx(slow[c], rel=1e-4, abs=1e-6)


# --- the code of the tables -----------------------------------------------------------------------


def test_official_is_the_code_of_the_tables(toy):
    """The paper's equations, without P̂ in the first round, the last batch and shuffling."""
    plan = toy("fedorgp", set={"variant": "official"}).plan
    config, settings = plan.composition.configs["fedorgp"], plan.settings
    assert not config.send_initial
    assert (settings.drop_last, settings.shuffle) == (True, False)
    paper = toy("fedorgp").plan
    assert paper.composition.configs["fedorgp"].send_initial
    assert (paper.settings.drop_last, paper.settings.shuffle) == (False, True)


def test_without_or_the_plain_mean_is_sent(toy):
    """Ablation of Table 5: no prototypes in round 0, then the mean of the clients' prototypes."""
    options = {"fedproto": {"aggregate": "uniform"}}
    use = {"server_train": "local", "server_aggregate": "fedproto"}
    found = toy("fedorgp", set={"send_initial": False}, options=options, use=use)
    lines = found.rounds(2)
    assert lines[0]["download_bytes"] == 0 and "align" in lines[1]["loss_terms"]
    rows = {}
    for blob in found.pool.uploads(1).values():
        upload = pf.Payload.from_bytes(blob)
        for row, c in zip(upload["prototypes"], upload["classes"].tolist(), strict=True):
            rows.setdefault(c, []).append(row)
    sent = found.server.global_state.select("prototypes")
    assert sent["classes"].tolist() == sorted(rows)
    for row, c in zip(sent["prototypes"], sorted(rows), strict=True):
        assert torch.allclose(row, sum(rows[c]) / len(rows[c]), atol=1e-6)
