"""Compare faulty deployed runs on a fake grid with simulations of the same participants."""

from __future__ import annotations

import json
import random
import resource
import threading
from contextlib import nullcontext, redirect_stderr
from io import StringIO
from types import SimpleNamespace

import pytest
from fake_grid import RUN, TWO, FakeTransport, deployed, lines, node, run_on, same_state, stage
from hostile_uploads import ALL, DOWNLOAD, DOWNLOADS, HOSTILE, notes_of
from runtime_toys import GIVEN, install, train
from slowness import quick

import protofl as pf
from protofl.federation.jobs.jobs import Train
from protofl.federation.round.federation import Federation
from protofl.federation.round.participation import Participation
from protofl.runs.dry_run.short_rounds import dry_run
from protofl_flower import backend, fingerprints
from protofl_flower.protocol import messages
from protofl_flower.protocol.transport import Deployment
from protofl_flower.server.node_pool import NodePool

OPTIONS = {k: v for k, v in GIVEN.items() if k != "backend"} | {"progress": False, "rounds": 4}
SKIP = OPTIONS | {"on_lost_client": "skip"}


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    install(monkeypatch)
    return {each.key: node(tmp_path, each.key, GIVEN["data_dir"]) for each in TWO}


def simulated(method, found, tmp_path, **options):
    """Check that a run equals a simulated run with the same participants."""
    given = {k: v for k, v in SKIP.items() if k != "progress"} | options
    here = train(method, tmp_path / "local", participants_from=found.folder, **given)
    same_state(here, found)
    for ours, theirs in zip(here.record, found.record, strict=True):
        assert ours.test_accuracy == theirs.test_accuracy
    return here


# --- lost messages --------------------------------------------------------------------------------

PHASES = {"fedproto": (), "fedpkd": ("after_server",)}


@pytest.mark.slow
@pytest.mark.parametrize("seed", quick(range(12), 0, always=True))
@pytest.mark.parametrize("method", quick(PHASES, "fedpkd", always=True))
def test_any_faults_are_as_if_clients_had_not_trained(method, seed, tmp_path, nodes):
    """At random, messages are lost before or after the work, late or refused; nodes restart."""
    chance = random.Random(seed)
    restarts = {}
    fates = {}
    for key in nodes:
        for number in range(4):
            for when in ("before_upload", *PHASES[method], "Evaluate"):
                fates[key, number, when] = chance.choice(
                    [None] * 5 + [5, 8, "late", "lost after work"]
                )
                restarts[key, number, when] = chance.random() < 0.3
    for number in range(4):  # one node has to be there
        fates["ab"[number % 2], number, "before_upload"] = None
        fates["ab"[number % 2], number, "Evaluate"] = None

    def restarting(key):
        hosts = [nodes[key]]

        def respond(text, blobs):
            if restarts.pop((key, *stage(json.loads(text))), False):
                hosts[0] = node(tmp_path, key, GIVEN["data_dir"])
            return hosts[0].respond(text, blobs)

        return SimpleNamespace(respond=respond)

    more = {"public": 12} if method == "fedpkd" else {}
    there = {key: restarting(key) for key in nodes}
    found, _ = deployed(method, there, fates, out=tmp_path / "deployed", **SKIP | more)
    simulated(method, found, tmp_path, **more)


@pytest.mark.slow
def test_nodes_that_are_gone_for_a_while_are_waited_for(tmp_path, nodes, monkeypatch):
    monkeypatch.setattr("protofl.federation.round.participation.PAUSE", 1e-3)
    local = train("fedproto", tmp_path / "local", rounds=4, on_lost_client="skip")
    transport = FakeTransport(nodes)
    looks, everyone = iter(range(20)), transport.online

    def there():
        done = transport.sent and stage(json.loads(transport.sent[-1][1])) == (0, "Evaluate")
        away = done and len(transport.left) > 6 and next(looks, None) is not None
        return {} if away else everyone()

    transport.online = there
    given = SKIP | {"min_clients": 4, "wait_for_clients": 60}
    found = run_on(transport, "fedproto", out=tmp_path / "deployed", **given)
    assert next(looks, None) is None
    assert lines(local) == lines(found)
    same_state(local, found)
    transport.online = lambda: {"a": 0}
    with pytest.raises(pf.RunFailure, match="2 of 4 clients can be reached in round 1") as caught:
        given |= {"wait_for_clients": 0}
        run_on(transport, "fedproto", out=tmp_path / "again", **given)
    assert "missing: 1, 3" in str(caught.value)


