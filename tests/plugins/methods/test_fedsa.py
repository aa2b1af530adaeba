"""Tests of FedSA against loops: Eq. 2, 3, 5, 6, 7, 8, 10, embedding, every option, inference."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from slow_equations import (
    affine,
    aggregated,
    contrastive,
    cross_entropy,
    guided,
    l2,
    mean_cross_entropy,
    means_by_class,
    numbers,
    pairs_of,
)
from torch import nn

import protofl as pf
from protofl.system.randomness import global_stream
from protofl.testing import toy as toyfed
from protofl_plugins.methods.fedsa import FedSA

OFFICIAL = {
    "distance": "mse",
    "align": "sample",
    "contrast": "sample",
    "margin": "nearest",
    "bias": True,
    "collect": "online",
    "aggregate": "uniform",
    "ema": "uploaded",
    "inference": "prototype",
}
LABELS = [0, 2, 2, 3, 0, 0, 3]


def approx(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


# --- the anchors --------------------------------------------------------------------------------


def batch_norm(rows, gamma, beta):
    """Normalise over the batch, with the biased variance and ε = 1e-5."""
    count, columns = len(rows), list(zip(*rows, strict=True))
    out = []
    for column, g, b in zip(columns, gamma, beta, strict=True):
        m = sum(column) / count
        v = sum((x - m) ** 2 for x in column) / count
        out.append([g * (x - m) / math.sqrt(v + 1e-5) + b for x in column])
    return [list(row) for row in zip(*out, strict=True)]


def test_the_anchors_are_random_vectors_through_two_blocks(toy):
    found = toy("fedsa", seed=3)
    A = torch.randn(4, 8, generator=pf.random_stream(3, "fedsa", "anchors", -1, "server"))
    with global_stream(3, "setup-server"):
        blocks = [(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(2)]
    rows = numbers(A)
    for linear, norm in blocks:
        rows = affine(rows, numbers(linear.weight), numbers(linear.bias))
        rows = batch_norm(rows, numbers(norm.weight), numbers(norm.bias))
        rows = [[max(v, 0.0) for v in row] for row in rows]
    anchors = found.server.global_state["prototypes"]
    assert found.server.global_state["classes"].tolist() == [0, 1, 2, 3]
    assert not anchors.requires_grad
    for row, expected in zip(numbers(anchors), rows, strict=True):
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_without_embedding_the_anchors_are_the_random_vectors(toy):
    found = toy("fedsa", set={"embedding": False}, seed=3)
    A = torch.randn(4, 8, generator=pf.random_stream(3, "fedsa", "anchors", -1, "server"))
    assert torch.equal(found.server.global_state["prototypes"], A)


def test_the_anchors_are_sent_from_round_0_to_everybody(toy):
    found = toy("fedsa")
    anchors = found.server.global_state["prototypes"].clone()
    lines = found.rounds(1)
    assert lines[0]["download_floats"] == 4 * 4 * 8
    assert lines[0]["loss_terms"].keys() == {"ce", "align", "mcl", "calibration"}
    for blob in found.pool.downloads(0).values():
        assert torch.equal(pf.Payload.from_bytes(blob)["prototypes"], anchors)


# --- Eq. 3 and Eq. 10 ---------------------------------------------------------------------------

ROUNDS = [
    {0: ([0, 1], [4, 1]), 2: ([1], [6])},
    {1: ([3], [5])},
    {0: ([0, 3], [1, 1]), 3: ([0], [2])},
]


def slow_anchors(start, rounds, *, mode, alpha, ema):
    """Apply Ā ← α·Ā + (1−α)·P̄ to each class; with ema=all, P̄ is its last known mean."""
    anchors, last = {c: row[:] for c, row in enumerate(start)}, {}
    history = []
    for uploads in rounds:
        means = aggregated(uploads, mode)
        last |= means
        for c, P in (last if ema == "all" else means).items():
            anchors[c] = [alpha * a + (1 - alpha) * p for a, p in zip(anchors[c], P, strict=True)]
        history.append({c: row[:] for c, row in anchors.items()})
    return history


@pytest.mark.parametrize(
    ("mode", "ema", "alpha"),
    [
        *itertools.product(("weighted", "uniform", "eq3"), ("all", "uploaded"), (0.9,)),
        *itertools.product(("weighted",), ("all",), (0.0, 1.0)),
    ],
)
def test_server_aggregate_is_eq_3_and_eq_10(toy, rows, mode, ema, alpha):
    found = toy("fedsa", set={"aggregate": mode, "ema": ema, "alpha": alpha})
    start = found.server.state["fedsa"]["anchors"] = found.server.state["fedsa"]["anchors"].double()
    _, server = found.views()
    fast, plain = [], []
    for round_, clients in enumerate(ROUNDS):
        uploads, slow = {}, []
        for client, (classes, counts) in clients.items():
            payload, by_class = rows(classes, seed=10 * round_ + client, counts=counts)
            if mode == "uniform":
                del payload["counts"]
            uploads[client] = payload
            slow.append({c: (by_class[c], n) for c, n in zip(classes, counts, strict=True)})
        result = found.call("server_aggregate", server=server, uploads=uploads)
        assert result["classes"].tolist() == [0, 1, 2, 3]
        assert result.keys() == {"prototypes", "classes"}
        fast.append(numbers(result["prototypes"]))
        plain.append(slow)
    expected = slow_anchors(numbers(start), plain, mode=mode, alpha=alpha, ema=ema)
    for anchors, slow in zip(fast, expected, strict=True):
        for c in range(4):
            assert anchors[c] == approx(slow[c])
    assert fast[-1][2] == numbers(start)[2]  # class 2 was never sent
    if alpha == 0.9:  # class 1 was sent in round 0 only
        assert (fast[2][1] == fast[0][1]) == (ema == "uploaded")


def test_the_default_alpha_moves_anchors_little(toy):
    found = toy("fedsa")
    assert found.plan.composition.configs["fedsa"].alpha == 0.9999
    start = found.server.global_state["prototypes"].clone()
    found.rounds(1)
    moved = found.server.global_state["prototypes"] - start
    assert 0 < float(moved.abs().max()) < 1e-3


@pytest.mark.parametrize("inference", ["anchor", "head", "prototype"])
def test_means_of_the_round_travel_only_for_inference_by_them(toy, rows, inference):
    found = toy("fedsa", set={"inference": inference})
    payload, by_class = rows([1, 3], seed=5, counts=[2, 2])
    _, server = found.views()
    found.server.state["fedsa"]["anchors"] = found.server.state["fedsa"]["anchors"].double()
    result = found.call("server_aggregate", server=server, uploads={0: payload})
    found.server.global_state.merge(result)
    download = found.call("download_payload", server=server, client_id=0)
    if inference != "prototype":
        assert download.keys() == {"prototypes", "classes"}
        return
    assert download["global_prototypes.classes"].tolist() == [1, 3]
    assert numbers(download["global_prototypes"]) == [approx(by_class[1]), approx(by_class[3])]
    later, _ = rows([0], seed=6, counts=[1])
    found.server.global_state.merge(
        found.call("server_aggregate", server=server, uploads={2: later})
    )
    download = found.call("download_payload", server=server, client_id=0)
    assert download["global_prototypes.classes"].tolist() == [0]  # classes of this round only
    assert download["classes"].tolist() == [0, 1, 2, 3]


# --- Eq. 6 --------------------------------------------------------------------------------------


def slow_margin(prototypes, margin):
    """Return Eq. 6, or the mean over classes of the distance to the nearest other class."""
    distance = {(a, b): l2(prototypes[a], prototypes[b]) for a, b in pairs_of(prototypes)}
    if not distance:
        return 0.0
    if margin == "mean":
        return sum(distance.values()) / (len(prototypes) - 1) ** 2
    nearest = [min(d for (a, _), d in distance.items() if a == c) for c in prototypes]
    return sum(nearest) / len(nearest)


def used_margin(found):
    """Return d_i* of client 0, which Eq. 7 adds to the distance to the own anchor of any class."""
    (own,) = {*numbers(found.given[0]["fedsa"]["penalty"].diagonal())}
    return own


@pytest.mark.parametrize("margin", ["mean", "nearest"])
@pytest.mark.parametrize("own", [None, 0.0, 1e3])
def test_the_margin_is_the_larger_of_global_and_local(toy, rows, margin, own):
    found = toy("fedsa", set={"margin": margin})
    payload, anchors = rows([0, 1, 2, 3], seed=1)
    if own is not None:
        found.client(0).state["fedsa"] = {"margin": torch.tensor(own, dtype=torch.float64)}
    found.prepare(0, payload)
    assert used_margin(found) == approx(max(slow_margin(anchors, margin), own or 0.0))


@pytest.mark.parametrize("margin", ["mean", "nearest"])
def test_the_local_margin_is_taken_after_training(toy, margin):
    found = toy("fedsa", set={"margin": margin})
    assert "margin" not in found.client(0).state.get("fedsa", {})  # no local margin yet
    found.rounds(1)
    for number in range(4):
        record = found.client(number)
        record.model.eval()
        with torch.no_grad():
            z = numbers(record.model.features(record.train.inputs()))
        slow = slow_margin(means_by_class(z, record.train.y.tolist()), margin)
        assert float(record.state["fedsa"]["margin"]) == pytest.approx(slow, rel=1e-4)


def test_a_client_with_one_class_takes_the_global_margin(toy):
    found = toy("fedsa", data=toyfed.make_images([[8, 0, 0], [4, 4, 4]]))
    found.rounds(1)
    record = found.client(0)
    assert float(record.state["fedsa"]["margin"]) == 0
    found.prepare(0, found.server.global_state, double=False)
    anchors = dict(enumerate(numbers(found.server.global_state["prototypes"])))
    assert used_margin(found) == pytest.approx(slow_margin(anchors, "mean"), rel=1e-5)


# --- Eq. 5, 7, 8, 9 -----------------------------------------------------------------------------


def slow_terms(rows_, labels, anchors, weight, bias, config, C=4):
    """Return the weighted terms L_R, L_MCL and L_CC."""
    means = means_by_class(rows_, labels)
    L_R = guided(rows_, labels, anchors, config["distance"], config["align"])
    if config["align"] == "class":
        L_R *= len(means)  # Eq. 5 is a sum
    d = max(slow_margin(anchors, config["margin"]), config["own"])
    if config["contrast"] == "class":
        pulled = list(means.items())
    else:
        pulled = list(zip(labels, rows_, strict=True))
    L_MCL = sum(contrastive(r, c, anchors, d) for c, r in pulled if c in anchors) / len(pulled)
    bias = bias if config["bias"] else [0.0] * C
    scores = {c: affine([anchors[c]], weight, bias)[0] for c in anchors}
    L_CC = sum(cross_entropy(scores[c], c) for c in anchors) / len(anchors)
    lambda_1 = {"l2": 0.1, "mse": 10.0}[config["distance"]]
    return {"align": lambda_1 * L_R, "mcl": L_MCL, "calibration": L_CC}


SWITCHES = {k: OFFICIAL[k] for k in ("distance", "align", "contrast", "margin", "bias")}
CHOICES = [{}, *({k: v} for k, v in SWITCHES.items()), SWITCHES]


@pytest.mark.parametrize("chosen", CHOICES, ids=lambda c: ",".join(c) or "paper")
def test_local_loss_is_eq_5_7_8_and_9(toy, randn, rows, chosen):
    found = toy("fedsa", set=chosen)
    for known, own in itertools.product(([0, 1, 2, 3], [0, 1, 3]), (0.0, 7.5)):
        payload, anchors = rows(known, seed=1)
        found.client(0).state["fedsa"] = {"margin": torch.tensor(own, dtype=torch.float64)}
        record = found.prepare(0, payload)
        z = randn(7, 8, seed=2).requires_grad_()
        terms = found.terms(record, z, torch.tensor(LABELS))
        head = record.model.head
        paper = {"distance": "l2", "align": "class", "contrast": "class", "margin": "mean"}
        config = {**paper, "bias": False, "own": own, **chosen}
        weight, bias = numbers(head.weight), numbers(head.bias)
        slow = slow_terms(numbers(z), LABELS, anchors, weight, bias, config)
        scores = affine(numbers(z), weight, bias)
        slow["ce"] = mean_cross_entropy(scores, LABELS)
        assert terms.keys() == slow.keys()
        for name, value in slow.items():
            assert terms[name].item() == approx(value), (name, known, own)


def test_each_loss_option_changes_its_own_term_only(toy, randn, rows):
    changed = {"distance": {"align"}, "align": {"align"}, "contrast": {"mcl"}, "margin": {"mcl"}}
    changed["bias"] = {"calibration"}
    values = {}
    for option in [None, *SWITCHES]:
        found = toy("fedsa", set={option: OFFICIAL[option]} if option else {})
        record = found.prepare(0, rows([0, 1, 2, 3], seed=1)[0])
        terms = found.terms(record, randn(7, 8, seed=2), torch.tensor(LABELS))
        values[option] = {name: term.item() for name, term in terms.items()}
    for option in SWITCHES:
        assert {n for n, v in values[None].items() if values[option][n] != v} == changed[option]


@pytest.mark.parametrize("bias", [False, True])
def test_calibration_reaches_the_head_alone_and_its_bias_where_asked_for(toy, randn, rows, bias):
    found = toy("fedsa", set={"bias": bias})
    record = found.prepare(0, rows([0, 1, 2, 3], seed=1)[0])
    labels = torch.tensor(LABELS)
    before = found.terms(record, randn(7, 8), labels)
    with torch.no_grad():
        record.model.head.bias += randn(4, seed=9)
    after = found.terms(record, randn(7, 8), labels)
    assert (before["calibration"].item() == after["calibration"].item()) == (not bias)
    assert before["ce"].item() != after["ce"].item()
    names, parameters = zip(*record.model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(after["calibration"], parameters, allow_unused=True)
    reached = {n for n, g in zip(names, gradients, strict=True) if g is not None}
    assert reached == ({"head.weight", "head.bias"} if bias else {"head.weight"})


def test_calibration_takes_the_whole_of_a_head_of_two_layers(toy, randn, rows):
    found = toy("fedsa", models=toyfed.group(toyfed.TWO_LAYERS))
    payload, anchors = rows([0, 1, 2, 3], seed=1)
    record = found.prepare(0, payload)
    term = found.terms(record, randn(7, 8), torch.tensor(LABELS))["calibration"]
    first, _, second = record.model.head
    hidden = affine(list(anchors.values()), numbers(first.weight), numbers(first.bias))
    hidden = [[max(v, 0.0) for v in row] for row in hidden]
    scores = affine(hidden, numbers(second.weight), numbers(second.bias))
    assert term.item() == approx(mean_cross_entropy(scores, [0, 1, 2, 3]))


@pytest.mark.parametrize("name", ["lambda_1", "lambda_2", "lambda_3"])
def test_each_weight_scales_its_term(toy, randn, rows, name):
    term = {"lambda_1": "align", "lambda_2": "mcl", "lambda_3": "calibration"}[name]
    values = []
    for weight in (1.0, 0.25, 0.0):
        found = toy("fedsa", set={name: weight})
        record = found.prepare(0, rows([0, 1, 2, 3], seed=1)[0])
        values.append(found.terms(record, randn(7, 8), torch.tensor(LABELS)))
    for other in values[0]:
        ratios = [1.0, 0.25, 0.0] if other == term else [1.0, 1.0, 1.0]
        for terms, ratio in zip(values, ratios, strict=True):
            assert terms[other].item() == approx(ratio * values[0][other].item())


def test_the_weights_defaults(toy):
    def config(**options):
        return toy("fedsa", **options).plan.composition.configs["fedsa"]

    hetero, homogeneous = config(), config(models=toyfed.group(toyfed.CNN))
    assert (hetero.lambda_1, hetero.lambda_2, hetero.lambda_3) == (0.1, 1.0, 1.0)
    assert (homogeneous.lambda_1, homogeneous.lambda_2, homogeneous.lambda_3) == (0.1, 0.01, 1.0)
    assert config(set={"distance": "mse"}).lambda_1 == 10.0
    assert config(set={"distance": "mse", "lambda_1": 0.5}).lambda_1 == 0.5
    given = config(set={"lambda_2": 3.0}, models=toyfed.group(toyfed.CNN))
    assert given.lambda_2 == 3.0


@pytest.mark.parametrize("term", ["mcl", "calibration", "align"])
def test_terms_can_be_dropped(toy, term):
    whole, without = toy("fedsa").rounds(1)[0], toy("fedsa", drop=[term]).rounds(1)[0]
    assert whole["loss_terms"].keys() - without["loss_terms"].keys() == {term}
    assert without["train_loss"] == pytest.approx(sum(without["loss_terms"].values()))


TABLE_4 = {
    "EMA, L_R": {"ce", "align"},
    "EMA, L_R, ER": {"ce", "align"},
    "EMA, L_R, ER, L_CC": {"ce", "align", "calibration"},
    "EMA, L_R, ER, L_MCL": {"ce", "align", "mcl"},
}


@pytest.mark.parametrize("row", TABLE_4)
def test_the_rows_of_table_4_are_cumulative(toy, row):
    words = FedSA.ablations[f"{row} (Table 4)"].split()
    pairs = list(zip(words[::2], words[1::2], strict=True))
    drop = [value.removeprefix("local_loss.") for word, value in pairs if word == "--drop"]
    set_ = dict(value.split("=") for word, value in pairs if word == "--set")
    found = toy("fedsa", set=set_, drop=drop)
    assert found.plan.composition.configs["fedsa"].embedding == ("ER" in row)
    assert found.rounds(1)[0]["loss_terms"].keys() == TABLE_4[row]
    assert len(FedSA.ablations) == len(TABLE_4)


# --- Eq. 2 --------------------------------------------------------------------------------------


def test_the_upload_is_eq_2(toy):
    found = toy("fedsa")
    found.rounds(1)
    for number, blob in found.pool.uploads(0).items():
        upload = pf.Payload.from_bytes(blob)
        assert upload.keys() == {"prototypes", "classes", "counts"}
        record = found.client(number)
        record.model.eval()
        with torch.no_grad():
            z = numbers(record.model.features(record.train.inputs()))
        y = record.train.y.tolist()
        slow = means_by_class(z, y)
        assert upload["classes"].tolist() == sorted(slow)
        assert upload["counts"].tolist() == [y.count(c) for c in sorted(slow)]
        for row, c in zip(numbers(upload["prototypes"]), sorted(slow), strict=True):
            assert row == pytest.approx(slow[c], rel=1e-4, abs=1e-6)


def test_counts_are_not_sent_where_the_mean_is_uniform(toy):
    found = toy("fedsa", set={"aggregate": "uniform"})
    found.rounds(1)
    for blob in found.pool.uploads(0).values():
        assert toyfed.header(blob).keys() == {"prototypes", "classes"}


# --- inference ----------------------------------------------------------------------------------


@pytest.mark.parametrize("inference", ["anchor", "prototype"])
def test_inference_by_distance(toy, rows, inference):
    found = toy("fedsa", set={"inference": inference}, models=toyfed.group(toyfed.PIXELS, K=36))
    payload, anchors = rows([0, 1, 2, 3], K=36, seed=4)
    means, prototypes = rows([0, 2], K=36, seed=5)
    payload["global_prototypes"] = means["prototypes"]
    payload["global_prototypes.classes"] = means["classes"]
    record = found.prepare(0, payload)
    x = torch.randn(40, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    scores = found.call("inference", client=pf.Client(record, "fedsa"), x=x)
    nearest = anchors if inference == "anchor" else prototypes
    for image, c in zip(x, scores.argmax(1).tolist(), strict=True):
        z = numbers(image.flatten())
        assert c == min(nearest, key=lambda c: l2(z, nearest[c]))
    assert scores[:, [1, 3]].isneginf().all() == (inference == "prototype")


def test_inference_by_the_head(toy):
    found = toy("fedsa", set={"inference": "head"})
    found.rounds(1)
    record = found.prepare(0, found.server.global_state, double=False)
    record.model.eval()
    x = record.test.inputs()
    assert torch.equal(
        found.call("inference", client=pf.Client(record, "fedsa"), x=x), record.model(x)
    )


def test_before_the_first_prototypes_the_head_decides(toy):
    found = toy("fedsa", set={"inference": "prototype"})
    record = found.prepare(0, found.server.global_state, double=False)
    record.model.eval()
    x = record.test.inputs()
    assert torch.equal(
        found.call("inference", client=pf.Client(record, "fedsa"), x=x), record.model(x)
    )


# --- options ------------------------------------------------------------------------------------


def test_official_is_all_deviations_together(toy):
    by_name = toy("fedsa", set={"variant": "official"})
    assert by_name.plan.settings.drop_last
    one_by_one = toy("fedsa", set=OFFICIAL, drop_last=True)
    assert toyfed.same(by_name.rounds(3), one_by_one.rounds(3))
    assert not toy("fedsa").plan.settings.drop_last


def test_one_deviation_changes_one_option(toy):
    def options(**set_):
        return toy("fedsa", set=set_).plan.composition.configs["fedsa"].model_dump()

    paper = options()
    for option, value in OFFICIAL.items():
        one = options(**{option: value})
        changed = {name for name in paper if one[name] != paper[name]}
        assert changed == {option} | ({"lambda_1"} if option == "distance" else set())
    assert {*FedSA.Config.deviations} == {*OFFICIAL}


@pytest.mark.parametrize("option", OFFICIAL)
def test_one_deviation_changes_the_run_where_it_should(toy, option):
    """Loss options change the first round's loss; the others change payloads or their use."""
    # Client 3 trains first, then client 1, which lacks classes; a mean needs two clients.
    few = {"participation": 0.5 if option == "aggregate" else 0.25, "seed": 4}
    paper = toy("fedsa", set={"alpha": 0.5}, **few)
    one = toy("fedsa", set={"alpha": 0.5, option: OFFICIAL[option]}, **few)
    a, b = paper.rounds(3), one.rounds(3)
    assert (a[0]["loss_terms"] == b[0]["loss_terms"]) == (option not in SWITCHES)
    sent = paper.pool.uploads(0) == one.pool.uploads(0)
    assert sent == (option in ("ema", "inference"))
    if option == "inference":
        assert [line["loss_terms"] for line in a] == [line["loss_terms"] for line in b]
        assert b[1]["download_floats"] > a[1]["download_floats"]
    else:
        assert a[2]["loss_terms"] != b[2]["loss_terms"]
