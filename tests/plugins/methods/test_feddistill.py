"""Tests of FedDistill against a loop version of Jeong et al., Algorithm 1."""

from __future__ import annotations

import math

import pytest
import torch
from toy_federation import ONE_CLASS, Toy, batch_of, client, run_defaults

import protofl as pf
from protofl.testing import toy as toyfed
from protofl_plugins.methods.feddistill import FedDistill


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def softmax(row):
    top = max(row)
    powers = [math.exp(v - top) for v in row]
    return [p / sum(powers) for p in powers]


@pytest.mark.parametrize("loss", ["ce", "mse"])
@pytest.mark.parametrize("average", ["softmax", "logits"])
def test_loss_is_algorithm_1_line_5(average, loss):
    batch, output = batch_of(7, 4, 3)
    draw = torch.Generator().manual_seed(2)
    table = torch.randn(4, 4, generator=draw, dtype=torch.float64)
    if average == "softmax":
        table = table.exp() / table.exp().sum(1, keepdim=True)
    known = torch.tensor([True, True, False, True])
    batch.y[:4] = torch.arange(4)
    payload = pf.class_rows(known, class_logits=table)
    config = FedDistill.Config(gamma=0.7, average=average, loss=loss)
    view = client(config, received=payload, num_classes=4)
    given = FedDistill().before_training(view)
    terms = FedDistill().local_loss(view, batch, output, given)
    ce = distill = 0.0
    for row, y in zip(output.logits.tolist(), batch.y.tolist(), strict=True):
        p = softmax(row)
        ce -= math.log(p[y]) / 7
        if known[y] and loss == "mse":
            own = p if average == "softmax" else row
            pairs = zip(own, table[y].tolist(), strict=True)
            distill += 0.7 * sum((a - b) ** 2 for a, b in pairs) / 4 / 7
        elif known[y]:
            target = table[y].tolist() if average == "softmax" else softmax(table[y].tolist())
            distill -= 0.7 * sum(t * math.log(q) for t, q in zip(target, p, strict=True)) / 7
    assert terms["ce"].item() == pytest.approx(ce, rel=1e-12)
    assert terms["distill"].item() == pytest.approx(distill, rel=1e-12)


@pytest.mark.parametrize("average", ["softmax", "logits"])
def test_rows_are_means_over_all_steps_of_the_classes_met(average):
    view = client(FedDistill.Config(average=average), scratch={}, num_classes=4)
    seen = {}
    for seed in range(3):
        batch, output = batch_of(6, 4, 3, seed)
        FedDistill().after_batch(view, batch, pf.Output(output.features, output.logits.detach()))
        for y, row in zip(batch.y.tolist(), output.logits.tolist(), strict=True):
            seen.setdefault(y, []).append(softmax(row) if average == "softmax" else row)
    del seen[0]
    view.scratch["sums"][1][0] = 0  # as if class 0 had never occurred
    payload = FedDistill().upload_payload(view)
    assert payload["classes"].tolist() == sorted(seen)
    for row, c in zip(payload["class_logits"], sorted(seen), strict=True):
        slow = [sum(column) / len(seen[c]) for column in zip(*seen[c], strict=True)]
        assert row.tolist() == pytest.approx(slow, rel=1e-12)


class FakeServer:
    def __init__(self, **options):
        self.config, self.num_classes = FedDistill.Config(**options), 4
        self.state, self.global_state = {}, pf.Payload()


@pytest.mark.parametrize("exclude", [True, False])
def test_mean_over_the_others(exclude):
    generator = torch.Generator().manual_seed(3)
    owned = {0: [0, 1], 3: [1, 2], 5: [1]}
    uploads = {
        i: pf.Payload(
            class_logits=torch.randn(len(c), 4, generator=generator, dtype=torch.float64),
            classes=torch.tensor(c),
        )
        for i, c in owned.items()
    }
    server = FakeServer(exclude_own=exclude)
    server.global_state = FedDistill().server_aggregate(server, uploads)
    for i in (0, 1, 3, 5):  # client 1 did not train: it gets the mean over all
        payload = FedDistill().download_payload(server, i)
        expected = {}
        for j, own in owned.items():
            if not (exclude and i == j):
                for c, row in zip(own, uploads[j]["class_logits"], strict=True):
                    expected.setdefault(c, []).append(row)
        assert payload["classes"].tolist() == sorted(expected)
        for c, row in zip(payload["classes"].tolist(), payload["class_logits"], strict=True):
            torch.testing.assert_close(
                row, sum(expected[c]) / len(expected[c]), rtol=1e-9, atol=1e-12
            )


