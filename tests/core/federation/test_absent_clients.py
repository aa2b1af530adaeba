"""Tests of absent clients: a run without them is bit-identical to a run of the other clients.

Each run is compared with a replay of its participants (``--participants-from``).
"""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from runtime_toys import install, make_plan, open_federation, train, without_times
from slowness import quick
from torch import nn

import protofl as pf
from protofl.federation.jobs.jobs import Train
from protofl.federation.round.federation import Federation
from protofl.federation.round.participation import Participation
from protofl.system.files.tensors import read_tensors

OPTIONS = {"clients": 10, "rounds": 4, "dry_run": False}
BEFALLEN = ("absent", "skipped_uploads")
SKIP = {"on_bad_upload": "skip"}


def remembering(diverges):
    """Return a method with state everywhere; some clients upload NaN, as `diverges` decides."""

    class Remembering:
        terms = {"ce": "cross-entropy", "pull": "towards zero"}

        @pf.hookimpl
        def setup_client(self, client):
            client.add_module("gate", nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)))

        @pf.hookimpl
        def local_loss(self, client, batch, output, constants):
            pull = constants["drift"] * client.module("gate")(output.features).pow(2).mean()
            return {"ce": nn.functional.cross_entropy(output.logits, batch.y), "pull": pull}

        @pf.hookimpl
        def before_training(self, client):
            client.state.setdefault("seen", {})[client.round] = torch.tensor(client.round)
            return {"drift": client.state.setdefault("drift", 0.1)}

        @pf.hookimpl
        def after_training(self, client):
            client.state["drift"] += 0.01 * len(client.state["seen"])

        @pf.hookimpl
        def upload_payload(self, client):
            bad = diverges(client.id, client.round)
            return pf.Payload(drift=torch.tensor(torch.nan if bad else client.state["drift"]))

        @pf.hookimpl
        def download_payload(self, server):
            return pf.Payload(server.global_state)

        @pf.hookimpl
        def server_aggregate(self, server, uploads):
            return {"drift": torch.stack([u["drift"] for u in uploads.values()]).mean()}

    return Remembering


Thirty = remembering(lambda client, round: (client + round) % 10 in (4, 5, 6))
"""A method in which 30 % of the clients are absent, different ones in each round."""

