"""Tests of the dispatcher with fake hosts: placement, moves, and hosts that end.

A client's state is the list of its train jobs, and each train job returns this list. So a client
that was lost, trained twice or restored from an old file returns another list.
"""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

import protofl as pf
from protofl.backends import Absent
from protofl.errors import Late
from protofl.federation.jobs.jobs import (
    Drop,
    Evaluate,
    EvaluateReply,
    Load,
    Save,
    StartTrial,
    Train,
)
from protofl.federation.jobs.recovery import Deadline
from protofl.federation.pools import host_pool
from protofl.schedules import TrainReply


class FakeHost:
    """A host whose clients are lists."""

    def __init__(self, world, number):
        self.world, self.number, self.ended = world, number, False
        self.clients, self.files = {}, {}

    def do(self, job):
        client = getattr(job, "client", None)
        assert self not in self.world.closed, "a host that was closed is asked"
        self.world.log.append((self.number, job.op, client))
        if self.world.ends(self, job):
            self.ended = True
        if self.ended:
            raise pf.backends.HostFailure(
                f"host {self.number} ended: {job.op} of {client}", do="hint"
            )
        return self.operations[type(job)](self, job)

    def close(self):
        self.ended = True
        self.world.closed.append(self)

    def state(self, client):
        if client not in self.clients:
            file = self.files.get(client)
            self.clients[client] = json.loads(Path(file).read_text()) if file else []
        return self.clients[client]

    def start_trial(self, job):
        self.clients, self.files = {}, dict(job.files)
        return pf.backends.Reply()

    def train(self, job):
        self.world.gate(self, job)
        state = self.state(job.client)
        state.append([job.round, job.when, job.blob.decode()])
        seconds = self.world.costs.get(job.client, 1.0)
        return TrainReply({"train": seconds}, blob=json.dumps(state).encode())

    def evaluate(self, job):
        state = self.state(job.client)
        if not state:
            del self.clients[job.client]  # a client that never trained is not kept
        return EvaluateReply(blob=json.dumps(state).encode())

    def save(self, job):
        Path(job.path).write_text(json.dumps(self.state(job.client)))
        return pf.backends.Reply()

    def load(self, job):
        self.drop(job)
        self.files[job.client] = job.path
        return pf.backends.Reply()

    def drop(self, job):
        self.clients.pop(job.client, None)
        self.files.pop(job.client, None)
        return pf.backends.Reply()

    operations: ClassVar = {
        StartTrial: start_trial,
        Train: train,
        Evaluate: evaluate,
        Save: save,
        Load: load,
        Drop: drop,
    }


class World:
    """Fake hosts, the log of their jobs, and the jobs in which they end."""

    def __init__(self, folder, hosts=2, room=100, **options):
        self.folder, self.room = folder, room
        self.log, self.closed, self.started, self.notes = [], [], [], []
        self.costs, self.kills = {}, []
        self.ends = self._planned
        self.gate = lambda host, job: None
        self.lock = threading.Lock()
        self.pool = pf.backends.Dispatcher(self.start, hosts, **options)
        self.pool.report = self.notes.append
        self.expected = {}

    def start(self, number):
        if len(self.started) >= self.room:
            raise pf.backends.HostFailure("no room for another host")
        self.started.append(FakeHost(self, number))
        return self.started[-1]

    def _planned(self, host, job):
        """Return True once for each job that `kill` named."""
        with self.lock:
            for wanted in self.kills:
                values = {"op": job.op, "number": host.number, **job.header()}
                if all(values.get(key) == value for key, value in wanted.items()):
                    self.kills.remove(wanted)
                    return True
        return False

    def kill(self, **wanted):
        self.kills.append(wanted)

    def trial(self, files=None, trial=0):
        given = {client: str(path) for client, path in (files or {}).items()}
        self.expected = {c: json.loads(Path(p).read_text()) for c, p in (files or {}).items()}
        self.pool.broadcast(StartTrial(trial, given, str(self.folder / "parked")))

    def train(self, clients, round, when="before_upload", blob=None):
        blob = blob if blob is not None else f"download {round}".encode()
        jobs = [Train(client, round, when, blob=blob) for client in clients]
        for client in clients:
            self.expected.setdefault(client, []).append([round, when, blob.decode()])
        self.check(jobs)

    def evaluate(self, clients, round=0):
        self.check([Evaluate(client, round) for client in clients])

    def check(self, jobs):
        found = {job.client: json.loads(reply.blob) for job, reply in self.pool.run(jobs)}
        assert found == {job.client: self.expected.get(job.client, []) for job in jobs}

    def save(self, clients, round):
        paths = {c: str(self.folder / f"client-{c}-{round}.json") for c in clients}
        jobs = [Save(client, paths[client]) for client in clients]
        assert len(list(self.pool.run(jobs))) == len(clients)
        for client in clients:
            assert json.loads(Path(paths[client]).read_text()) == self.expected[client]
        return paths

    def alive(self):
        """Return {client: host} for clients that are on a host."""
        found = {}
        for host in self.started:
            if not host.ended:
                for client in host.clients:
                    assert client not in found, "a client lives on two hosts"
                    found[client] = host.number
        return found

    def calls(self, op):
        return [(number, client) for number, o, client in self.log if o == op]


