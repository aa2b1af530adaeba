"""Tests of the ray backend: refusals, messages, and a run whose actor is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import protofl as pf
from protofl.federation.jobs.jobs import StartTrial, Train
from protofl_ray import backend, cluster
from protofl_ray.actor import HostActor, fingerprint

BASE = {"models": "htcnn8", "dataset": "digits", "clients": 4, "batch_size": 64, "rounds": 3}
BASE |= {"local_epochs": 1}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def plan(data_dir):
    given = {"models": "cnn4", "dataset": "digits", "clients": 2, "data_dir": str(data_dir)}
    return pf.backends.Plan.make(
        given | {"method": "fedproto", "backend": "local", "device": "cpu"}
    )


def without_times(rows):
    return [{k: v for k, v in row.items() if k not in ("seconds", "time")} for row in rows]


def checkpoints(folder):
    return {p.name: p.read_bytes() for p in (folder / "checkpoint").glob("*.safetensors")}


# --- a run, with Ray -----------------------------------------------------------------------------


def descendants(process):
    """Return {process id: command} of all descendants of a process."""
    parents, commands = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            commands[int(path.parent.name)] = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(path.parent.name)] = int(fields[1])
    found, new = {}, {process}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        found |= {child: commands[child] for child in new}
    return found


def actors():
    return sorted(p for p, command in descendants(os.getpid()).items() if b"HostActor" in command)


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_an_actor_killed_in_the_middle_of_a_round_changes_no_bit(tmp_path, data_dir, capfd):
    options = BASE | {"data_dir": data_dir}
    local = pf.run("fedsa", out=tmp_path / "local", backend="local", **options)
    state = {"round": -1, "killed": [], "notes": []}

    def progress(event):
        if isinstance(event, pf.events.RoundStarted):
            state["round"] = event.round
        if isinstance(event, pf.events.Note):
            state["notes"].append(event.text)
        if isinstance(event, pf.events.ClientDone) and state["round"] == 1 and not state["killed"]:
            assert len(actors()) == 2
            state["killed"].append(actors()[0])
            os.kill(actors()[0], signal.SIGKILL)

    handler = signal.getsignal(signal.SIGTERM)
    capfd.readouterr()
    result = pf.run(
        "fedsa", out=tmp_path / "ray", backend="ray", workers=2, progress=progress, **options
    )
    assert without_times(result.record) == without_times(local.record)
    assert result.summary == local.summary
    assert checkpoints(result.folder) == checkpoints(local.folder)
    (note,) = (line for line in state["notes"] if "replaced" in line)
    assert f"process {state['killed'][0]} on {socket.gethostname()}" in note
    assert capfd.readouterr() == ("", ""), "Ray keeps quiet"
    assert not sys.modules["ray"].is_initialized()
    assert signal.getsignal(signal.SIGTERM) is handler
    deadline = time.monotonic() + 30
    while descendants(os.getpid()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [c for c in descendants(os.getpid()).values() if b"ray" in c]


# --- refusals ------------------------------------------------------------------------------------


def test_without_ray(monkeypatch, tmp_path, data_dir):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(pf.UsageError, match="not installed") as caught:
        pf.run("local", out=tmp_path / "run", backend="ray", data_dir=data_dir, **BASE)
    assert "pip install 'protofl[ray]'" in caught.value.do
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("device", "options", "words"),
    [
        ("cuda", {}, "backend.num_gpus=0.5"),
        ("cuda:1", {"num_gpus": 1}, "--device cuda"),
        ("cpu", {"num_gpus": 0.5}, "--device cuda"),
        ("cpu", {"num_cpus": 0}, "a share of a core"),
    ],
    ids=["gpu-without-share", "second-gpu", "share-without-gpu", "nothing"],
)
def test_shares_and_devices_fit_each_other(device, options, words):
    run = SimpleNamespace(device=torch.device(device))
    with pytest.raises(pf.UsageError) as caught:
        cluster.check(run, cluster.Config(**options))
    assert words in caught.value.do


def test_shares_that_fit():
    cluster.check(SimpleNamespace(device=torch.device("cpu")), cluster.Config(num_cpus=0.5))
    cluster.check(SimpleNamespace(device=torch.device("cuda")), cluster.Config(num_gpus=1))


@pytest.mark.parametrize(
    "given",
    [{"num_cpus": 1.5}, {"num_gpus": -1}, {"patience": 0}, {"runtime_env": "{"}, {"cpus": 1}],
    ids=["one-and-a-half", "negative", "no-patience", "no-json", "unknown"],
)
def test_options_out_of_range(given, data_dir, tmp_path):
    options = {f"backend.{key}": value for key, value in given.items()}
    with pytest.raises(pf.UsageError, match="backend/ray"):
        pf.run("local", out=tmp_path / "r", backend="ray", data_dir=data_dir, set=options, **BASE)


def test_a_runtime_environment_in_json():
    config = cluster.Config(runtime_env='{"env_vars": {"A": "1"}}', num_cpus=2)
    share = {"num_cpus": 2, "num_gpus": 0, "runtime_env": {"env_vars": {"A": "1"}}}
    assert config.share() == share
    assert "runtime_env" not in cluster.Config().share()


def test_nobody_at_the_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "127.0.0.1:x", "here"):
        with pytest.raises(pf.UsageError, match=rf"backend\.address={address}") as caught:
            cluster._answers(address)
        assert "ray start --head" in caught.value.do


class FakeRay:
    """A cluster with given free and total resources."""

    def __init__(self, free, **total):
        self.free, self.total = free, total

    def cluster_resources(self):
        return self.total

    def available_resources(self):
        return self.free


def test_as_many_actors_as_there_is_room_for():
    busy = FakeRay({"CPU": 3.0, "GPU": 0.5}, CPU=16.0, GPU=2.0)
    config = cluster.Config
    assert cluster.actors(busy, config(), 0) == 3
    assert cluster.actors(busy, config(num_cpus=0.5), 0) == 6
    assert cluster.actors(busy, config(num_gpus=0.25), 0) == 2
    assert cluster.actors(busy, config(num_gpus=1), 0) == 1, "what is taken may be given back"
    assert cluster.actors(busy, config(), 16) == 16
    with pytest.raises(pf.UsageError, match="17 actors") as caught:
        cluster.actors(busy, config(), 17)
    assert "16 CPU, 2 GPU" in caught.value.near
    with pytest.raises(pf.UsageError, match="0 do"):
        cluster.actors(FakeRay({}, CPU=4.0), config(num_gpus=0.5), 0)


# --- messages ------------------------------------------------------------------------------------


def test_the_same_download_is_stored_once():
    class Store:
        def __init__(self):
            self.stored = []

        def put(self, blob):
            self.stored.append(blob)
            return len(self.stored)

    store = Store()
    downloads = backend._Downloads(store, most=2)
    small, large = b"x" * 10, [bytes([n]) * backend.APART for n in range(3)]
    assert downloads.passed(small) is small
    assert [downloads.passed(large[n]) for n in (0, 1, 0, 1)] == [1, 2, 1, 2]
    assert downloads.passed(large[2]) == 3
    assert downloads.passed(large[1]) == 2
    assert downloads.passed(large[0]) == 4, "the least used one was let go"


def header(job):
    return json.dumps(job.header()).encode()


@pytest.mark.slow
def test_an_actor_takes_and_gives_bytes(plan, tmp_path):
    actor, host = HostActor(), pf.backends.Host(plan)
    place = json.loads(actor.place())
    assert place == {"machine": socket.gethostname(), "process": os.getpid()}
    answer, blob = actor.do(header(Train(0, 0)), b"")
    assert "not built" in json.loads(answer)["failure"]["what"]
    built = actor.build(plan.to_json().encode(), json.dumps(fingerprint(plan)).encode())
    assert "failure" not in json.loads(built)
    actor.warm_up()

    parked = tmp_path / "nowhere" / "parked"
    answer, blob = actor.do(header(StartTrial(0, parked=str(parked))), b"")
    error = pf.ProtoflError.from_values(json.loads(answer)["failure"])
    assert isinstance(error, pf.UsageError)
    assert str(parked.parent) in error.what
    assert "--out" in error.do

    start = StartTrial(0, parked=str(tmp_path / "parked"))
    answer, blob = actor.do(header(start), b"")
    assert json.loads(answer) == host.handle(start).header()
    answer, blob = actor.do(header(Train(1, 0)), b"")
    reply = host.handle(Train(1, 0))
    assert type(blob) is bytes
    assert blob == reply.blob
    assert json.loads(answer)["sums"] == reply.sums


@pytest.mark.parametrize("what", ["data", "torch", "protofl"])
def test_machines_that_differ(plan, what):
    expected = fingerprint(plan) | {what: "other"}
    built = HostActor().build(plan.to_json().encode(), json.dumps(expected).encode())
    error = pf.ProtoflError.from_values(json.loads(built)["failure"])
    assert isinstance(error, pf.UsageError)
    assert what in error.what
    assert socket.gethostname() in error.what


LISTENING = "0A"


def sockets_of(session):
    """Return (address as in /proc, port) of all listening sockets of Ray and of this process."""
    inodes = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            ours = process.name == str(os.getpid()) or session.encode() in command
            links = [os.readlink(link) for link in (process / "fd").iterdir()] if ours else []
        except OSError:
            continue
        inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in inodes:
                found.add(tuple(fields[1].split(":")))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's tables")
def test_a_ray_of_our_own_listens_on_loopback_only():
    ray = pytest.importorskip("ray")
    _, leave = cluster.connect(cluster.Config(), 1)
    try:
        found = sockets_of(Path(ray._private.worker._global_node.get_session_dir_path()).name)
    finally:
        leave()
    assert len(found) >= 3  # the control store, the scheduler, this process
    assert {address for address, _ in found} <= {"0100007F", "0000000000000000FFFF00000100007F"}
