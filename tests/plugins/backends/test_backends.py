"""Tests of backends: bit-identical results in any process, and workers that die."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import protofl as pf
import protofl_plugins.backends as backends
from protofl_plugins.backends import wire

BASE = {"models": "htcnn8", "clients": 4, "batch_size": 16, "feature_dim": 32, "rounds": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return options for 200 images of four classes; each class has a different bright quarter."""
    folder = tmp_path_factory.mktemp("data")
    y = np.arange(200) % 4
    x = np.random.default_rng(0).integers(0, 120, (len(y), 8, 8), dtype=np.uint8)
    for label in range(4):
        row, column = 4 * (label // 2), 4 * (label % 2)
        x[y == label, row : row + 4, column : column + 4] += 100
    np.savez(folder / "quarters.npz", x_train=x, y_train=y)
    return {"dataset": f"npz:{folder / 'quarters.npz'}", "data_dir": folder}


@pytest.fixture
def run(tmp_path, data):
    def start(method, name, **options):
        return pf.run(method, out=tmp_path / name, **BASE | data | options)

    return start


def without_times(rows):
    return [{k: v for k, v in row.items() if k not in ("seconds", "time")} for row in rows]


def checkpoints(folder):
    return {p.name: p.read_bytes() for p in (folder / "checkpoint").glob("*.safetensors")}


def same(one, two):
    """Check that results are equal, except `absent`, which a replay does not record."""
    first, second = (
        [{k: v for k, v in row.items() if k != "absent"} for row in run.record]
        for run in (one, two)
    )
    assert without_times(first) == without_times(second)
    assert one.summary == two.summary
    assert one.client_accuracies == two.client_accuracies
    left, right = checkpoints(one.folder), checkpoints(two.folder)
    assert left.keys() == right.keys()
    assert all(left[name] == right[name] for name in left), "weights differ"


def children(process):
    """Return the process ids of the workers of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == process and fields[0] != "Z" and b"backends.worker" in command:
            found.append(int(path.parent.name))
    return sorted(found)


@pytest.mark.parametrize(
    ("method", "options", "workers"),
    [
        ("fedsa", {}, (2,)),
        pytest.param(
            "lg-fedavg", {"participation": 0.5, "trials": 2}, (1, 3), marks=pytest.mark.slow
        ),
    ],
)
def test_backends_agree_to_the_last_bit(run, method, options, workers):
    local = run(method, "local", backend="local", **options)
    for count in workers:
        same(local, run(method, f"process{count}", backend="process", workers=count, **options))
    assert children(os.getpid()) == []


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot pin")
@pytest.mark.parametrize(
    ("workers", "pin", "pinned"), [(0, True, True), (1, True, False), (0, False, False)]
)
def test_pinned_workers_keep_to_a_core_each_where_they_take_them_all(run, workers, pin, pinned):
    before = os.sched_getaffinity(0)
    cores = set(pf.backends.Dispatcher.cores()[:2])
    seen = []

    def progress(event):
        if isinstance(event, pf.events.RoundStarted):
            seen.extend(os.sched_getaffinity(child) for child in children(os.getpid()))

    os.sched_setaffinity(0, cores)  # at most two workers, not one for each core
    try:
        run(
            "local",
            "run",
            backend="process",
            workers=workers,
            progress=progress,
            rounds=1,
            set={"backend.pin": pin},
        )
    finally:
        os.sched_setaffinity(0, before)
    expected = [{core} for core in cores] if pinned else [cores] * (workers or len(cores))
    assert sorted(map(sorted, seen)) == sorted(map(sorted, expected))


def kill_once(kind, round):
    """Return a progress function that kills a worker at an event in a round, and its state."""
    state = {"round": -1, "killed": [], "notes": []}

    def progress(event):
        if isinstance(event, pf.events.RoundStarted):
            state["round"] = event.round
        if isinstance(event, pf.events.Note):
            state["notes"].append(event.text)
        if not state["killed"] and isinstance(event, kind) and state["round"] == round:
            victim = children(os.getpid())[0]
            os.kill(victim, signal.SIGKILL)
            state["killed"].append(victim)
            assert gone([victim])

    return progress, state


FEW = {"workers": 2, "participation": 0.5, "rounds": 3}
CUTS = {
    "busy": ("fedsa", pf.events.ClientDone, {"workers": 2}),
    "between rounds": ("fedsa", pf.events.RoundStarted, {"workers": 1}),
    "few at a time": ("fedproto", pf.events.ClientDone, FEW),
    "after the server": ("ds-fl", pf.events.StageStarted, {"workers": 2, "public": 20}),
    "on disk": ("lg-fedavg", pf.events.ClientDone, {"workers": 1, "client_store": "disk"}),
}


@pytest.mark.always
@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS)
def test_a_worker_that_is_killed_is_replaced(run, cut):
    method, kind, given = CUTS[cut]
    options = {key: value for key, value in given.items() if key != "workers"}
    whole = run(method, "whole", backend="local", **options)
    progress, seen = kill_once(kind, 1)
    killed = run(method, "cut", backend="process", progress=progress, **given)
    same(whole, killed)
    (note,) = [line for line in seen["notes"] if "worker" in line]
    assert f"(process {seen['killed'][0]}) was killed by signal 9" in note
    assert "replaced" in note
    assert children(os.getpid()) == []
    assert not (killed.folder / "parked").exists()


def install(site, name, source):
    """Install a method in its own distribution."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[protofl.methods]\n{name} = {name}_plugin:{name.title()}\n"
    )
    (site / f"{name}_plugin.py").write_text("import protofl as pf\n" + source)