@pytest.fixture
def world(tmp_path):
    opened = []

    def open_device_model(*given, **options):
        opened.append(World(tmp_path, *given, **options))
        opened[-1].trial()
        return opened[-1]

    yield open_device_model
    for one in opened:
        one.pool.close()
        assert all(host.ended for host in one.started)
        assert not list(tmp_path.glob("parked/*"))


# --- placement -----------------------------------------------------------------------------------


def test_a_client_stays_where_it_trained(world):
    hosts = world()
    meet(hosts, range(6))
    before = hosts.alive()
    assert len(before) == 6
    for round in (1, 2):
        hosts.evaluate(range(6))
        hosts.train(range(6), round, "before_upload")
        hosts.train(range(6), round, "after_server")
    # A client that never trained is evaluated on any host and stays free.
    hosts.evaluate([9])
    assert hosts.alive() == before == place_of(hosts, range(6))
    assert not hosts.notes


def place_of(hosts, clients):
    """Return {client: host that trained it last}."""
    found = {c: n for n, c in hosts.calls("train")}
    return {c: found[c] for c in clients}


def meet(hosts, first):
    """Train round 0 so that both hosts train the same number of clients."""
    waiting = threading.Barrier(2, timeout=20)

    def gate(host, job):
        if waiting.n_waiting < 2 and job.round == 0:
            waiting.wait()

    hosts.gate = gate
    hosts.train([*first], 0)
    hosts.gate = lambda host, job: None


def test_moves_when_one_host_has_too_much(world, tmp_path):
    hosts = world()
    meet(hosts, range(4))  # two on each
    homes = hosts.alive()
    here = [c for c in homes if homes[c] == 0]
    hosts.costs = {c: 8.0 if c in here else 0.1 for c in homes}
    for round in (1, 2, 3):  # round 1 measures the costs
        hosts.train(range(4), round)
    after = hosts.alive()
    assert after.keys() == homes.keys()
    assert {after[c] for c in here} == {0, 1}, "the two costly clients are on different hosts"
    assert len(hosts.calls("load")) == len(hosts.calls("drop")) == len(hosts.calls("save")) > 0
    assert not list(tmp_path.glob("parked/*/*")), "hand-over files are gone"


def test_clients_that_rest_do_not_count(world):
    hosts = world()
    meet(hosts, range(4))
    homes = hosts.alive()
    here = [c for c in homes if homes[c] == 0]
    hosts.costs = dict.fromkeys(homes, 1.0)
    hosts.train(range(4), 1)
    hosts.train(here, 2)  # both on one host take twice as long as on two
    after = hosts.alive()
    assert {after[c] for c in here} == {0, 1}


def test_measured_seconds_outlive_a_trial(world):
    hosts = world()
    hosts.costs = {0: 3.0, 1: 1.0, 2: 1.0, 3: 1.0}
    hosts.train(range(4), 0)
    hosts.trial(trial=1)
    hosts.log.clear()
    hosts.train(range(4), 0)
    places = hosts.alive()
    assert [c for c in places if places[c] == places[0]] == [0]
    assert not hosts.calls("load")


