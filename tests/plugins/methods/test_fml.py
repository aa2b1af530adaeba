"""Tests of FML: losses against loops, choice of the auxiliary model."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from toy_federation import EXTRA, Toy, batch_of, client, run_defaults

import protofl as pf
from protofl_plugins.methods.fml import FML


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def softmax(row):
    powers = [math.exp(v) for v in row]
    return [p / sum(powers) for p in powers]


def test_losses():
    batch, output = batch_of(6, 4, 3)
    auxiliary = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).double()
    view = client(FML.Config(alpha=0.3, beta=0.9), module={"auxiliary": auxiliary}.get)
    terms = FML().local_loss(view, batch, output)
    expected = dict.fromkeys(FML.terms, 0.0)
    scores = auxiliary(batch.x).tolist()
    for own, aux, y in zip(output.logits.tolist(), scores, batch.y.tolist(), strict=True):
        p, q = softmax(own), softmax(aux)
        expected["ce"] -= 0.3 * math.log(p[y]) / 6
        expected["aux_ce"] -= 0.9 * math.log(q[y]) / 6
        for c in range(4):
            expected["kl"] += 0.7 * q[c] * math.log(q[c] / p[c]) / 6
            expected["aux_kl"] += 0.1 * p[c] * math.log(p[c] / q[c]) / 6
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(expected, rel=1e-10)


def test_each_model_learns_from_its_own_loss_alone():
    batch, output = batch_of(6, 4, 3)
    auxiliary = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).double()
    terms = FML().local_loss(
        client(FML.Config(), module={"auxiliary": auxiliary}.get), batch, output
    )
    weights = [output.logits, *auxiliary.parameters()]
    for name, term in terms.items():
        own, *aux = torch.autograd.grad(term, weights, allow_unused=True, retain_graph=True)
        assert (own is None) == name.startswith("aux_")
        assert all((g is None) != name.startswith("aux_") for g in aux)


def test_official_is_two_backward_passes_without_detaching():
    """FML's published code averages KL over batch and classes and adds two backward passes."""
    batch, output = batch_of(6, 4, 3)
    auxiliary = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).double()
    config = FML.Config(variant="official", alpha=0.3, beta=0.9)
    terms = FML().local_loss(client(config, module={"auxiliary": auxiliary}.get), batch, output)
    own, aux = output.logits, auxiliary(batch.x)

    def kl(log_student, teacher):
        return nn.functional.kl_div(log_student, teacher, reduction="none").mean()

    loss = 0.3 * nn.functional.cross_entropy(own, batch.y)
    loss = loss + 0.7 * kl(own.log_softmax(1), aux.softmax(1))
    aux_loss = 0.9 * nn.functional.cross_entropy(aux, batch.y)
    aux_loss = aux_loss + 0.1 * kl(aux.log_softmax(1), own.softmax(1))
    weights = [output.logits, *auxiliary.parameters()]
    first = torch.autograd.grad(loss, weights, retain_graph=True)
    second = torch.autograd.grad(aux_loss, weights, retain_graph=True)
    found = torch.autograd.grad(sum(terms.values()), weights)
    for one, other, ours in zip(first, second, found, strict=True):
        torch.testing.assert_close(ours, one + other)
    assert (terms["ce"] + terms["kl"]).item() == pytest.approx(loss.item())
    alone = FML().local_loss(
        client(FML.Config(detach=False, alpha=0.3, beta=0.9), module={"auxiliary": auxiliary}.get),
        batch,
        output,
    )
    assert alone["kl"].item() == pytest.approx(4 * terms["kl"].item())


def test_variants_and_their_runs():
    paper, official = FML.Config(), FML.Config(variant="official")
    assert (paper.kl_mean, paper.detach, paper.clip) == ("batch", True, 0.0)
    assert (official.kl_mean, official.detach, official.clip) == ("elements", False, 10.0)
    assert run_defaults(FML, paper) == {}
    asked = {"drop_last": True, "same_init": True, "clip": 10.0}
    assert run_defaults(FML, official) == asked
    assert run_defaults(FML, FML.Config(clip=3)) == {"clip": 3.0}


