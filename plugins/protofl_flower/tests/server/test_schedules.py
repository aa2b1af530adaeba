"""Tests of deployed runs without rounds, on a fake grid: slow, lost and dead nodes, kills.

Which upload comes first is not known before. But the record says which upload was trained on which
version, and a simulation that does the same must have the same server and clients, bit for bit.
"""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import pytest
from fake_grid import THREE, TWO, FakeTransport, node, run_on, stage
from repeated_schedule import assert_repeatable
from runtime_toys import GIVEN, install, train
from slowness import quick

import protofl as pf
from protofl.records.checkpoint import Commit

METHODS = {"fedproto": {}, "fedavg": {"models": "toy1"}}
OPTIONS = {k: v for k, v in GIVEN.items() if k != "backend"} | {"clients": 3, "progress": False}
OPTIONS |= {"on_lost_client": "skip", "on_bad_upload": "skip", "timing": "buffered", "rounds": 8}


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    install(monkeypatch)
    monkeypatch.setattr("protofl_plugins.schedules.real_time.PAUSE", 0.01)
    return {
        each.key: node(tmp_path, each.key, GIVEN["data_dir"], federation=THREE) for each in THREE
    }


def deployed(transport, method, out, federation=THREE, **options):
    """Run without rounds through a fake grid; return the lines of its record."""
    given = options if options.get("resume") else OPTIONS | METHODS.get(method, {}) | options
    run_on(transport, method, out=out, federation=federation, **given)
    return pf.load_run(out).rows


def repeated(method, out, tmp_path, timing, **options):
    """Check that a simulation of the record has the same states; return the record."""
    given = OPTIONS | METHODS.get(method, {}) | {"method": method, "options": {"timing": timing}}
    del given["progress"]
    return assert_repeatable(out, tmp_path, **given | options)


@pytest.mark.parametrize("method", quick(METHODS, "fedproto"))
def test_slow_and_dead_nodes_delay_nobody(method, tmp_path, nodes):
    """Client 1 is slow, and client 2 is gone after its first upload."""
    transport, out = FakeTransport(nodes), tmp_path / "deployed"
    transport.slow = {"b": 15}
    send = transport.send

    def dies(node, text, *rest):
        if (number := stage(json.loads(text))[0]) > 0 and transport.online().get("c") == node:
            del transport.there["c"]
            assert number
        return send(node, text, *rest)

    transport.send = dies
    rows = deployed(transport, method, out, set={"timing.buffer": 1})
    uploads = [client for row in rows for client in row.schedule["versions"]]
    assert len(uploads) == len(rows) == 8 == rows[-1].schedule["uploads"]
    assert uploads.count("0") > 4 and uploads.count("2") == 1
    assert {c: why for row in rows for c, why in row.absent.items()} == {"2": "left"}
    assert rows[-1].unscored["2"] == "left" and rows[-1].schedule["evaluated"]["0"] == 8
    assert all(row.schedule["clock"] == "real" for row in rows)
    ages = [r.round - version for r in rows for version in r.schedule["versions"].values()]
    assert ages == [row.schedule["staleness"]["max"] for row in rows]
    times = [row.schedule["time"] for row in rows]
    assert times == sorted(times)
    repeated(method, out, tmp_path, {"buffer": 1})


# --- equal to rounds, where nothing is stale ------------------------------------------------------


def states_of(out):
    """Return the checks of the clients' files, and the server's global state as bytes."""
    commit = Commit.read(out / "checkpoint/manifest.json")
    weights = pf.read_weights(out, "last", clients=[]).server
    tensors = {k: v.numpy().tobytes() for k, v in weights.items() if k.startswith("global_state/")}
    return {client: check for client, (_, check) in commit.client_files.items()}, tensors


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_buffer_of_all_clients_equals_rounds_to_the_last_bit(method, tmp_path, nodes):
    transport = FakeTransport(nodes)
    transport.slow = {"b": 5, "c": 3}
    rows = deployed(transport, method, tmp_path / "deployed", set={"timing.buffer": 3}, rounds=4)
    given = {k: v for k, v in (OPTIONS | METHODS[method]).items() if k not in ("timing", "backend")}
    local = train(method, tmp_path / "local", **given | {"rounds": 4}).record
    assert states_of(tmp_path / "deployed") == states_of(tmp_path / "local")
    for ours, theirs in zip(rows, local, strict=True):
        assert ours.train_loss == theirs.train_loss
        assert ours.participants == theirs.participants == 3
    # Scores come with the next upload, those of the last step at its end.
    scores = [row.test_accuracy for row in local]
    assert [row.test_accuracy for row in rows] == [None, *scores[:2], scores[3]]
    assert rows[-1].schedule["evaluated"] == {"0": 4, "1": 4, "2": 4}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["buffered", "continuous"])