def install_greedy(site):
    """Install a method that kills every process in which client 3 trains in round 1."""
    install(
        site,
        "greedy",
        "import os, signal\n"
        "class Greedy:\n"
        "    @pf.hookimpl\n"
        "    def after_training(self, client):\n"
        "        if client.id == 3 and client.round == 1:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "    @pf.hookimpl\n"
        "    def upload_payload(self, client):\n"
        "        return client.class_prototypes()\n",
    )


@pytest.mark.slow
def test_a_client_that_ends_every_worker_may_be_absent(run, tmp_path):
    install_greedy(tmp_path / "site")
    given = {"dry_run": False, "rounds": 3}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path / "site")
        lost = run("greedy", "lost", backend="process", workers=2, on_lost_client="skip", **given)
        replay = run("greedy", "replay", backend="local", participants_from=lost.folder, **given)
    sys.modules.pop("greedy_plugin", None)
    assert [row.get("absent") for row in lost.record] == [None, {"3": "failed"}, None]
    same(lost, replay)


HOLD = {
    "a hook": "",
    "a hook that nothing interrupts": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", HOLD)
def test_a_client_whose_training_does_not_end_may_be_absent(run, tmp_path, monkeypatch, what):
    """The worker is also killed and replaced; the run equals a replay of the other clients."""
    install(
        tmp_path / "site",
        "endless",
        "import signal, time\n"
        "class Endless:\n"
        "    @pf.hookimpl\n"
        "    def upload_payload(self, client):\n"
        "        if client.id == 3 and client.round == 1:\n"
        f"            {HOLD[what]}\n"
        "            time.sleep(1000)\n"
        "        return client.class_prototypes()\n",
    )
    notes, workers = [], []

    def progress(event):
        if isinstance(event, pf.events.Note) and "client" in event.text:
            notes.append(event.text)
        if isinstance(event, pf.events.RoundStarted):
            workers.append(children(os.getpid()))

    monkeypatch.setattr("protofl.federation.pools.host_pool.GRACE", 1.0)
    given = {"dry_run": False, "rounds": 3}
    skip = {"on_lost_client": "skip", "job_limit": 10, "progress": progress}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path / "site")
        lost = run("endless", "lost", backend="process", workers=2, **skip, **given)
        replay = run("endless", "replay", backend="local", participants_from=lost.folder, **given)
    sys.modules.pop("endless_plugin", None)
    assert [row.get("absent") for row in lost.record] == [None, {"3": "failed"}, None]
    same(lost, replay)
    replaced, went_on = notes
    place = "client 3" if HOLD[what] else "upload_payload, client 3, round 2: "
    assert re.match(r"worker \d.* \(?process \d+.*replaced", replaced), replaced
    assert place in replaced and "no end after 10 s (--job-limit)" in replaced
    assert went_on == (
        "train of client 3 in round 2: it did not end; the round goes on without the client"
    )
    assert len({*workers[1]} & {*workers[2]}) == 1, "the other worker stays"


