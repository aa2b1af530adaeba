"""Tests of training phases: the keys they need, the rows they train on, and their loss terms."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import protofl as pf

PUBLIC = 20
KEPT = torch.tensor([7, 3, 11, 2, 5])


class Specks:
    """120 grey images of four classes."""

    @pf.hookimpl
    def cache_key(self, config, data_dir):
        return "specks"

    @pf.hookimpl
    def decode(self, config, data_dir):
        y = torch.arange(4).repeat(30)
        x = torch.randint(0, 256, (120, 1, 4, 4), generator=torch.Generator().manual_seed(1))
        return pf.datasets.Dataset(x.to(torch.uint8), y, 100, list("abcd"))


class Pixels:
    """A linear classifier of the pixels."""

    feature_dim, min_side, channels = 16, 4, None

    @pf.hookimpl
    def architectures(self, config):
        def build(sample, num_classes, feature_dim):
            return pf.models.SplitModel(nn.Flatten(), nn.Linear(16, num_classes), feature_dim)

        return [pf.models.Architecture("pixels", build, channels_last=False)]


SEEN: list = []


class Digest:
    """Trains on the public samples that the server selects, then on private samples."""

    needs_public = True
    terms = {"ce": "private", "digest": "public"}

    @pf.hookimpl
    def phases(self):
        needs = {"needs": "public_logits", "rows": "public_index", "terms": ("digest",)}
        return [pf.Phase("digest", "public", 2, **needs), pf.Phase(terms=("ce",))]

    @pf.hookimpl
    def download_payload(self, server, client_id):
        return pf.Payload({k: v for k, v in server.global_state.items() if k.startswith("public_")})

    @pf.hookimpl
    def before_training(self, client):
        return {"round": client.round, "received": dict(client.received)}

    @pf.hookimpl
    def local_loss(self, client, batch, output, constants):
        SEEN.append((constants["round"], batch.phase, len(batch.y), batch.x, batch.index))
        if batch.phase == "digest":
            return {
                "digest": (
                    output.logits - constants["received"]["public_logits"][batch.index]
                ).mean()
            }
        return {"ce": cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        rows = KEPT[KEPT < len(server.public)]
        return {"public_index": rows, "public_logits": torch.zeros(len(rows), 4)}

    @pf.hookimpl
    def end_round(self, server):
        return {"evaluates": float(server.evaluates), "public": float(len(server.public))}


class Donor:
    """A method whose loss needs labels, like most losses."""

    terms = {"again": "cross-entropy"}

    @pf.hookimpl
    def local_loss(self, client, batch, output):
        assert batch.phase == "private"
        return {"again": cross_entropy(output.logits, batch.y)}


EXTRA = {
    ("method", "digest"): Digest,
    ("method", "donor"): Donor,
    ("dataset", "specks"): Specks,
    ("model-group", "pixels"): Pixels,
}


@pytest.fixture
def federation(tmp_path):
    from protofl.backends import Host
    from protofl.federation.round.federation import Federation
    from protofl.runs.dry_run.short_rounds import dry_run

    class Here:
        def __init__(self, plan):
            self.host = Host(plan)

        def run(self, jobs):
            for job in jobs:
                yield job, self.host.handle(job)

        def broadcast(self, job):
            self.host.handle(job)

    def make(*, dry=False, **options):
        given = {
            "method": "digest",
            "dataset": "specks",
            "models": "pixels",
            "partition": "iid",
            "clients": 2,
            "rounds": 4,
            "batch_size": 4,
            "public": PUBLIC,
            "data_dir": tmp_path,
        }
        plan = pf.backends.Plan.make(given | options, EXTRA)
        SEEN.clear()
        if dry:
            dry_run(plan)
        federation = Federation(plan, Here(plan))
        federation.start_trial(0)
        return federation

    return make


def test_a_phase_waits_for_what_it_needs(federation):
    run = federation()
    first, _ = run.round(0)
    assert list(first["loss_terms"]) == ["ce"]
    second, _ = run.round(1)
    assert list(second["loss_terms"]) == ["ce", "digest"]
    assert [s[1] for s in SEEN if s[0] == 0].count("digest") == 0
    phases = [s[1] for s in SEEN if s[0] == 1]
    # The digest phase comes first. With batch size 4, its 5 rows are one batch of 5.
    assert phases[:3] == ["digest", "digest", "private"]


def test_a_phase_trains_on_the_rows_that_were_received(federation):
    run = federation()
    run.round(0)
    run.round(1)
    public = run.server.public
    digests = [s for s in SEEN if s[1] == "digest"]
    assert len(digests) == 4  # two clients, two epochs
    for _, _, labels, x, index in digests:
        assert labels == 0
        assert sorted(index.tolist()) == [0, 1, 2, 3, 4]
        assert torch.equal(x, public.inputs(KEPT[index]))


def test_without_the_rows_a_phase_trains_on_all(federation):
    run = federation()
    run.round(0)
    del run.server.global_state["public_index"]
    run.server.global_state["public_logits"] = torch.zeros(PUBLIC, 4)
    run.round(1)
    rows = torch.cat([s[4] for s in SEEN if s[1] == "digest"])
    assert rows.bincount().tolist() == [4] * PUBLIC


def test_a_phase_without_a_term_is_left_out(federation):
    run = federation(drop=["digest"], dry=True)
    run.round(0)
    line, _ = run.round(1)
    assert list(line["loss_terms"]) == ["ce"]
    assert {s[1] for s in SEEN} == {"private"}
    run = federation(drop=["ce"], dry=True)
    run.round(0)
    line, _ = run.round(1)
    assert list(line["loss_terms"]) == ["digest"]
    assert {s[1] for s in SEEN} == {"digest"}


def test_terms_of_a_donor_are_for_private_data(federation):
    run = federation(add=["donor.again"], dry=True)
    run.round(0)
    line, _ = run.round(1)
    assert list(line["loss_terms"]) == ["ce", "digest", "donor.again"]
    run = federation(use={"local_loss": "donor"}, dry=True)
    run.round(0)
    line, _ = run.round(1)
    assert list(line["loss_terms"]) == ["donor.again"]


def test_the_dry_run_sees_one_batch_of_public_samples(federation):
    from protofl.runs.dry_run.short_rounds import dry_run

    run = federation()
    SEEN.clear()
    dry_run(run.plan)
    digests = [sorted(s[4].tolist()) for s in SEEN if s[1] == "digest"]
    # KEPT contains 3 and 2 of the first four public samples; one epoch, two clients.
    assert digests == [[0, 1], [0, 1]]


def test_costly_figures_can_wait_for_an_evaluation(federation):
    run = federation(eval_every=2)
    lines = [run.round(number)[0] for number in range(4)]
    assert [line["extra"]["evaluates"] for line in lines] == [0.0, 1.0, 0.0, 1.0]
    assert [line["test_accuracy"] is not None for line in lines] == [False, True, False, True]
    assert {line["extra"]["public"] for line in lines} == {float(PUBLIC)}


@pytest.mark.parametrize(
    ("count", "sizes"), [(8, [4, 4]), (9, [4, 5]), (11, [4, 7]), (3, [3]), (12, [4, 4, 4])]
)
def test_batches_of_the_server(federation, count, sizes):
    server = pf.Server(federation().server, "digest")
    stream = torch.Generator().manual_seed(3)
    batches = list(server.batches(count, stream))
    assert [len(b) for b in batches] == sizes
    order = torch.randperm(count, generator=torch.Generator().manual_seed(3))
    assert torch.equal(torch.cat(batches), order)


def test_the_server_knows_its_architecture(federation):
    assert pf.Server(federation().server, "digest").architecture == "resnet56"
    with pytest.raises(pf.UsageError, match="unknown architecture 'resnet56'"):
        pf.Server(federation().server, "digest").build("resnet56")