def test_one_client_in_training_equals_training_in_sequence(schedule, tmp_path, nodes):
    options = {"timing.concurrency": 1, "timing.mixing": 1}
    given = {"participation": 1 / 3}
    out = tmp_path / "deployed"
    rows = deployed(FakeTransport(nodes), "fedavg", out, timing=schedule, set=options, **given)
    given |= {k: v for k, v in (OPTIONS | METHODS["fedavg"]).items() if k != "timing"}
    local = train("fedavg", tmp_path / "local", **given).record
    assert states_of(out) == states_of(tmp_path / "local")
    assert [row.train_loss for row in rows] == [row.train_loss for row in local]
    assert [row.schedule["staleness"]["max"] for row in rows] == [0] * 8


# --- faults ---------------------------------------------------------------------------------------


class Killed(BaseException):
    """Simulates a signal that ends the process of the run."""


class Faulty(FakeTransport):
    """A grid that loses messages and restarts nodes at random, and kills the run.

    Args:
        nodes: The nodes.
        chance: The source of randomness.
        anew: Builds a node of a key anew, from its disk.
    """

    def __init__(self, nodes, chance, anew):
        super().__init__(nodes)
        self.chance, self.anew, self.calls, self.kill_at = chance, anew, 0, None

    def receive(self, tickets):
        """Count, kill, and return what has come."""
        self.calls += 1
        if self.calls == self.kill_at:
            raise Killed
        return super().receive(tickets)

    def send(self, node, text, *rest):
        """Choose the fate of a message."""
        ticket = super().send(node, text, *rest)
        key = self._waiting[ticket][0]
        if json.loads(text)["jobs"]:
            fate = self.chance.choice([None] * 4 + [5, "late", "lost after work"])
            number, kind = stage(json.loads(text))
            self.fates[key, number, kind] = fate
            self.slow[key] = self.chance.randrange(3, 9)
            if self.chance.random() < 0.2:
                self.there[key] = self.anew(key)
        return ticket


@pytest.mark.slow
@pytest.mark.parametrize("seed", quick(range(12), 0, always=True))
@pytest.mark.parametrize("method", quick(METHODS, "fedavg", always=True))
def test_any_faults_and_kills_are_as_if_clients_had_not_trained(method, seed, tmp_path, nodes):
    """A simulation that trains what the record names, and no more, has the same states."""
    chance = random.Random(f"{method} {seed}")

    def anew(key):
        return node(tmp_path, key, GIVEN["data_dir"], federation=THREE)

    out, kills = tmp_path / "deployed", 0
    while True:
        transport = Faulty({key: anew(key) for key in "abc"}, chance, anew)
        transport.kill_at = chance.randrange(8, 30) if kills < 3 else None
        given = {"set": {"timing.buffer": 2, "timing.max_staleness": 3}}
        if (out / "checkpoint/manifest.json").exists():
            given = {"resume": True}
        elif out.exists():
            given |= {"out": None}
            out = tmp_path / f"deployed{kills}"
        try:
            deployed(transport, method, out, **{k: v for k, v in given.items() if k != "out"})
            break
        except Killed:
            kills += 1
        except pf.RunFailure as error:  # all nodes were lost in a step
            words = ("clients answered", "was evaluated", "was asked")
            assert any(word in str(error) for word in words)
    rows = repeated(method, out, tmp_path, {"buffer": 2, "max_staleness": 3})
    assert kills and len(rows) == 8
    assert any(row.get("absent") for row in rows)