@pytest.mark.parametrize("exclude", [True, False])
@pytest.mark.parametrize("absent", ["keep", "forget"])
def test_a_class_that_nobody_sends_keeps_its_last_mean(absent, exclude):
    """The reference is {class: (last round, {client: row})}."""
    generator = torch.Generator().manual_seed(3)
    rounds = [
        {0: [0, 1], 3: [1, 2], 5: [1]},
        {3: [1], 4: [1, 3]},  # classes 0 and 2 keep their means
        {5: [0, 2]},
        {0: [0, 3], 3: [3]},
    ]
    server, sent = FakeServer(exclude_own=exclude, absent=absent), {}
    for number, owned in enumerate(rounds):
        if absent == "forget":
            sent = {}
        uploads = {}
        for i, classes in owned.items():
            rows = torch.randn(len(classes), 4, generator=generator, dtype=torch.float64)
            uploads[i] = pf.Payload(class_logits=rows, classes=torch.tensor(classes))
            for c, row in zip(classes, rows, strict=True):
                if c not in sent or sent[c][0] < number:
                    sent[c] = number, {}
                sent[c][1][i] = row
        server.global_state = FedDistill().server_aggregate(server, uploads)
        for i in range(6):
            payload = FedDistill().download_payload(server, i)
            table, known = payload.table("class_logits", 4)
            for c in range(4):
                rows = [r for j, r in sent.get(c, (0, {}))[1].items() if not exclude or j != i]
                assert bool(known[c]) == bool(rows), (number, i, c)
                if rows:
                    slow = sum(rows) / len(rows)
                    torch.testing.assert_close(table[c], slow, rtol=1e-9, atol=1e-12)


def test_variants():
    names = ("exclude_own", "average", "absent")
    paper, official = FedDistill.Config(), FedDistill.Config(variant="official")
    assert [getattr(paper, n) for n in names] == [True, "softmax", "keep"]
    assert [getattr(official, n) for n in names] == [False, "logits", "forget"]
    assert run_defaults(FedDistill, official) == {"drop_last": True, "same_init": True}
    assert run_defaults(FedDistill, paper) == {}


def test_nobody_is_distilled_before_the_first_mean(data_dir):
    toy = Toy("feddistill", data_dir)
    (line,) = toy.rounds(1)
    assert not toy.down[0, 0]
    assert line["loss_terms"].keys() == {"ce"}


def test_clients_of_one_class_have_nobody_to_learn_from(data_dir):
    toy = Toy("feddistill", data_dir, clients=6, **ONE_CLASS)
    assert [len(c) for c in toy.classes] == [1] * 6
    toy.rounds(2)
    for i, own in enumerate(toy.classes):
        assert set(toy.down[1, i]["classes"].tolist()) == set().union(*toy.classes) - own
    assert toy.lines[1]["loss_terms"]["distill"] == 0.0
    assert toy.lines[1]["loss_terms"]["ce"] > 0.0


def test_traffic(data_dir):
    shared = {"exclude_own": False}
    toy = Toy("feddistill", data_dir, shared, dataset="toy", models="flat", eval_every=9)
    toy.rounds(2)
    sent = sum(len(c) for c in toy.classes)
    known = len(set().union(*toy.classes))
    assert toy.lines[1]["upload_floats"] == sent * 100
    assert toy.lines[1]["download_floats"] == 4 * known * 100


def test_a_client_that_has_not_trained_sends_no_rows(tmp_path):
    federation = toyfed.Toy(toyfed.make_plan("feddistill", tmp_path))
    upload = federation.call("upload_payload", client=federation.views()[0])
    assert upload["class_logits"].shape == (0, 4) and len(upload["classes"]) == 0