@pytest.mark.always
@pytest.mark.slow
def test_a_job_that_ends_every_worker_ends_the_run(run, tmp_path):
    install_greedy(tmp_path / "site")
    notes = []

    def progress(event):
        if isinstance(event, pf.events.Note) and "worker" in event.text:
            notes.append(event.text)

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path / "site")
        with pytest.raises(pf.backends.HostFailure) as caught:
            run("greedy", "cut", backend="process", workers=1, dry_run=False, progress=progress)
    sys.modules.pop("greedy_plugin", None)
    assert "killed by signal 9 during: train of client 3 in round 2" in caught.value.what
    assert "3 hosts in a row" in caught.value.near
    assert "--workers" in caught.value.do
    assert caught.value.exit_code == 1
    assert len(notes) == 2
    assert children(os.getpid()) == []
    assert len((tmp_path / "cut/metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_an_error_in_a_worker_comes_back_whole(run, tmp_path):
    install(
        tmp_path / "site",
        "failing",
        "class Failing:\n"
        "    @pf.hookimpl\n"
        "    def after_training(self, client):\n"
        "        print('a plugin may print')\n"
        "        if client.id == 3:\n"
        "            raise ZeroDivisionError('seven')\n",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path / "site")
        with pytest.raises(pf.RunFailure) as caught:
            run("failing", "failing", backend="process", workers=1, dry_run=False)
    sys.modules.pop("failing_plugin", None)
    assert "after_training, client 3, round 1: ZeroDivisionError: seven" in caught.value.what
    assert "in after_training" in str(caught.value.__cause__), "the worker's trace is kept"
    assert type(caught.value) is pf.RunFailure
    assert children(os.getpid()) == []


def gone(processes, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive = [p for p in processes if Path(f"/proc/{p}").exists() and not _zombie(p)]
        if not alive:
            return True
        time.sleep(0.05)
    return False


def _zombie(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


SCRIPT = """
import protofl as pf
def progress(event):
    if isinstance(event, pf.events.ClientDone):
        print("client", flush=True)
result = pf.run(progress=progress, **{options!r})
print("done", result.summary["final_test_accuracy"], flush=True)
"""


def from_stdin(**options):
    given = {k: str(v) if isinstance(v, Path) else v for k, v in (BASE | options).items()}
    child = subprocess.Popen(
        [sys.executable, "-"],
        # Children of a shell that runs the tests in the background ignore ^C by default.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    child.stdin.write(SCRIPT.format(options=given))
    child.stdin.close()
    return child


@pytest.mark.always
@pytest.mark.slow
@pytest.mark.parametrize(("by", "count"), [(signal.SIGKILL, 2), (signal.SIGINT, 1)])
def test_workers_die_with_their_parent(tmp_path, data, by, count):
    options = {"backend": "process", "workers": count, "rounds": 5000, "dry_run": False}
    parent = from_stdin(method="fedsa", out=tmp_path / "run", **data, **options)
    assert parent.stdout.readline() == "client\n"
    workers = children(parent.pid)
    assert len(workers) == count
    parent.send_signal(by)
    assert parent.wait(timeout=60) == -by
    parent.stdout.close()
    assert gone(workers)


@pytest.mark.slow
def test_a_worker_whose_run_is_gone_ends_without_a_word():
    """The run was killed while the worker did a job, so nobody receives the reply."""
    command, environment = pf.backends.fresh_interpreter("protofl_plugins.backends.worker")
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    worker = subprocess.Popen(command, env=environment, **pipes)
    worker.stdout.close()
    wire.send(worker.stdin, {"begin": True}, b"no plan")
    assert worker.wait(timeout=60) == 0
    assert worker.stderr.read() == b""
    worker.stdin.close()
    worker.stderr.close()


@pytest.mark.slow
def test_from_standard_input_without_a_main_guard(run, tmp_path, data):
    options = {"backend": "process", "workers": 1, "rounds": 1}
    child = from_stdin(method="lg-fedavg", out=tmp_path / "stdin", **data, **options)
    text = child.stdout.read()
    child.stdout.close()
    assert child.wait() == 0
    local = run("lg-fedavg", "local", backend="local", rounds=1)
    assert text.splitlines()[-1] == f"done {local.summary['final_test_accuracy']}"
    assert checkpoints(tmp_path / "stdin") == checkpoints(local.folder)


class MyMethod:
    """A class that is not installed."""

    @pf.hookimpl
    def upload_payload(self, client):
        return client.class_prototypes()


def test_a_class_runs_in_this_process(run):
    result = run(MyMethod, "run", rounds=1)
    assert result.record[0]["upload_floats"] > 0
    config = json.loads((result.folder / "config.json").read_text())
    assert config["method"] == "my-method"
    assert config["classes"]["method/my-method"].endswith("test_backends:MyMethod")


def test_messages(tmp_path):
    header, blob = {"op": "train", "values": {"x": [1.5, None, "ü"]}}, bytes(range(256)) * 300
    with open(tmp_path / "stream", "wb") as stream:
        wire.send(stream, header, blob)
        wire.send(stream, {})
    with open(tmp_path / "stream", "rb") as stream:
        assert wire.receive(stream) == (header, blob)
        assert wire.receive(stream) == ({}, b"")
        with pytest.raises(EOFError):
            wire.receive(stream)
    whole = (tmp_path / "stream").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:100])
    with open(tmp_path / "cut", "rb") as stream, pytest.raises(EOFError):
        wire.receive(stream)


def test_only_bytes_and_json_cross():
    folder = Path(backends.__file__).parent
    for name in ("wire", "worker", "process", "local"):
        imported = set()
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
        assert not imported & {"pickle", "multiprocessing", "marshal", "torch", "concurrent"}, name