def test_the_runs_own_clip_goes_before_the_methods(data_dir):
    official = {"variant": "official"}
    assert Toy("fml", data_dir, set=official).plan.settings.clip == 10.0
    assert Toy("fml", data_dir, set=official).plan.settings.drop_last
    assert Toy("fml", data_dir, set=official, clip=2.0).plan.settings.clip == 2.0
    assert Toy("fml", data_dir).plan.settings.clip == 0.0


def test_uniform_mean(data_dir):
    toy = Toy("fml", data_dir)
    toy.rounds(1)
    sent = [toy.up[0, i] for i in range(4)]
    for key, mean in toy.global_state.items():
        if mean.is_floating_point():
            slow = sum(upload[key].double() for upload in sent) / 4
            torch.testing.assert_close(mean.double(), slow, rtol=1e-5, atol=1e-7)
        else:
            assert int(mean) == max(int(upload[key]) for upload in sent)
    assert "auxiliary/buffer/extractor.1.running_mean" in toy.global_state


def test_the_auxiliary_is_the_one_that_the_group_declares(data_dir):
    def chosen(**options):
        return Toy("fml", data_dir, **options).plan.composition.configs["fml"].auxiliary

    assert chosen() == "normed"
    assert chosen(clients=1) == "normed"
    assert chosen(models="flat", dataset="toy") == "cnn4"
    assert chosen(models="heads") == "dense"  # declares none: the first is used
    assert chosen(set={"auxiliary": "dense"}) == "dense"
    assert chosen(models="fedpkd-hom", clients=2) == "resnet20"
    assert chosen(models="htfe3", clients=2) == "resnet10"
    with pytest.raises(pf.UsageError, match=r"auxiliary=vgg.*dense, normed, cnn4"):
        chosen(set={"auxiliary": "vgg"})


def test_a_group_that_declares_an_architecture_it_lacks_is_refused(data_dir, monkeypatch):
    monkeypatch.setattr(EXTRA["model-group", "small"], "auxiliary_architecture", "vgg")
    with pytest.raises(pf.UsageError, match=r"auxiliary=vgg is not an architecture of small"):
        Toy("fml", data_dir)


def test_the_published_auxiliary_at_64_px_and_with_four_heads(data_dir):
    # At 64 px, cnn4 has more parameters than MobileNetV2. No client of res34-htc4 has cnn4.
    for models in ("htfe4", "res34-htc4"):
        toy = Toy("fml", data_dir, models=models, dataset="large", clients=2)
        head = toy.global_state["auxiliary/head.weight"]
        assert toy.plan.composition.configs["fml"].auxiliary == "cnn4"
        floats = sum(t.numel() for t in toy.global_state.values() if t.is_floating_point())
        assert floats == 2_432 + 51_264 + (10_816 * 512 + 512) + head.numel() + len(head)


@pytest.mark.slow
def test_it_runs_with_res34_htc4(data_dir):
    toy = Toy("fml", data_dir, models="res34-htc4", dataset="few", clients=2, dry=True)
    (line,) = toy.rounds(1)
    assert line["loss_terms"]["aux_ce"] > 0


def test_all_start_from_the_servers_auxiliary(data_dir):
    toy = Toy("fml", data_dir)
    started = {key: value.clone() for key, value in toy.global_state.items()}
    for i in range(2):
        packed = pf.models.pack_weights(
            pf.Client(toy.client(i), "fml").module("auxiliary"), "auxiliary"
        )
        assert packed.keys() == started.keys()
        assert all(torch.equal(packed[k], started[k]) for k in packed)


def test_the_ends_of_alpha_are_local_training(data_dir):
    fml = Toy("fml", data_dir, set={"alpha": 1})
    local = Toy("local", data_dir)
    fml.rounds(2), local.rounds(2)
    for i in range(4):
        ours, theirs = fml.client(i).model.state_dict(), local.client(i).model.state_dict()
        assert all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.slow
def test_traffic(data_dir):
    """Two clients each send the 924,708 parameters of the 4-layer CNN for CIFAR-100."""
    toy = Toy("fml", data_dir, dataset="toy", models="flat", clients=2, batch_size=64, eval_every=9)
    (row,) = toy.rounds(1)
    assert row["upload_floats"] == row["download_floats"] == 2 * 924_708