def test_a_client_in_a_file_needs_no_second_file_to_move(world, tmp_path):
    hosts = world()
    meet(hosts, range(4))
    homes = hosts.alive()
    here = [c for c in homes if homes[c] == 0]
    hosts.costs = {c: 9.0 if c in here else 0.1 for c in homes}
    hosts.train(range(4), 1)
    hosts.save(range(4), 1)
    hosts.log.clear()
    hosts.train(range(4), 2)
    assert hosts.calls("load")
    assert not hosts.calls("save")


# --- recovery ------------------------------------------------------------------------------------


@pytest.mark.parametrize("saved", [False, True], ids=["seed", "file"])
@pytest.mark.parametrize("op", ["train", "evaluate", "save", "drop", "load"])
def test_a_host_ends_in_a_job(world, op, saved):
    """The host may end in any kind of job; the moves of round 2 are drops and loads."""
    hosts = world()
    meet(hosts, range(4))
    homes = hosts.alive()
    here = [c for c in homes if homes[c] == 0]
    hosts.costs = {c: 9.0 if c in here else 0.1 for c in homes}
    hosts.train(range(4), 1)
    if saved:
        hosts.save(range(4), 1)
    hosts.kill(op=op)
    for round in (2, 3):
        hosts.train(range(4), round)
        hosts.train(range(4), round, "after_server")
        hosts.evaluate(range(6))
    hosts.save(range(4), 3)
    assert not hosts.kills
    assert len(hosts.started) == 3
    assert len(hosts.notes) == 1
    assert "ended" in hosts.notes[0]
    assert "replaced" in hosts.notes[0]
    hosts.alive()


def test_a_lost_client_is_restored_when_it_is_needed(world):
    hosts = world(1)
    hosts.train(range(4), 0)
    hosts.save([0, 1], 0)
    hosts.train([1, 2], 1)
    hosts.kill(op="train", client=0)
    hosts.log.clear()
    hosts.train([0], 2)
    assert hosts.calls("train") == [(0, 0), (0, 0)], "client 0 lies in its file, no other is needed"
    hosts.log.clear()
    hosts.train([1, 2], 3)
    assert hosts.calls("train") == [(0, 1)] * 2 + [(0, 2)] * 3
    assert hosts.notes == ["host 0 ended: train of 0; replaced, 4 clients to restore"]
    hosts.evaluate([3])


def test_between_rounds_and_between_trials(world, tmp_path):
    hosts = world()
    hosts.train(range(4), 0)
    paths = hosts.save(range(4), 0)
    hosts.started[0].ended = hosts.started[1].ended = True
    hosts.train([1, 2], 1)
    for host in hosts.started:
        host.ended = True
    hosts.trial(paths, trial=1)
    hosts.train([3], 0)
    for host in hosts.started:
        host.ended = True
    hosts.evaluate(range(5))
    hosts.train(range(4), 1)


def test_files_of_the_trial_are_brought_up_to_date(world):
    hosts = world(1)
    hosts.train(range(3), 0)
    paths = hosts.save(range(3), 0)
    hosts.trial(paths, trial=0)  # as after --resume
    hosts.train([0], 1)
    newer = hosts.save([0], 1)
    Path(paths[0]).unlink()
    hosts.kill(op="train", client=1)
    hosts.train([1], 2)
    assert hosts.started[-1].files == {0: newer[0], 1: paths[1], 2: paths[2]}
    hosts.evaluate(range(3))


def test_three_hosts_end_in_one_job(world):
    hosts = world()
    hosts.train(range(4), 0)
    for _ in range(3):
        hosts.kill(op="train", client=2)
    with pytest.raises(pf.backends.HostFailure, match="train of 2") as caught:
        hosts.train(range(4), 1)
    assert "3 hosts" in caught.value.near
    assert caught.value.do == "hint"
    assert len(hosts.started) == 4
    assert len(hosts.notes) == 2, "hosts that were replaced before it was given up"


def test_two_hosts_ending_in_one_job_is_survived(world):
    hosts = world()
    hosts.kill(op="train", client=2)
    hosts.kill(op="start of a trial")
    hosts.train(range(4), 0)
    assert len(hosts.started) == 4
    hosts.train(range(4), 1)


