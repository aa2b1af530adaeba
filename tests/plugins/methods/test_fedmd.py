"""Tests of FedMD against loops: digest, consensus, rounds, options."""

from __future__ import annotations

import pytest
import torch
from public_toy import (
    DoubleServer,
    Public,
    check_the_papers_run,
    logits,
    payload,
)
from toy_federation import batch_of, client

from protofl import UsageError
from protofl_plugins.methods.fedmd import FedMD


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def test_digest():
    batch, output = batch_of(6, 4, 3)
    batch.phase, batch.y, batch.index = "digest", torch.empty(0), torch.tensor([4, 0, 2, 7, 5, 1])
    consensus = logits(1, 8, 4)[0]
    terms = FedMD().local_loss(client(FedMD.Config()), batch, output, {"scores": consensus})
    expected = 0.0
    for scores, row in zip(output.logits.tolist(), batch.index.tolist(), strict=True):
        for own, common in zip(scores, consensus[row].tolist(), strict=True):
            expected += abs(own - common) / 4 / 6
    assert set(terms) == {"digest"}
    assert terms["digest"].item() == pytest.approx(expected, rel=1e-12)


def test_consensus():
    z = logits(3, 5, 4)
    uploads = {i: payload(public_logits=z[i]) for i in range(3)}
    found = FedMD().server_aggregate(DoubleServer(FedMD.Config()), uploads)["public_logits"]
    for n in range(5):
        for c in range(4):
            mean = sum(z[i, n, c].item() for i in range(3)) / 3
            assert found[n, c].item() == pytest.approx(mean, rel=1e-12)


def test_rounds(data_dir):
    toy = Public("fedmd", data_dir, dry=True).after(2)
    # Round 0 has nothing to digest. Later rounds first digest the last round's mean.
    assert all(not job.down for job in toy.jobs(0))
    assert list(toy.lines[0]["loss_terms"]) == ["ce"]
    mean = torch.stack([job.up["public_logits"] for job in toy.jobs(0)]).mean(0)
    for job in toy.jobs(1):
        assert torch.equal(job.down["public_logits"], mean)
    assert not toy.jobs(1, "after_server")
    names = [phase.name for phase in toy.plan.composition.phases(toy.plan.info)]
    assert names == ["digest", "private"]


def test_scores_are_those_of_the_trained_model(data_dir):
    toy = Public("fedmd", data_dir).after(1)
    for job in toy.jobs(0):
        record = toy.client(job.client)
        record.model.eval()
        with torch.no_grad():
            expected = record.model(record.public.inputs())
        assert torch.allclose(job.up["public_logits"], expected, atol=1e-6)
        record.model.train()


def test_epochs_and_refusals(data_dir):
    plan = Public("fedmd", data_dir, {"epochs": "paper"}).plan
    assert plan.settings.local_epochs == 10
    check_the_papers_run("fedmd", data_dir)
    assert plan.composition.phases(plan.info)[0].epochs == 20
    with pytest.raises(UsageError) as caught:
        Public("fedmd", data_dir, public=0)
    assert "--public N" in str(caught.value)


def test_without_a_term(data_dir):
    alone = Public("fedmd", data_dir, dry=True, drop=["digest"]).after(2)
    assert [list(row["loss_terms"]) for row in alone.lines] == [["ce"], ["ce"]]
