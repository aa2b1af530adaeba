"""Tests of FedProto against loops: FedTGP Eq. 2, 3 and 4, every option, inference."""

from __future__ import annotations

import pytest
import torch
from slow_equations import (
    affine,
    aggregated,
    difference_quotients,
    guided,
    l2,
    mean_cross_entropy,
    means_by_class,
    numbers,
)

import protofl as pf
from protofl.data.batches import training_batches
from protofl.testing import toy as toyfed

LABELS = [0, 2, 2, 1, 0, 0, 3]
OFFICIAL = {
    "distance": "mse",
    "align": "sample",
    "collect": "online",
    "aggregate": "uniform",
    "absent": "forget",
}


def approx(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


# --- Eq. 4 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", ["l2", "mse"])
@pytest.mark.parametrize("align", ["class", "sample"])
@pytest.mark.parametrize("known", [[0, 1, 2, 3], [0, 3], [1]])
def test_local_loss_is_eq_4(toy, randn, rows, distance, align, known):
    found = toy("fedproto", set={"lambda": 0.7, "distance": distance, "align": align})
    payload, prototypes = rows(known, seed=1)
    record = found.prepare(0, payload)
    z = randn(7, 8, seed=2).requires_grad_()
    terms = found.terms(record, z, torch.tensor(LABELS))
    assert terms.keys() == {"ce", "align"}
    head = record.model.head
    scores = affine(numbers(z), numbers(head.weight), numbers(head.bias))
    assert terms["ce"].item() == approx(mean_cross_entropy(scores, LABELS))

    def slow(features):
        return 0.7 * guided(features, LABELS, prototypes, distance, align)

    assert terms["align"].item() == approx(slow(numbers(z)))
    (gradient,) = torch.autograd.grad(terms["align"], z)
    quotients = torch.tensor(difference_quotients(slow, numbers(z)))
    assert torch.allclose(gradient, quotients.double(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("distance", "weight"), [("l2", 0.1), ("mse", 10.0)])
def test_lambda_has_a_default_per_distance(toy, randn, rows, distance, weight):
    values = []
    for given in (None, weight):
        options = {"distance": distance, **({} if given is None else {"lambda": given})}
        found = toy("fedproto", set=options)
        payload, _ = rows([0, 1, 2, 3])
        record = found.prepare(0, payload)
        values.append(found.terms(record, randn(7, 8), torch.tensor(LABELS))["align"].item())
    assert values[0] == values[1] != 0


def test_lambda_0_regresses_to_local_training(toy):
    alone = toy("local").rounds(2)
    with_zero = toy("fedproto", set={"lambda": 0}).rounds(2)
    assert [line["loss_terms"]["ce"] for line in alone] == [
        line["loss_terms"]["ce"] for line in with_zero
    ]


def test_before_the_first_prototypes_there_is_no_align_term(toy):
    lines = toy("fedproto").rounds(2)
    assert lines[0]["loss_terms"].keys() == {"ce"}
    assert lines[1]["loss_terms"].keys() == {"ce", "align"}


def test_align_can_be_dropped(toy):
    lines = toy("fedproto", drop=["align"]).rounds(2)
    assert lines[1]["loss_terms"].keys() == {"ce"}


# --- Eq. 2 --------------------------------------------------------------------------------------


def features_of(record, x, *, training):
    mode = record.model.training
    record.model.train(training)
    with torch.no_grad():
        z = numbers(record.model.features(x))
    record.model.train(mode)
    return z


def test_upload_is_eq_2_in_an_evaluation_pass_after_training(toy):
    found = toy("fedproto")
    found.rounds(1)
    for number, blob in found.pool.uploads(0).items():
        upload = pf.Payload.from_bytes(blob)
        record = found.client(number)  # it still has the weights from the end of the round
        y = record.train.y.tolist()
        slow = means_by_class(features_of(record, record.train.inputs(), training=False), y)
        assert upload["classes"].tolist() == sorted(slow)
        assert upload["counts"].tolist() == [y.count(c) for c in sorted(slow)]
        for row, c in zip(numbers(upload["prototypes"]), sorted(slow), strict=True):
            assert row == pytest.approx(slow[c], rel=1e-4, abs=1e-6)


def test_online_collects_in_train_mode_before_the_step(toy):
    """With one batch per epoch, the features come from the initial weights."""
    options = {"models": toyfed.group(toyfed.NORM), "batch_size": 100}
    found = toy("fedproto", set={"collect": "online"}, **options)
    before = {}
    for number in range(4):
        record = found.client(number)
        z = features_of(record, record.train.inputs(), training=True)
        before[number] = means_by_class(z, record.train.y.tolist())
    # features_of changed the batch statistics; a second federation has the same initial state.
    found = toy("fedproto", set={"collect": "online"}, **options)
    found.rounds(1)
    for number, blob in found.pool.uploads(0).items():
        upload = pf.Payload.from_bytes(blob)
        for row, c in zip(numbers(upload["prototypes"]), upload["classes"].tolist(), strict=True):
            assert row == pytest.approx(before[number][c], rel=1e-4, abs=1e-5)


def test_online_takes_the_mean_over_all_steps(toy, randn):
    found = toy("fedproto", set={"collect": "online"})
    record = found.prepare(3)
    client = pf.Client(record, "fedproto")
    seen, labels = [], []
    for step in range(3):
        z, y = randn(6, 8, seed=step), torch.tensor([0, 1, 2, 3, 3, step])
        batch = pf.Batch(torch.empty(6, 0), y, torch.arange(6))
        found.lifecycle("after_batch", client=client, batch=batch, output=pf.Output(z, z))
        seen += numbers(z)
        labels += y.tolist()
    slow = means_by_class(seen, labels)
    upload = found.call("upload_payload", client=client)
    assert upload["classes"].tolist() == [0, 1, 2, 3]
    for row, c in zip(numbers(upload["prototypes"]), range(4), strict=True):
        assert row == approx(slow[c])


def test_a_class_that_was_only_in_the_dropped_batch_sends_no_prototype(toy):
    """No step saw the class, so there is no mean of its features to send."""
    images = toyfed.make_images([[10, 1], [5, 5]])  # client 0: two batches and one sample left over
    for seed in range(30):
        found = toy("fedproto", set={"variant": "official"}, data=images, seed=seed)
        record = found.client(0)
        batches = training_batches(
            record.train, epochs=1, batch_size=5, drop_last=True, seed=seed, keys=("private", 0, 0)
        )
        if not any(1 in y for _, y, _ in batches):
            break
    else:
        pytest.fail("no seed drops the rare class: the test is of no use")
    found.rounds(1)
    upload = pf.Payload.from_bytes(found.pool.uploads(0)[0])
    assert upload["classes"].tolist() == [0]


# --- Eq. 3 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["weighted", "uniform", "eq3"])
def test_server_aggregate_is_eq_3(toy, rows, mode):
    found = toy("fedproto", set={"aggregate": mode})
    uploads, slow = {}, []
    for client, (classes, counts) in {
        0: ([0, 3], [5, 1]),
        2: ([1, 3], [2, 9]),
        5: ([0, 1, 3], [1, 1, 3]),
    }.items():
        payload, by_class = rows(classes, seed=client, counts=counts)
        if mode == "uniform":
            del payload["counts"]
        uploads[client] = payload
        slow.append({c: (by_class[c], n) for c, n in zip(classes, counts, strict=True)})
    _, server = found.views()
    result = found.call("server_aggregate", server=server, uploads=uploads)
    expected = aggregated(slow, mode)
    assert result.keys() == {"prototypes", "classes"}
    assert result["classes"].tolist() == sorted(expected) == [0, 1, 3]
    for row, c in zip(numbers(result["prototypes"]), [0, 1, 3], strict=True):
        assert row == approx(expected[c])


@pytest.mark.parametrize("mode", ["weighted", "uniform", "eq3"])
def test_counts_travel_only_where_the_mean_needs_them(toy, mode):
    found = toy("fedproto", set={"aggregate": mode})
    found.rounds(1)
    for blob in found.pool.uploads(0).values():
        assert ("counts" in pf.Payload.from_bytes(blob)) == (mode != "uniform")


def test_the_download_is_what_was_aggregated(toy):
    found = toy("fedproto")
    found.rounds(2)
    assert set(found.pool.downloads(0).values()) == {b""}
    uploads = [pf.Payload.from_bytes(b) for b in found.pool.uploads(0).values()]
    triples = [
        zip(u["classes"].tolist(), numbers(u["prototypes"]), u["counts"].tolist(), strict=True)
        for u in uploads
    ]
    slow = aggregated([{c: (row, n) for c, row, n in triple} for triple in triples], "weighted")
    for blob in found.pool.downloads(1).values():
        download = pf.Payload.from_bytes(blob)
        assert download["classes"].tolist() == sorted(slow)
        for row, c in zip(numbers(download["prototypes"]), sorted(slow), strict=True):
            assert row == pytest.approx(slow[c], rel=1e-5, abs=1e-6)


# --- inference ----------------------------------------------------------------------------------


def test_inference_is_the_nearest_prototype_and_never_an_unknown_class(toy, rows):
    found = toy("fedproto", models=toyfed.group(toyfed.PIXELS, K=36))
    payload, prototypes = rows([1, 3], K=36, seed=4)
    record = found.prepare(0, payload)
    x = torch.cat([0.01 * torch.randn(20, 1, 6, 6), torch.randn(20, 1, 6, 6)])
    scores = found.call("inference", client=pf.Client(record, "fedproto"), x=x.double())
    assert scores.shape == (40, 4)
    for image, chosen in zip(x, scores.argmax(1).tolist(), strict=True):
        z = numbers(image.flatten())
        assert chosen == min(prototypes, key=lambda c: l2(z, prototypes[c]))
    assert scores[:, [0, 2]].isneginf().all()
    distances = [[-l2(numbers(i.flatten()), prototypes[c]) for c in (1, 3)] for i in x]
    assert torch.allclose(scores[:, [1, 3]].double(), torch.tensor(distances).double(), atol=1e-4)


def test_before_the_first_prototypes_the_head_decides(toy):
    found = toy("fedproto")
    record = found.prepare(0, double=False)
    x = record.test.inputs()
    record.model.eval()
    scores = found.call("inference", client=pf.Client(record, "fedproto"), x=x)
    assert torch.equal(scores, record.model(x))


# --- options ------------------------------------------------------------------------------------


def test_official_is_all_deviations_together(toy):
    by_name = toy("fedproto", set={"variant": "official"})
    assert by_name.plan.settings.drop_last
    one_by_one = toy("fedproto", set=OFFICIAL, drop_last=True, same_init=True)
    assert toyfed.same(by_name.rounds(3), one_by_one.rounds(3))
    paper = toy("fedproto")
    assert not paper.plan.settings.drop_last
    assert not toyfed.same(paper.rounds(3), one_by_one.lines)


@pytest.mark.parametrize("option", OFFICIAL)
def test_one_deviation_changes_one_option(toy, option):
    def options(found):
        return found.plan.composition.configs["fedproto"].model_dump()

    paper, one = toy("fedproto"), toy("fedproto", set={option: OFFICIAL[option]})
    changed = {k for k, v in options(paper).items() if options(one)[k] != v}
    assert changed == {option} | ({"lambda_"} if option == "distance" else set())
    assert options(one)[option] == OFFICIAL[option]
    assert {*paper.plan.registry.load("method", "fedproto").Config.deviations} == {*OFFICIAL}


@pytest.mark.parametrize(("absent", "known"), [("keep", [0, 1, 3]), ("forget", [1, 3])])
def test_a_class_that_is_absent_from_a_round(toy, randn, absent, known):
    """The class keeps its last prototype or is forgotten; uploaded classes are replaced."""
    found = toy("fedproto", set={"absent": absent})

    def upload(classes, seed):
        rows = randn(len(classes), 8, seed=seed)
        return pf.Payload(
            prototypes=rows, classes=torch.tensor(classes), counts=torch.ones(len(classes)).long()
        )

    first, second = upload([0, 1], 1), upload([1, 3], 2)
    for payload in (first, second):
        update = found.call("server_aggregate", server=found.views()[1], uploads={0: payload})
    assert update["classes"].tolist() == known
    last = dict(zip([0, 1], first["prototypes"], strict=True))
    last |= dict(zip([1, 3], second["prototypes"], strict=True))
    for c, row in zip(known, update["prototypes"], strict=True):
        assert torch.equal(row, last[c])


@pytest.mark.parametrize("option", [o for o in OFFICIAL if o != "absent"])
def test_one_deviation_changes_the_run_where_it_should(toy, option):
    """The loss options change the second round's loss, the other options change the uploads."""
    paper, one = toy("fedproto"), toy("fedproto", set={option: OFFICIAL[option]})
    a, b = paper.rounds(2), one.rounds(2)
    assert a[0]["loss_terms"] == b[0]["loss_terms"]  # no prototypes to align with yet
    same_uploads = paper.pool.uploads(0) == one.pool.uploads(0)
    assert same_uploads == (option in ("distance", "align"))
    assert a[1]["loss_terms"]["align"] != b[1]["loss_terms"]["align"]