Well = remembering(lambda client, round: False)
"""The same method without absent clients, for replays."""


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Provide 320 images of 8×8 pixels, for 40 clients."""
    path = tmp_path_factory.mktemp("data") / "many.npz"
    x = np.random.default_rng(0).integers(0, 256, (320, 8, 8), dtype=np.uint8)
    np.savez(path, x_train=x, y_train=np.arange(320) % 4)
    return f"npz:{path}"


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    """Run ten clients, three of which are absent in each round."""
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        return train(Thirty, tmp_path_factory.mktemp("absent") / "run", **SKIP, **OPTIONS)


def same(befallen, replayed):
    """Check that rows and checkpoints are equal, except for the lists of absent clients."""
    for one, two in itertools.zip_longest(*map(without_times, (befallen.record, replayed.record))):
        assert {key: value for key, value in one.items() if key not in BEFALLEN} == two
    assert befallen.client_accuracies == replayed.client_accuracies
    files = [
        {path.name: path.read_bytes() for path in (run.folder / "checkpoint").glob("*.safetensors")}
        for run in (befallen, replayed)
    ]
    assert files[0] == files[1]


# --- runs and their replays -----------------------------------------------------------------------


@pytest.mark.slow
def test_thirty_percent_absent_equal_their_replay(tmp_path, toys, data):
    given = OPTIONS | {"clients": 40, "dataset": data, "rounds": 2}
    found = train(Thirty, tmp_path / "run", **SKIP, **given)
    for number, row in enumerate(found.record):
        absent = [c for c in range(40) if (c + number) % 10 in (4, 5, 6)]
        assert len(absent) == 12
        assert row["absent"] == dict.fromkeys(map(str, absent), "skipped")
        assert row["skipped_uploads"] == absent
        assert row["answered"] == [c for c in range(40) if c not in absent]
        assert row["participants"] == 28
        assert row["evaluated"] == 40
    kept = {path.name[:12] for path in (found.folder / "checkpoint").glob("client-*")}
    assert len(kept) == 32, "eight have never trained"
    same(found, train(Well, tmp_path / "again", participants_from=found.folder, **given))


@pytest.mark.slow
@pytest.mark.always
def test_no_figure_has_the_absent(tmp_path, toys):
    """Absent clients do not count in FLOPs and training accuracy either."""
    given = OPTIONS | {"rounds": 2, "measure": "flops,train-accuracy"}
    given |= {"eval_clients": "participants"}
    found = train(Thirty, tmp_path / "run", **SKIP, **given)
    assert [row["participants"] for row in found.record] == [7, 7]
    same(found, train(Well, tmp_path / "again", participants_from=found.folder, **given))


@pytest.mark.always
@pytest.mark.slow
def test_wherever_and_whenever_clients_are_kept(tmp_path, toys, ten):
    options = {"client_store": "disk", "checkpoint_every": 2}
    found = train(Thirty, tmp_path / "run", **SKIP, **OPTIONS | options)
    assert without_times(found.record) == without_times(ten.record)
    given = OPTIONS | options | {"participants_from": ten.folder}
    same(found, train(Well, tmp_path / "again", **given))


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize(
    ("store", "every"), quick([("memory", 2), ("disk", 1)], ("memory", 2), always=True)
)
def test_runs_with_absent_clients_and_their_replays_are_resumed(tmp_path, toys, ten, every, store):
    class Killed(BaseException):
        pass

    def kill(event):
        if isinstance(event, pf.events.RoundStarted) and event.round == 3:
            raise Killed

    found = []
    replay = {"participants_from": ten.folder}
    for name, method, given in (("run", Thirty, SKIP), ("replay", Well, replay)):
        options = OPTIONS | {"checkpoint_every": every, "client_store": store, "progress": kill}
        with pytest.raises(Killed):
            train(method, tmp_path / name, **given, **options)
        found.append(train(method, tmp_path / name, resume=True))
    assert without_times(found[0].record) == without_times(ten.record)
    same(*found)


@pytest.mark.slow
def test_a_replay_goes_on_with_its_own_run_alone(tmp_path, toys, ten):
    replay = train(Well, tmp_path / "run", participants_from=ten.folder, **OPTIONS)
    with pytest.raises(pf.UsageError, match=r"--participants-from .*elsewhere differs"):
        train(Well, tmp_path / "run", resume=True, participants_from=tmp_path / "elsewhere")
    # A replay can be replayed, also with another method.
    for method in (Well, "fedproto"):
        again = train(method, tmp_path / str(method), participants_from=replay.folder, **OPTIONS)
        assert [row["answered"] for row in again.record] == [r["answered"] for r in ten.record]


# --- state of an absent client --------------------------------------------------------------------


Failing = remembering(lambda client, round: client == 2 and round in (1, 2))


@pytest.mark.parametrize(("engine", "store"), [("eager", "disk"), ("vmapped", "memory")])
def test_an_absent_client_keeps_its_model_of_before(tmp_path, engine, store):
    plan = make_plan(Failing, engine=engine, client_store=store, models="toy1", clients=6, **SKIP)
    federation = open_federation(plan)

    def client(number):
        path = tmp_path / "client.safetensors"
        federation.save_clients([number], {number: str(path)})
        return read_tensors(path)

    def equal(one, two):
        (tensors, header), (others, other) = one, two
        return header == other and all(torch.equal(tensors[k], others[k]) for k in tensors)

    for number in range(4):
        before = [client(c) for c in (2, 3)] if number else None
        line, trained = federation.round(number)
        assert line.get("absent") == ({"2": "skipped"} if number in (1, 2) else None)
        assert (2 in trained) == (number not in (1, 2))
        if before:
            assert equal(before[0], client(2)) == (number in (1, 2))
            assert not equal(before[1], client(3))


# --- too few clients ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_round_needs_some_clients(tmp_path, toys):
    given = {"clients": 4, "rounds": 3, "dry_run": False} | SKIP
    whole = train(Failing, tmp_path / "whole", min_clients=3, **given)
    assert whole.record[1]["participants"] == 3
    with pytest.raises(pf.RunFailure) as caught:
        train(Failing, tmp_path / "run", min_clients=4, **given)
    assert "3 of 4 clients answered in round 2, and --min-clients asks for 4" in caught.value.what
    assert caught.value.near == "absent: 2 (skipped)"
    assert "--min-clients" in caught.value.do
    again = train(Failing, tmp_path / "run", resume=True, min_clients=3)
    assert without_times(again.record) == without_times(whole.record)
    with pytest.raises(pf.UsageError, match="--min-clients 3 is not possible"):
        train(Failing, tmp_path / "more", **given | {"participation": 0.5, "min_clients": 3})


def test_a_round_without_anybody_ends_the_run(tmp_path, toys):
    nobody = remembering(lambda client, round: True)
    with pytest.raises(pf.RunFailure, match="0 of 4 clients answered in round 1"):
        train(nobody, tmp_path / "run", dry_run=False, **SKIP)


# --- hosts that end -------------------------------------------------------------------------------


class Handle:
    """A host in this process that ends when a client trains in a job of ``ends``."""

    def __init__(self, plan, number, ends):
        self.host, self.number, self.ends = pf.backends.Host(plan), number, ends

    def do(self, job):
        if isinstance(job, Train) and (job.client, job.round, job.when) in self.ends:
            raise pf.backends.HostFailure(f"host {self.number} ended during: {job}")
        return self.host.handle(job)

    def close(self):
        pass


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize(
    ("method", "store"), [(Well, "disk"), ("fedproto", "memory"), ("ds-fl", "memory")]
)
def test_a_client_that_ends_three_hosts_is_absent(tmp_path, method, store):
    options = {"rounds": 4, "clients": 6, "client_store": store}
    options |= {"public": 10} if method == "ds-fl" else {}
    plan = make_plan(method, on_lost_client="skip", **options)
    ends = {(2, 1, "before_upload"), (2, 2, "before_upload"), (5, 2, "before_upload")}
    notes, started = [], []

    def start(number):
        started.append(number)
        return Handle(plan, number, ends)

    told = lambda event: notes.append(getattr(event, "text", ""))  # noqa: E731
    found = Federation(plan, pf.backends.Dispatcher(start, 1), told)
    found.start_trial(0)
    rows = [found.round(number)[0] for number in range(4)]
    lost = [row.absent for row in rows]
    assert lost == [{}, {"2": "failed"}, {"2": "failed", "5": "failed"}, {}]
    assert len(started) == 1 + 3 * 3
    ended = "train of client 2 in round 2: 3 hosts in a row ended in this job; the round goes on"
    assert ended in " ".join(notes)

    same_clients(tmp_path, found, rows, make_plan(method, **options))


def same_clients(folder, found, rows, plan):
    """Check that rounds and clients of a federation equal those of its replay on one host."""
    answered = {(0, n): row for n, row in enumerate(rows) if "answered" in row}
    replayed = Federation(plan, pf.backends.Host(plan), participation=Participation(plan, answered))
    replayed.start_trial(0)
    again = [replayed.round(number)[0] for number in range(len(rows))]
    failures = ("absent", "skipped_uploads")  # only the first run has these
    rows, again = (
        [{k: v for k, v in r.items() if k not in failures} for r in x] for x in (rows, again)
    )
    assert without_times(rows) == without_times(again)
    everyone = range(plan.info.num_clients)
    for one, federation in (("found", found), ("replayed", replayed)):
        federation.save_clients(everyone, {c: str(folder / f"{one}-{c}") for c in everyone})
    for client in everyone:
        files = [(folder / f"{one}-{client}").read_bytes() for one in ("found", "replayed")]
        assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize(
    ("store", "journal"),
    [("disk", 1 << 20), ("memory", 0)],
    ids=["remembered", "too much to remember"],
)
def test_what_is_undone_is_remembered_by_the_dispatcher(tmp_path, store, journal):
    """Hosts end during and after an undo; the client is restored to its previous state."""
    options = {"rounds": 4, "clients": 6, "client_store": store}
    plan = make_plan(Failing, **options, **SKIP)
    ends = {(2, None, "undo"), (2, 3, "before_upload"), (1, 3, "before_upload")} if journal else ()
    ends, started = {*ends}, []

    class Once(Handle):
        def do(self, job):
            at = (getattr(job, "client", None), getattr(job, "round", None))
            at = (*at, getattr(job, "when", job.op))
            if at in ends:
                ends.remove(at)
                raise pf.backends.HostFailure(f"host {self.number} ended during: {job}")
            return self.host.handle(job)

    def start(number):
        started.append(number)
        return Once(plan, number, ())

    found = Federation(plan, pf.backends.Dispatcher(start, 1, journal=journal))
    found.start_trial(0)
    rows = [found.round(number)[0] for number in range(4)]
    assert [row.get("absent") for row in rows] == [None, *[{"2": "skipped"}] * 2, None]
    assert [row.get("skipped_uploads") for row in rows] == [None, [2], [2], None]
    assert not ends
    assert len(started) == (4 if journal else 1)
    same_clients(tmp_path, found, rows, make_plan(Well, **options))


def test_a_client_that_ends_three_hosts_ends_the_run_where_nothing_else_was_said():
    plan = make_plan("fedproto")
    pool = pf.backends.Dispatcher(lambda number: Handle(plan, number, {(2, 0, "before_upload")}), 1)
    federation = Federation(plan, pool)
    federation.start_trial(0)
    with pytest.raises(pf.backends.HostFailure, match="train of client 2 in round 1"):
        federation.round(0)


# --- runs that cannot be replayed -----------------------------------------------------------------


def test_runs_that_cannot_be_replayed(tmp_path, toys):
    run = train("local", tmp_path / "run")

    def refused(words, where=run.folder, **options):
        with pytest.raises(pf.UsageError, match=words) as caught:
            train("local", tmp_path / "new", participants_from=where, **options)
        assert "--participants-from" in caught.value.what
        assert not (tmp_path / "new").exists()

    refused(r"is not a run folder \(it has no config.json\)", tmp_path)
    refused("has 4 clients, and this one 3", clients=3)
    refused("has no round 3 of trial 0", rounds=3)
    refused("has no round 1 of trial 1", trials=2)
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    for damaged, words in (
        ({"answered": "x"}, "metrics.jsonl, line 1, is damaged: answered is 'x'"),
        ({"answered": [True]}, "metrics.jsonl, line 1, is damaged: answered.0 is True"),
        ({"absent": [1]}, "metrics.jsonl, line 1, is damaged: absent is .1"),
    ):
        row = json.loads(lines[0]) | damaged
        (run.folder / "metrics.jsonl").write_text("\n".join([json.dumps(row), lines[1]]))
        refused(words)
    (run.folder / "metrics.jsonl").write_text("\n".join(["[", lines[1]]))
    refused("metrics.jsonl, line 1, is damaged")