@pytest.mark.slow
def test_who_answers_after_the_deadline_is_absent(tmp_path, nodes):
    fates = {("a", 1, "before_upload"): "never", ("b", 2, "Evaluate"): "never"}
    given = SKIP | {"set": {"backend.deadline": 0.01}}
    found, _ = deployed("fedproto", nodes, fates, out=tmp_path / "deployed", **given)
    assert found.record[1]["absent"] == {"0": "deadline", "2": "deadline"}
    assert found.record[2]["unscored"] == {"1": "deadline", "3": "deadline"}
    simulated("fedproto", found, tmp_path)


@pytest.mark.slow
def test_a_round_asks_among_those_who_are_online(tmp_path, nodes):
    found, _ = deployed("fedproto", {"a": nodes["a"]}, out=tmp_path / "deployed", **SKIP)
    assert [row["answered"] for row in found.record] == [[0, 2]] * 4
    assert not any(row.get("absent") for row in found.record)
    simulated("fedproto", found, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", PHASES)
def test_few_messages_and_bytes_cross(method, tmp_path, nodes):
    """Two or three messages per node and round; at most 2 KB per job beyond the payloads."""
    more = {"public": 12} if method == "fedpkd" else {}
    found, transport = deployed(method, nodes, out=tmp_path / "deployed", **SKIP | more)
    rounds = len(found.record)
    asked = [json.loads(text) for _, text, _ in transport.sent]
    assert len(asked) == len(nodes) * (1 + rounds * (2 + len(PHASES[method])))
    jobs = sum(len(each["jobs"]) for each in asked)
    plans = sum(len(each.pop("text", "")) for each in asked)
    there = sum(len(text) + sum(map(len, blobs)) for _, text, blobs in transport.sent) - plans
    back = sum(map(len, transport.left))
    counted = (
        [row["upload_bytes"] for row in found.record],
        [row["download_bytes"] for row in found.record],
    )
    assert back <= sum(counted[0]) + 2048 * jobs
    # The download for the evaluation is that of the next round, and the record counts it there.
    assert there <= 2 * sum(counted[1]) + 2048 * jobs


# --- nodes that have changed ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_disk_makes_the_clients_absent(tmp_path, nodes):
    """In one round, the files of a node can't grow."""

    def respond(text, blobs):
        usual = resource.getrlimit(resource.RLIMIT_FSIZE)
        if stage(json.loads(text)) == (1, "before_upload"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, usual[1]))
        try:
            with redirect_stderr(StringIO()):  # pytest's stderr is a file
                return nodes["a"].respond(text, blobs)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)

    transport = FakeTransport(nodes | {"a": SimpleNamespace(respond=respond)})
    found = run_on(transport, "fedproto", out=tmp_path / "deployed", **SKIP)
    assert found.record[1]["absent"] == {"0": "failed", "2": "failed"}
    assert [i for i, row in enumerate(found.record) if row.get("absent")] == [1]
    simulated("fedproto", found, tmp_path)
    assert not any(str(tmp_path).encode() in part for part in transport.left)


@pytest.mark.slow
def test_a_node_with_other_data_than_last_time_is_refused(tmp_path, nodes, monkeypatch):
    facts = fingerprints.facts_of
    hosts = [nodes["a"]]

    def respond(text, blobs):
        with monkeypatch.context() as patch:
            if stage(json.loads(text)) == (1, "before_upload"):
                if len(hosts) == 1:
                    hosts.append(node(tmp_path, "a", GIVEN["data_dir"]))
                other = lambda plan: facts(plan) | {"data": "other"}  # noqa: E731
                patch.setattr("protofl_flower.node.host.facts_of", other)
            return hosts[-1].respond(text, blobs)

    there = nodes | {"a": SimpleNamespace(respond=respond)}
    found, _ = deployed("fedproto", there, out=tmp_path / "deployed", **SKIP)
    assert found.record[1]["absent"] == {"0": "refused", "2": "refused"}
    simulated("fedproto", found, tmp_path)


@pytest.mark.slow
def test_what_has_changed_on_a_node_is_told_when_a_run_is_resumed(
    tmp_path, nodes, monkeypatch, capsys
):
    out, facts = tmp_path / "deployed", fingerprints.facts_of
    deployed("fedproto", nodes, out=out, **SKIP | {"rounds": 1})
    other = {"torch": "1.0", "code of fedproto": "0123456789ab"}
    monkeypatch.setattr("protofl_flower.node.host.facts_of", lambda plan: facts(plan) | other)
    again = {key: node(tmp_path, key, GIVEN["data_dir"]) for key in nodes}
    deployed(None, again, out=out, resume=True, rounds=2)
    said = capsys.readouterr().err
    assert "node-a has changed since the last round: its torch was" in said
    assert "its code of fedproto was" in said
    assert "node-b has torch 1.0, the run has" in said
    monkeypatch.setattr(
        "protofl_flower.node.host.facts_of", lambda plan: facts(plan) | {"data": "x"}
    )
    again = {key: node(tmp_path, key, GIVEN["data_dir"]) for key in nodes}
    with pytest.raises(pf.UsageError, match="the data of this node have changed"):
        deployed(None, again, out=out, resume=True, rounds=3)


