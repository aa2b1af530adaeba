"""Tests of training phases on public data and after the server's step."""

from __future__ import annotations

from math import ceil

import pytest
import torch
from runtime_toys import install, lines_of, make_plan, open_federation, train, without_times
from slowness import quick
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.data.batches import LEAST, batch_bounds
from protofl.federation.round.round_stages import Workload

EVENTS = []


@pytest.fixture(autouse=True)
def no_events():
    EVENTS.clear()


class Distilling:
    """Simplified DS-FL: upload public scores, download the mean, distil after the server's step."""

    needs_public = True
    terms = {"ce": "private", "distil": "towards the mean scores"}

    @pf.hookimpl
    def phases(self):
        return [
            pf.Phase("warm", epochs=2),
            pf.Phase(),
            pf.Phase("distil", "public", epochs=3, when="after_server"),
        ]

    @pf.hookimpl
    def download_payload(self, server):
        return pf.Payload({k: v for k, v in server.global_state.items() if k == "public_logits"})

    @pf.hookimpl
    def before_training(self, client):
        EVENTS.append(("train", client.round, client.id, "public_logits" in client.received))
        client.scratch["mark"] = (
            float(client.received["public_logits"].sum()) if client.received else 0
        )
        return {"received": dict(client.received)}

    @pf.hookimpl
    def local_loss(self, batch, output, constants):
        if batch.phase == "distil":
            assert len(batch.y) == 0
            target = constants["received"]["public_logits"][batch.index]
            return {"distil": (output.logits - target).pow(2).mean()}
        assert len(batch.y) == len(batch.x)
        return {"ce": cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def upload_payload(self, client):
        EVENTS.append(("upload", client.round, client.id, None))
        with torch.no_grad():
            return pf.Payload(public_logits=client.head(client.features(client.public.inputs())))

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        EVENTS.append(("server", server.round, None, None))
        logits = torch.stack([upload["public_logits"] for upload in uploads.values()]).mean(0)
        return {"public_logits": logits}

    @pf.hookimpl
    def inference(self, client, x):
        EVENTS.append(("evaluate", client.round, client.id, "public_logits" in client.received))
        return client.head(client.features(x))


def plan(**options):
    return make_plan(Distilling, **{"public": 20, "clients": 3, "rounds": 3} | options)


def test_public_samples_are_held_out():
    found = plan()
    split = found.split(0)
    assert len(split.public) == 20
    private = torch.cat([torch.cat([split.train(c), split.test(c)]) for c in range(3)])
    assert not set(split.public.tolist()) & set(private.tolist())
    federation = open_federation(found)
    assert len(federation.server.public) == 20
    assert len(federation.server.public.y) == 0
    assert federation.server.test is not None


def test_the_order_of_a_round():
    lines_of(plan(), rounds=1)
    stages = [event for event, *_ in EVENTS]
    compact = [s for i, s in enumerate(stages) if i == 0 or stages[i - 1] != s]
    assert compact == ["train", "upload"] * 3 + ["server", "train", "evaluate"]
    after = [e for e in EVENTS if e[0] == "train"][-3:]
    assert sorted((client, seen) for *_, client, seen in after) == [(c, True) for c in range(3)]
    assert all(seen for event, *_, seen in EVENTS if event == "evaluate")


def test_downloads_count_once():
    lines = lines_of(plan())
    floats, one = 20 * 4, len(pf.Payload(public_logits=torch.zeros(20, 4)).to_bytes())
    for line in lines:
        # Nothing is downloaded before the first server step. After it, each round's download
        # counts in that round and is not sent again at the start of the next round.
        assert line["download_floats"] == 3 * floats
        assert line["download_bytes"] == 3 * one
        assert line["upload_floats"] == 3 * floats
    held = [seen for event, number, _, seen in EVENTS if event == "train" and number == 1]
    assert all(held), "what came after the server is still there in the next round"


def test_who_did_not_take_part_gets_the_download_anew():
    found = plan(participation=0.67, rounds=6)
    federation = open_federation(found)
    floats, holders = 20 * 4, set()
    for number in range(6):
        line, clients = federation.round(number)
        anew = [c for c in clients if c not in holders] if number else []
        assert line["download_floats"] == (len(anew) + len(clients)) * floats
        holders = set(clients)
        assert federation.holders == holders


def test_epochs_and_samples_of_phases():
    federation = open_federation(plan())
    line, _ = federation.round(0)
    sizes = [len(federation.plan.split(0).train(c)) for c in range(3)]
    assert all(n > 6 for n in sizes)
    steps = {}

    class Counting(Distilling):
        @pf.hookimpl
        def after_batch(self, client, batch):
            key = client.id, batch.phase
            steps[key] = steps.get(key, 0) + len(batch.index)

    lines = lines_of(make_plan(Counting, public=20, clients=3, local_epochs=4), rounds=1)
    for client, size in enumerate(sizes):
        assert steps[client, "warm"] == 2 * size
        assert steps[client, "private"] == 4 * size
        assert steps[client, "distil"] == 3 * 20
    assert set(lines[0]["loss_terms"]) == {"ce", "distil"}
    assert line["train_loss"] == pytest.approx(sum(line["loss_terms"].values()))


@pytest.mark.parametrize("epochs", [0.5, 1.5])
@pytest.mark.parametrize("engine", ["eager", "vmapped"])
def test_fractions_of_epochs_equal_a_plain_loop(engine, epochs):
    """A half is the first half of the batches of an epoch's shuffle, rounded up."""
    plan = make_plan("local", models="toy1", engine=engine, local_epochs=epochs, batch_size=7)
    federation, samples, losses = open_federation(plan), [], []
    line, _ = federation.round(0)
    for client in range(4):
        model, rows = plan.initial_model(client, 0), plan.split(0).train(client)
        data, batches = plan.samples(rows, False), []
        for epoch in range(ceil(epochs)):
            drawn = pf.random_stream(0, "order", "private", 0, client, epoch)
            batches += torch.split(torch.randperm(len(rows), generator=drawn), 7)
        per_epoch = ceil(len(rows) / 7)
        assert len(rows) % 7 >= LEAST and per_epoch % 2
        for index in batches[: ceil(epochs * per_epoch)]:
            loss = cross_entropy(model(data.inputs(index)), data.y[index])
            gradients = torch.autograd.grad(loss, [*model.parameters()])
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= 0.1 * gradient
            samples.append(len(index))
            losses.append(float(loss.detach()))
        trained = federation.pool.client(client).model
        torch.testing.assert_close(trained.state_dict(), model.state_dict())
    assert Workload(plan, 0).training(0) == ceil(epochs * per_epoch)
    mean = sum(n * loss for n, loss in zip(samples, losses, strict=True)) / sum(samples)
    assert line["train_loss"] == pytest.approx(mean, rel=1e-5)


def test_losses_are_weighted_by_the_samples_of_all_phases():
    class Ones(Distilling):
        @pf.hookimpl
        def local_loss(self, client, batch, output):
            term = "distil" if batch.phase == "distil" else "ce"
            return {term: output.logits.sum() * 0 + 1}

    found = make_plan(Ones, public=20, clients=3)
    line = lines_of(found, rounds=1)[0]
    private = 3 * sum(len(found.split(0).train(c)) for c in range(3))
    public = 3 * 3 * batch_bounds(20, 6, False)[-1][1]
    assert line["loss_terms"]["ce"] == pytest.approx(private / (private + public))
    assert line["loss_terms"]["distil"] == pytest.approx(public / (private + public))
    assert line["train_loss"] == pytest.approx(1)


@pytest.mark.slow
def test_evaluation_changes_nothing():
    every, last = lines_of(plan(eval_every=1)), lines_of(plan(eval_every=3))
    accuracies = ("test_accuracy", "client_test_accuracy", "test_accuracy_std", "evaluated")
    accuracies += ("client_accuracies",)
    assert [line["test_accuracy"] is None for line in last] == [True, True, False]
    for one, two in zip(without_times(every), without_times(last), strict=True):
        assert {k: v for k, v in one.items() if k not in accuracies} == {
            k: v for k, v in two.items() if k not in accuracies
        }
    assert every[-1]["test_accuracy"] == last[-1]["test_accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("stop", quick([1, 2], 2, always=True))
@pytest.mark.parametrize("participation", quick([1.0, 0.67], 0.67, always=True))
def test_resuming(tmp_path, monkeypatch, stop, participation):
    install(monkeypatch)
    options = {"participation": participation, "public": 20, "clients": 3, "rounds": 4}
    whole = train(Distilling, tmp_path / "whole", **options)

    def interrupt(event):
        if isinstance(event, pf.events.RoundStarted) and event.round == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Distilling, tmp_path / "cut", progress=interrupt, **options)
    resumed = train(Distilling, tmp_path / "cut", resume=True)
    assert without_times(resumed.record) == without_times(whole.record)
    assert resumed.summary == whole.summary


def test_a_public_phase_needs_public_data():
    with pytest.raises(pf.UsageError, match="needs public data"):
        plan(public="none")


@pytest.mark.parametrize(
    "wrong", [{"data": "publik"}, {"when": "later"}, {"data": "private", "when": "before"}]
)
def test_phases_are_checked(wrong):
    with pytest.raises(pf.UsageError):
        pf.Phase("x", **wrong)


def test_a_default_phase():
    assert pf.Phase() == pf.Phase("private", "private", None, "before_upload")