@pytest.mark.slow
def test_two_clients_of_a_node_take_turns(tmp_path, nodes):
    there = {each.key: node(tmp_path, each.key, GIVEN["data_dir"]) for each in TWO}
    transport, out = FakeTransport(there), tmp_path / "deployed"
    transport.slow = {"b": 3}
    waiting, send, receive = set(), transport.send, transport.receive

    def sends(number, *rest):
        assert number not in waiting
        waiting.add(number)
        return send(number, *rest)

    def receives(tickets):
        found = receive(tickets)
        for delivery in found:
            waiting.discard(tickets_of[delivery.ticket])
        return found

    tickets_of = {}

    def noted(number, *rest):
        ticket = sends(number, *rest)
        tickets_of[ticket] = number
        return ticket

    transport.send, transport.receive = noted, receives
    given = {"clients": 4, "set": {"timing.buffer": 2}, "rounds": 14}
    rows = deployed(transport, "fedproto", out, TWO, **given)
    assert {c for row in rows for c in row.schedule["versions"]} == {"0", "1", "2", "3"}
    repeated("fedproto", out, tmp_path, {"buffer": 2}, clients=4, rounds=14)


@pytest.mark.slow
def test_a_node_that_hangs_is_given_up_after_the_deadline(tmp_path, nodes, monkeypatch, capsys):
    monkeypatch.setattr("protofl_flower.server.node_pool.FIRST", 0.01)
    transport, out = FakeTransport(nodes), tmp_path / "deployed"
    transport.fates = {("c", 0, "before_upload"): "never"}
    given = {"timing.buffer": 3, "backend.deadline": 0.1}
    rows = deployed(transport, "fedproto", out, set=given, rounds=3, progress=True)
    assert "waiting for node-c to answer: 0 s" in capsys.readouterr().err
    assert rows[0].absent == {"2": "deadline"} and rows[0].participants == 2
    assert [row.participants for row in rows[1:]] == [3, 3]  # it is asked again


@pytest.mark.slow
def test_a_lying_node_is_left_out_and_the_others_go_on(tmp_path, nodes):
    def lies(text, blobs):
        answer, found = nodes["b"].respond(text, blobs)
        return answer, [b"garbage" if len(blob) > 50 else blob for blob in found]

    transport, out = FakeTransport(nodes | {"b": SimpleNamespace(respond=lies)}), tmp_path / "run"
    rows = deployed(transport, "fedproto", out, set={"timing.buffer": 1}, rounds=6)
    assert {why for row in rows for why in row.absent.values()} <= {"skipped", "failed"}
    assert {c for row in rows for c in row.schedule["versions"]} == {"0", "2"}
    assert all(row.participants == 1 for row in rows)


@pytest.mark.slow
def test_the_run_waits_for_nodes_before_it_ends(tmp_path, nodes):
    """All nodes are gone for a while after the first step."""
    transport = FakeTransport(nodes)
    everyone, looks = transport.online, iter(range(12))

    def there():
        trained = [text for _, text, _ in transport.sent if json.loads(text)["jobs"]]
        away = len(trained) == 3 and not transport._waiting
        return {} if away and next(looks, None) is not None else everyone()

    transport.online = there
    given = {"set": {"timing.buffer": 3}, "wait_for_clients": 60, "rounds": 3}
    rows = deployed(transport, "fedproto", tmp_path / "deployed", **given)
    assert next(looks, None) is None
    assert [row.participants for row in rows] == [3, 3, 3]
    transport.online = lambda: {}
    with pytest.raises(pf.RunFailure, match="no client was asked in round 4"):
        deployed(transport, None, tmp_path / "deployed", resume=True, rounds=4, wait_for_clients=0)


# --- refusals -------------------------------------------------------------------------------------


REAL = ({"timing": f"{__file__}:Virtual"}, "acts in virtual time, and clients of backend flower")


@pytest.mark.parametrize(
    ("options", "words"),
    quick(
        [
            ({"unseen": 0.34}, "--unseen 0.34 with --schedule buffered"),
            ({"observe": ["features"]}, "--observe features with --schedule buffered"),
            REAL,
            ({"min_clients": 3, "set": {"timing.buffer": 2}}, "the server acts on 2 uploads"),
        ],
        REAL,
    ),
)
def test_what_needs_rounds_or_virtual_time_is_refused(options, words, tmp_path, nodes):
    with pytest.raises(pf.UsageError) as caught:
        deployed(FakeTransport(nodes), "fedproto", tmp_path / "run", **options)
    assert words in str(caught.value)


class Virtual:
    """A schedule that knows virtual time alone."""

    @pf.hookimpl
    def open_schedule(self, coordinator):
        """Return nothing."""