@pytest.mark.slow
def test_two_runs_share_nodes(tmp_path, nodes, monkeypatch):
    """Nodes switch between the plans of two runs; each run equals one without the other."""
    # The threads are like two processes: runs of one process wait for each other.
    monkeypatch.setattr("protofl.runs.lifecycle.lifecycle.one_run", lambda wait: nullcontext())
    turn, found, lock = threading.Barrier(2, timeout=60), {}, threading.Lock()
    began = set()

    def shared(key):
        def respond(text, blobs):
            asked = json.loads(text)
            if stage(asked) == (0, "before_upload") and (key, asked["run"]) not in began:
                began.add((key, asked["run"]))
                turn.wait()
            with lock:
                return nodes[key].respond(text, blobs)

        return SimpleNamespace(respond=respond)

    there = {key: shared(key) for key in nodes}

    def carry_out(number):
        given = SKIP | {"seed": number, "out": tmp_path / f"deployed-{number}"}
        found[number], _ = deployed("fedproto", there, run=f"{number:016x}", **given)

    threads = [threading.Thread(target=carry_out, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (1, 2):
        given = {"on_lost_client": "skip", "rounds": 4, "seed": number}
        local = train("fedproto", tmp_path / f"local-{number}", **given)
        assert lines(local) == lines(found[number])
        same_state(local, found[number], run=f"{number:016x}")


# --- hostile uploads and downloads ----------------------------------------------------------------


class HostileTransport(FakeTransport):
    """A grid that replaces the upload of a client in some rounds."""

    def __init__(self, nodes, changes):
        super().__init__(nodes)
        self._changes = changes

    def _carry(self, ticket):
        asked = json.loads(self._waiting[ticket][1])
        number, when = stage(asked)
        found = super()._carry(ticket)
        clients = [job["header"]["client"] for job in asked["jobs"]]
        if number not in self._changes or when != "before_upload" or HOSTILE not in clients:
            return found
        delivery, change = found[0], self._changes[number]
        values, blobs = json.loads(delivery.text), list(delivery.blobs)
        reply = values["replies"][clients.index(HOSTILE)]
        blob = blobs[reply["blob"]]
        given = blob if hasattr(change, "of_bytes") else pf.Payload.from_bytes(blob)
        reply["blob"] = len(blobs)
        blobs.append(change(given))
        return [type(delivery)(ticket, json.dumps(values), blobs)]


@pytest.mark.slow
def test_hostile_uploads_are_refused_as_in_every_run(tmp_path, monkeypatch):
    """Messages of payload validation equal those of a simulated run, plain and encoded."""
    made, usual = iter(range(99)), notes_of(ALL)
    install(monkeypatch)

    def begin(changes, *, told, transforms=None, **options):
        place = tmp_path / str(next(made))
        place.mkdir()
        there = {each.key: node(place, each.key, GIVEN["data_dir"]) for each in TWO}
        given = GIVEN | {"method": "fedproto", "transforms": list(transforms or {})} | options
        plan = pf.backends.Plan.make(given)
        learned = dry_run(plan)
        transport = HostileTransport(there, changes)
        pool = NodePool(
            plan, Deployment(transport, TWO, RUN), backend.Flower.Config(poll=1e-6, patience=0)
        )
        found = Federation(plan, pool, told, participation=Participation(plan))
        found.learned = learned
        found.start_trial(0)
        return found

    notes = notes_of(ALL, begin)
    assert len(notes) == len(ALL) == 69
    assert {what: notes[what] for what in ALL} == {what: usual[what] for what in ALL}


def test_hostile_downloads_are_refused_by_the_node(nodes):
    plan = pf.backends.Plan.make(GIVEN | {"method": "fedproto"})
    text = plan.to_json()
    request = {"run": RUN, "plan": messages.digest_of(text), "text": text, "trial": 0}
    request |= {"names": {}, "keep": []}

    def answer(blob):
        job = {"header": Train(0, 1).header(), "blob": 0, "base": ""}
        found, _ = nodes["a"].respond(json.dumps(request | {"jobs": [job]}), [blob])
        return json.loads(found)["replies"][0]["header"]

    for what, (change, words) in DOWNLOADS.items():
        found = answer(change(pf.Payload(DOWNLOAD)))
        assert words in found["failure"]["what"], what
        assert found["failure"]["trace"] == ""
    assert answer(DOWNLOAD.to_bytes())["kind"] == "TrainReply"
