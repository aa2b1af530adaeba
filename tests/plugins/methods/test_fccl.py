"""Tests of FCCL against loops and published code: L_Col, L_Loc, teachers, rounds, traffic."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from public_toy import DoubleServer, Public, logits, payload, slow_kl
from slow_equations import cross_entropy, numbers
from toy_federation import batch_of

import protofl as pf
from protofl_plugins.methods.fccl import FCCL, col_loss, correlation


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def pearson(a, b):
    """Return the correlation of two lists of numbers."""
    ma, mb = sum(a) / len(a), sum(b) / len(b)
    pairs = list(zip(a, b, strict=True))
    both = sum((x - ma) * (y - mb) for x, y in pairs)
    return both / math.sqrt(sum((x - ma) ** 2 for x in a) * sum((y - mb) ** 2 for y in b))


def slow_col(Z, mean, weight, factor=1.0):
    columns, means = list(zip(*Z, strict=True)), list(zip(*mean, strict=True))
    total = 0.0
    for u, a in enumerate(columns):
        for v, b in enumerate(means):
            M = factor * pearson(a, b)
            total += (1 - M) ** 2 if u == v else weight * (1 + M) ** 2
    return total


@pytest.mark.parametrize(("variant", "factor"), [("paper", 1), ("official", 5 / 6)])
def test_collaborative_updating(variant, factor):
    batch, output = batch_of(6, 4, 3)
    batch.phase, batch.index = "collaborative", torch.tensor([4, 0, 2, 7, 5, 1])
    mean = logits(1, 8, 4)[0]
    config = FCCL.Config(lambda_col=0.3, variant=variant)
    client = SimpleNamespace(config=config)
    terms = FCCL().local_loss(client, batch, output, {"scores": mean})
    expected = slow_col(numbers(output.logits), numbers(mean[batch.index]), 0.3, factor)
    assert set(terms) == {"col"}
    assert terms["col"].item() == pytest.approx(expected, rel=1e-12)


def test_the_published_loss_on_public_samples():
    """The loss of col_update of WenkeHuang/FCCL at 141d72c, fccl+/models/fccl.py, two clients."""
    Z = torch.tensor(
        [
            [[1.0, 0.5, -1.0], [0.2, -0.4, 0.9], [-1.5, 0.3, 0.1], [0.7, 1.2, -0.6]],
            [[0.3, 0.1, 0.2], [-0.5, 0.8, 0.4], [0.9, -1.1, 0.0], [0.6, 0.2, 1.3]],
        ]
    )
    for own, expected in zip(Z, [0.7106367349624634, 1.5547528266906738], strict=True):
        M = correlation(own, Z.mean(0), "unbiased")
        assert col_loss(M, 0.0051).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_scores_without_a_correlation_have_none(rows):
    Z = torch.randn(rows, 3)
    Z[:, 1] = 2.0
    Z.requires_grad_()
    M = correlation(Z, torch.randn(rows, 3), "exact")
    assert (M[1] == 0).all()
    assert (rows < 3) == bool((M == 0).all())
    col_loss(M, 0.0051).backward()
    assert torch.isfinite(Z.grad).all()
    assert rows > 2 or (Z.grad == 0).all()
    assert M.abs().max() < 1 + 1e-6


def client_of(teachers, **options):
    """Return a client whose teachers have the given scores for any batch."""
    modules = {name: lambda x, scores=scores: scores for name, scores in teachers.items()}
    return SimpleNamespace(config=FCCL.Config(**options), module=modules.__getitem__)


def test_local_updating():
    batch, output = batch_of(5, 4, 3)
    batch.phase = "private"
    teachers = dict(zip(("inter", "intra"), logits(2, 5, 4), strict=True))
    client = client_of(teachers, lambda_loc=0.7)
    terms = FCCL().local_loss(client, batch, output, {"scores": logits(1, 8, 4)[0]})
    rows = numbers(output.logits)
    assert terms.keys() == {"ce", "inter", "intra"}
    ce = sum(cross_entropy(r, y) for r, y in zip(rows, batch.y.tolist(), strict=True)) / 5
    assert terms["ce"].item() == pytest.approx(ce, rel=1e-12)
    for name, scores in teachers.items():
        kl = sum(slow_kl(a, b) for a, b in zip(rows, scores.tolist(), strict=True))
        assert terms[name].item() == pytest.approx(0.7 * float(kl) / 5, rel=1e-12)
    batch.phase = "pretrain"
    assert FCCL().local_loss(client, batch, output, {}).keys() == {"ce"}


def test_the_published_loss_on_private_samples():
    """The loss of update_model_via_private_data_with_two_model, WenkeHuang/FCCL at 141d72c."""
    Z = torch.tensor([[1.0, 0.5, -1.0], [0.2, -0.4, 0.9], [-1.5, 0.3, 0.1], [0.7, 1.2, -0.6]])
    intra = torch.tensor([[0.3, 0.1, 0.2], [-0.5, 0.8, 0.4], [0.9, -1.1, 0.0], [0.6, 0.2, 1.3]])
    inter = torch.tensor([[0.1, 0, 0.4], [1.0, 1.2, -0.3], [0.2, 0.5, 0.6], [-0.9, 0.1, 0.3]])
    y, index = torch.tensor([0, 2, 1, 1]), torch.arange(4)
    batch = pf.Batch(torch.empty(4, 1), y, index, phase="private")
    client, output = client_of({"inter": inter, "intra": intra}), pf.Output(Z, Z)
    terms = FCCL().local_loss(client, batch, output, {"scores": torch.empty(8, 3)})
    assert sum(terms.values()).item() == pytest.approx(1.5940346717834473, rel=1e-6)


def test_average():
    z = logits(3, 5, 4)
    uploads = {i: payload(public_logits=z[i]) for i in range(3)}
    server = DoubleServer(FCCL.Config())
    found = FCCL().server_aggregate(server, uploads)["public_logits"]
    for n in range(5):
        for c in range(4):
            mean = sum(z[i, n, c].item() for i in range(3)) / 3
            assert found[n, c].item() == pytest.approx(mean, rel=1e-12)


def test_rounds(data_dir):
    toy = Public("fccl", data_dir, dry=True).after(3)
    # The first round is pretraining. Later rounds use the last round's mean.
    assert all(job.down.keys() == {"pretrain"} for job in toy.jobs(0))
    assert [list(row["loss_terms"]) for row in toy.lines[:2]] == [
        ["ce"],
        ["ce", "col", "inter", "intra"],
    ]
    for number in (1, 2):
        mean = torch.stack([job.up["public_logits"] for job in toy.jobs(number - 1)]).mean(0)
        for job in toy.jobs(number):
            assert job.down.keys() == {"public_logits"}
            assert torch.equal(job.down["public_logits"], mean)
    C, clients = toy.plan.info.num_classes, 4
    assert [row["upload_floats"] for row in toy.lines] == [clients * 20 * C] * 3
    assert [row["download_floats"] for row in toy.lines] == [0] + [clients * 20 * C] * 2


def weights_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_teachers_are_the_pretrained_and_the_last_rounds_model(data_dir):
    toy = Public("fccl", data_dir).after(1)
    pretrained = {i: weights_of(toy.client(i).model) for i in range(4)}
    toy.after(2)
    last = {i: weights_of(toy.client(i).model) for i in range(4)}
    for i in range(4):
        record = toy.client(i)
        record.received = toy.jobs(2)[i].down
        view = pf.Client(record, "fccl")
        # The second phase of a round finds another model, and the teachers of the first.
        for _ in range(2):
            given = FCCL().before_training(view)
            assert torch.equal(given["scores"], record.received["public_logits"])
            for name, expected in (("inter", last[i]), ("intra", pretrained[i])):
                found = view.module(name).state_dict()
                assert found.keys() == expected.keys()
                assert all(torch.equal(found[key], expected[key]) for key in expected)
                assert not any(p.requires_grad for p in view.module(name).parameters())
            with torch.no_grad():
                for parameter in record.model.parameters():
                    parameter += 1
        assert any(not torch.equal(last[i][key], pretrained[i][key]) for key in last[i])


def test_a_late_client_is_pretrained_first(data_dir):
    toy = Public("fccl", data_dir, participation=0.5, rounds=6).after(6)
    seen = set()
    for number in range(6):
        for job in toy.jobs(number):
            expected = "public_logits" if job.client in seen else "pretrain"
            assert job.down.keys() == {expected}
        seen |= {job.client for job in toy.jobs(number)}
    assert len(seen) > 2


def test_epochs(data_dir):
    plan = Public("fccl", data_dir, {"pretrain_epochs": 5, "public_epochs": 3}).plan
    phases = plan.composition.phases(plan.info)
    assert [(phase.name, phase.data, phase.epochs) for phase in phases] == [
        ("pretrain", "private", 5),
        ("collaborative", "public", 3),
        ("private", "private", None),
    ]
    toy = Public("fccl", data_dir, {"pretrain_epochs": 5}).after(1)
    one = Public("fccl", data_dir).after(1)
    assert toy.lines[0]["loss_terms"]["ce"] < one.lines[0]["loss_terms"]["ce"]
    with pytest.raises(pf.UsageError) as caught:
        Public("fccl", data_dir, public=0)
    assert "--public N" in str(caught.value)


def test_without_terms(data_dir):
    alone = Public("fccl", data_dir, drop=["col", "inter", "intra"]).after(3)
    assert [list(row["loss_terms"]) for row in alone.lines] == [["ce"]] * 3
    half = Public("fccl", data_dir, drop=["inter"]).after(2)
    assert list(half.lines[1]["loss_terms"]) == ["ce", "col", "intra"]