def test_other_hosts_take_over_where_none_can_be_started(world):
    hosts = world(3, room=3)
    hosts.train(range(6), 0)
    hosts.kill(op="train", client=2)
    hosts.train(range(6), 1)
    assert "not replaced (no room for another host)" in hosts.notes[0]
    hosts.trial(trial=1)
    hosts.train(range(6), 0)
    hosts.kill(op="train", client=2)
    hosts.train(range(6), 1)
    hosts.kill(op="train", client=2)
    with pytest.raises(pf.backends.HostFailure, match="no room"):
        hosts.train(range(6), 2)


# --- size of the journal -------------------------------------------------------------------------


def test_what_is_remembered_is_bounded(world):
    hosts = world(1, journal=100)
    for round in range(4):
        hosts.train(range(3), round, blob=b"%d" % round * 30)
    hosts.kill(op="train", client=1)
    with pytest.raises(pf.backends.HostFailure, match="host 0 ended") as caught:
        hosts.train([1], 4)
    assert "--checkpoint-every" in caught.value.do


def test_a_checkpoint_makes_room(world):
    hosts = world(1, journal=100)
    for round in range(12):
        hosts.train(range(3), round, blob=b"%2d" % round * 15)
        if round % 3 == 2:
            hosts.save(range(3), round)
    hosts.kill(op="train", client=1)
    hosts.train(range(3), 12)
    hosts.trial(trial=1)
    hosts.train(range(3), 0, blob=b"y" * 90)
    hosts.kill(op="evaluate")
    hosts.evaluate(range(3))


def test_the_same_bytes_count_once(world):
    hosts = world(1, journal=100)
    hosts.train(range(50), 0, blob=b"x" * 90)
    hosts.kill(op="evaluate", client=7)
    hosts.evaluate(range(50))


# --- jobs that do not end -------------------------------------------------------------------------


def failing(client, **job):
    """Return a gate: in round 1, a client's training raises ``error`` or calls ``waiting``."""

    def gate(host, asked):
        if (asked.client, asked.round) == (client, 1):
            if "error" in job:
                raise job["error"]
            job["waiting"](host)

    return gate


def answers(hosts, clients, round, **options):
    """Train clients in a round and return {client: type of the reply}."""
    jobs = [Train(client, round, blob=b"x", **options) for client in clients]
    found = {job.client: reply for job, reply in hosts.pool.run(jobs)}
    for client, reply in found.items():
        if not isinstance(reply, Absent):
            hosts.expected.setdefault(client, []).append([round, "before_upload", "x"])
    return {client: type(reply).__name__ for client, reply in found.items()}


def test_a_job_that_a_host_interrupted_makes_its_client_absent(world):
    """A late job is not repeated: it would be late again. Its host and clients are restored."""
    hosts = world(2)
    hosts.train(range(4), 0)
    late = Late("upload_payload, client 2, round 1: no end after 2 s (--job-limit) in process 7")
    hosts.gate = failing(2, error=late)
    found = answers(hosts, range(4), 1, may_fail=True)
    assert found == {0: "TrainReply", 1: "TrainReply", 2: "Absent", 3: "TrainReply"}
    assert len(hosts.started) == 3
    (replaced,) = hosts.notes
    number = next(host.number for host in hosts.closed)
    assert replaced.startswith(f"worker {number}: {late.what}; replaced, ")
    hosts.evaluate(range(4), 1)
    hosts.train(range(4), 2)


def test_a_job_that_may_not_fail_ends_the_run(world):
    hosts = world(2)
    late = Late("it: no end", do="what to do")
    hosts.gate = failing(2, error=late)
    hosts.train(range(4), 0)
    with pytest.raises(Late, match="it: no end") as caught:
        hosts.train(range(4), 1)
    assert caught.value.do == "what to do"
    assert len(hosts.started) == 2


class Rings:
    """A replacement for `Deadlines`: a job is late when the test calls `late`."""

    def __init__(self, seconds):
        self.seconds, self.jobs = seconds, {}

    @contextmanager
    def over(self, host):
        self.jobs[host] = Deadline(host, self.seconds)
        yield self.jobs[host]

    def late(self, host):
        self.jobs[host].rung = True
        host.close()
        raise pf.backends.HostFailure(f"host {host.number} was killed during: train")

    def close(self):
        pass


@pytest.mark.parametrize("may_fail", [True, False])
def test_a_host_that_can_not_interrupt_a_job_is_ended(world, monkeypatch, may_fail):
    watches = []
    monkeypatch.setattr(host_pool, "Deadlines", lambda s: watches.append(Rings(s)) or watches[-1])
    hosts = world(2, job_limit=0.1)
    (watch,) = watches
    assert watch.seconds == 0.1 + host_pool.GRACE
    hosts.train(range(4), 0)
    hosts.gate = failing(2, waiting=watch.late)
    why = r"host \d was killed during: train: no end after 0\.1 s \(--job-limit\), and it could not"
    if may_fail:
        assert answers(hosts, range(4), 1, may_fail=True)[2] == "Absent"
        assert re.search(why, hosts.notes[0])
        assert len(hosts.started) == 3
        hosts.train(range(4), 2)
    else:
        with pytest.raises(Late, match=why) as caught:
            hosts.train(range(4), 1)
        assert "--on-lost-client skip" in caught.value.do


def test_a_host_that_ends_within_the_limit_is_no_job_that_does_not_end(world):
    hosts = world(2, job_limit=100)
    hosts.kill(op="train", client=2)
    hosts.train(range(4), 0)
    assert len(hosts.started) == 3


@pytest.mark.parametrize("ends", [1, 3], ids=["does not end", "ends hosts"])
def test_a_client_is_absent_where_no_host_can_be_started_in_place_of_its_own(world, ends):
    """Other hosts take over, and the lost client does not end them too."""
    hosts = world(3, room=3 if ends == 1 else 5)
    hosts.train(range(6), 0)
    if ends == 1:
        hosts.gate = failing(2, error=Late("it: no end"))
    for _ in range(ends if ends > 1 else 0):
        hosts.kill(op="train", client=2, round=1)
    found = answers(hosts, range(6), 1, may_fail=True)
    assert [client for client, kind in found.items() if kind == "Absent"] == [2]
    assert "not replaced (no room for another host)" in hosts.notes[-1]
    hosts.train(range(6), 2)
    assert len(set(hosts.alive().values())) == 2


# --- errors and closing --------------------------------------------------------------------------


def test_an_error_of_a_job_ends_the_stage(world):
    hosts = world()

    def gate(host, job):
        if job.client == 3:
            raise pf.RunFailure("a hook failed")

    hosts.gate = gate
    with pytest.raises(pf.RunFailure, match="a hook failed"):
        hosts.train(range(40), 0)
    assert len(hosts.started) == 2


def test_hosts_that_end_because_the_pool_closes_are_not_replaced(world):
    hosts = world()
    inside, go = threading.Barrier(3, timeout=20), threading.Event()

    def gate(host, job):
        inside.wait()  # both hosts are busy, so neither gets a job after closing
        go.wait(20)
        if host.ended:
            raise pf.backends.HostFailure("closed")

    hosts.gate = gate
    stage = hosts.pool.run([Train(c, 0, "x") for c in range(2)])
    caught = []

    def consume():
        try:
            list(stage)
        except pf.backends.HostFailure as failure:
            caught.append(failure.what)

    thread = threading.Thread(target=consume)
    thread.start()
    inside.wait()
    hosts.pool.close()
    go.set()
    thread.join(20)
    assert not thread.is_alive()
    assert len(caught) == 1
    assert len(hosts.started) == 2
    hosts.pool.close()


def test_hosts_that_did_start_are_closed_when_one_does_not(tmp_path):
    started = []

    def start(number):
        if number == 2:
            raise pf.backends.HostFailure("no room")
        started.append(FakeHost(World.__new__(World), number))
        started[-1].world.closed = []
        return started[-1]

    with pytest.raises(pf.backends.HostFailure, match="no room"):
        pf.backends.Dispatcher(start, 3)
    assert [host.ended for host in started] == [True, True]
