"""Tests of checkpoints that a thread writes while the next round trains, on a simulated GPU.

What a kill leaves on the disk is an image: a copy of the run folder between two steps of a commit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time

import killed_runs
import pytest
import torch
from runtime_toys import install, train, without_times
from slowness import quick

import protofl as pf
from protofl.federation.clients import host
from protofl.federation.round.federation import Federation
from protofl.records.checkpoint import Commit
from protofl.records.run_folder import RunFolder
from protofl.runs.lifecycle import lifecycle
from protofl.runs.results.round_commits import CommitThread, wait_for_commits
from protofl.system.transfers import copied

OPTIONS = {"rounds": 4, "participation": 0.5, "seed": 2, "device": "simgpu", "dry_run": False}
METHOD = "fedproto"
SECONDS = 120.0
"""Seconds after which a wait in a test has failed."""


@pytest.fixture(autouse=True)
def toys(monkeypatch, gpu):
    install(monkeypatch)


def in_thread():
    return isinstance(threading.current_thread(), CommitThread)


def rounds_in(folder):
    return [row["round"] for row in lines_of(folder / "metrics.jsonl")]


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def files_of(folder):
    """Return what a run leaves, without times."""
    return killed_runs.contents(folder)


class Disk:
    """A disk that stops at each step of a commit in a thread, and calls ``at``.

    Attributes:
        at: Called before each step with its name.
        steps: The names of all steps so far.
    """

    def __init__(self, monkeypatch, at):
        self.at, self.steps = at, []
        self._patch = monkeypatch
        for name in ("replace", "fsync", "link", "unlink"):
            self._wrap(os, name)

    def _wrap(self, module, name):
        real = getattr(module, name)

        def step(*args, **options):
            if in_thread():
                self.steps.append(name)
                self.at(name)
            return real(*args, **options)

        self._patch.setattr(module, name, step)


@pytest.fixture
def waits(monkeypatch):
    """Return an event that is set while the run waits for a commit."""
    begun, wait = threading.Event(), CommitThread.wait

    def waited(thread):
        begun.set()
        try:
            return wait(thread)
        finally:
            begun.clear()

    monkeypatch.setattr(CommitThread, "wait", waited)
    return begun


# --- a run that nothing disturbs ------------------------------------------------------------------

MORE = {
    "host memory": {},
    "on the device": {},
    "disk": {"client_store": "disk"},
    "few checkpoints": {"checkpoint_every": 3, "rounds": 5},
    "trials": {"trials": 2, "rounds": 2},
    "patience": {"patience": 1, "rounds": 6, "lr": 1e-9},
    "a trained server": {"method": "fedtgp", "set": {"fedtgp.S": 8}},
    "a phase after the server's step": {"method": "fml", "models": "toy1", "batch_size": 12},
}


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("more", quick(MORE, "patience", always=True))
def test_a_folder_is_as_without_the_thread(tmp_path, monkeypatch, waits, more):
    """A round is written after the next one is done, which has changed clients and server."""
    options = OPTIONS | {"method": METHOD} | MORE[more]
    method, commits, run = options.pop("method"), [], CommitThread.run

    def late(thread):
        assert waits.wait(SECONDS)
        commits.append(thread)
        run(thread)

    monkeypatch.setattr(CommitThread, "run", late)
    if "on the device" in more:
        monkeypatch.setattr(host, "store_kind", lambda *_, **__: "live")
    one = train(method, tmp_path / "one", **options)
    assert commits
    with monkeypatch.context() as patch:
        patch.setattr(Federation, "leave_files", lambda self: False)
        patch.setattr(CommitThread, "start", refused)
        two = train(method, tmp_path / "two", **options)
    assert without_times(one.record) == without_times(two.record)
    assert one.summary == two.summary
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def refused(*_):
    raise AssertionError("a thread commits")


@pytest.mark.always
@pytest.mark.slow
def test_a_cpu_and_worker_processes_commit_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(CommitThread, "start", refused)
    cpu = OPTIONS | {"device": "cpu", "rounds": 2}
    assert len(train(METHOD, tmp_path / "cpu", **cpu).record) == 2
    more = {"backend": "process", "workers": 1}
    assert len(train(METHOD, tmp_path / "process", **cpu | more).record) == 2


@pytest.mark.slow
def test_clients_and_server_are_copied_in_one_piece_each(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(host, "store_kind", lambda *_, **__: "live")
    counts = []

    def commit(self, federation, commits, row, trained):
        before = gpu.count("to host")
        real(self, federation, commits, row, trained)
        counts.append((gpu.count("to host") - before, len(trained)))

    real = lifecycle._Lifecycle._commit
    monkeypatch.setattr(lifecycle._Lifecycle, "_commit", commit)
    train(METHOD, tmp_path / "run", **OPTIONS)
    assert [copies for copies, _ in counts] == [clients + 1 for _, clients in counts]


def test_a_copy_does_not_change_with_its_original(gpu):
    whole = torch.arange(6.0).reshape(2, 3)
    there, scalar = whole.to("simgpu"), torch.tensor(7)
    tensors = {"a": there, "a.t": there.t(), "n": scalar, "flag": torch.tensor([True])}
    with torch.no_grad():
        made = copied(tensors | {"none": torch.zeros(0, 3, device="simgpu")})
        there.zero_()
        scalar.zero_()
    assert [*made] == ["a", "a.t", "n", "flag", "none"]
    assert torch.equal(made["a"], whole) and torch.equal(made["a.t"], whole.t())
    assert made["n"] == 7 and made["none"].shape == (0, 3)
    assert all(t.device.type == "cpu" and t.is_contiguous() for t in made.values())


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_next_round_trains_while_a_round_is_written(tmp_path, monkeypatch, waits):
    """A round is reported when it is committed, in order; one waits at most."""
    out, told, trained = tmp_path / "run", [], []

    def progress(event):
        if isinstance(event, pf.events.RoundStarted):
            told.append(("start", event.round))
        elif isinstance(event, pf.events.RoundDone):
            told.append(("done", event.row.round))
            assert rounds_in(out) == [*range(event.row.round + 1)]
            assert Commit.read(out / "checkpoint/manifest.json").round == event.row.round

    def slow(self, *args, **options):
        assert waits.wait(SECONDS)  # until the next round is done, too
        trained.append(len([word for word, _ in told if word == "start"]))
        real(self, *args, **options)

    real = RunFolder.commit_round
    monkeypatch.setattr(RunFolder, "commit_round", slow)
    train(METHOD, out, progress=progress, **OPTIONS)
    starts, dones = ([(word, n) for n in range(4)] for word in ("start", "done"))
    assert told == [
        starts[0], starts[1], dones[0], starts[2], dones[1], starts[3], dones[2], dones[3],
    ]  # fmt: skip
    assert trained == [2, 3, 4, 4]


def test_a_round_is_reported_between_jobs_of_the_next(tmp_path, monkeypatch):
    """A fast disk: the round before appears before the next one has trained."""
    told = []

    def progress(event):
        if isinstance(event, (pf.events.StageStarted, pf.events.RoundDone)):
            told.append(getattr(event, "stage", "done"))
        if getattr(event, "stage", "") == "train" and isinstance(event, pf.events.StageStarted):
            wait_for_commits()

    train(METHOD, tmp_path / "run", progress=progress, **OPTIONS | {"rounds": 2})
    a_round = ["train", "server", "evaluate", "checkpoint"]
    assert told in (
        [*a_round, "train", "done", *a_round[1:], "done"],
        [*a_round, "done", *a_round, "done"],
    )


def test_the_row_says_how_long_the_round_waited(tmp_path, monkeypatch, waits):
    real = RunFolder.commit_round

    def slow(self, row, *args, **options):
        if row.round == 0:
            assert waits.wait(SECONDS)
            time.sleep(0.5)
        real(self, row, *args, **options)

    monkeypatch.setattr(RunFolder, "commit_round", slow)
    rows = train(METHOD, tmp_path / "run", **OPTIONS | {"rounds": 2}).record
    first, second = (row["seconds"] for row in rows)
    assert first["checkpoint"] < second["checkpoint"]
    assert 0.5 <= second["checkpoint"] < second["total"]


# --- kills ----------------------------------------------------------------------------------------


def images(tmp_path, monkeypatch, waits, **options):
    """Return (copy of the folder, round that is being committed) for each step of the commits."""
    out, found = tmp_path / "run", []

    def at(step):
        number = int(threading.current_thread().round)
        copy = tmp_path / f"{len(found)}-{number}-{step}"
        shutil.copytree(out, copy, ignore=shutil.ignore_patterns(".lock"))
        found.append((copy, number))

    def delayed(self, row, *args, **more):
        threading.current_thread().round = row.round
        real(self, row, *args, **more)

    def first(path, *packed):
        thread = threading.current_thread()
        if not hasattr(thread, "round"):  # the disk is slow until the next round is done
            assert waits.wait(SECONDS)
            thread.round = int(path.stem.rpartition("-r")[2])
            at("begin")
        write(path, *packed)

    real, write = RunFolder.commit_round, lifecycle.write_tensors
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "commit_round", delayed)
        patch.setattr(lifecycle, "write_tensors", first)
        disk = Disk(patch, at)
        whole = train(METHOD, out, **OPTIONS | options)
    return whole, out, found, disk.steps


def check_image(whole, out, image, number):
    """Resume an image: it continues after its last complete round, with the same result."""
    told = []
    committed = Commit.read(image / "checkpoint/manifest.json").round
    assert committed in (number - 1, number)
    last = RunFolder.reopen(image)
    assert [row.round for row in last.rows] == [*range(committed + 1)]
    for observed in ("observed", "uploads"):
        journal = image / observed / "journal.jsonl"
        there = {line["round"] for line in lines_of(journal)}
        assert there >= {row.round for row in last.rows}
    result = train(None, image, resume=True, progress=told.append)
    begun = [event.round for event in told if isinstance(event, pf.events.RoundStarted)]
    assert begun == [*range(committed + 1, 4)]
    assert without_times(result.record) == without_times(whole.record)
    assert result.summary == whole.summary
    assert files_of(image) == files_of(out)
    return committed == number


@pytest.mark.always
@pytest.mark.slow
@pytest.mark.parametrize("every", [9, 1], ids=["some steps", "all steps"])
def test_a_kill_at_any_step_loses_the_unfinished_round_alone(tmp_path, monkeypatch, waits, every):
    """The next round is done already, with its observations, when the commit goes on."""
    more = {"observe": ["prototypes"], "record_uploads": True}
    whole, out, found, steps = images(tmp_path, monkeypatch, waits, **more)
    assert {number for _, number in found} == {0, 1, 2, 3}
    assert {"replace", "fsync", "link", "unlink"} <= {*steps}
    complete = [check_image(whole, out, *one) for one in found[every // 2 :: every]]
    assert {*complete} == {True, False}


# --- errors and interruptions ---------------------------------------------------------------------


def full(monkeypatch, number):
    """Let the disk be full when a client's file of a round is written."""
    write = lifecycle.write_tensors

    def failing(path, *packed):
        if path.stem.endswith(f"-r{number}"):
            raise OSError(28, "No space left on device", str(path))
        write(path, *packed)

    monkeypatch.setattr(lifecycle, "write_tensors", failing)


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("number", quick([0, 2, 3], 2, always=True))
def test_a_full_disk_stops_the_run_as_without_the_thread(tmp_path, monkeypatch, number):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        full(patch, number)
        with pytest.raises(pf.RunFailure, match="No space left") as caught:
            train(METHOD, out, **OPTIONS)
    assert "client-" in caught.value.what and "make room" in caught.value.do
    assert rounds_in(out) == [*range(number)]
    result = train(None, out, resume=True)
    assert without_times(result.record) == without_times(
        train(METHOD, tmp_path / "whole", **OPTIONS).record
    )


class Gate:
    """Holds the commit of round 0 until it is opened."""

    def __init__(self, monkeypatch):
        self.opened, self.reached = threading.Event(), threading.Event()
        real = RunFolder.commit_round

        def held(folder, row, *args, **options):
            if row.round == 0:
                self.reached.set()
                assert self.opened.wait(SECONDS)
            real(folder, row, *args, **options)

        monkeypatch.setattr(RunFolder, "commit_round", held)


def stops(gate, error, told):
    """Return a follower that stops the run in round 1, and opens the gate at the next note."""

    def progress(event):
        told.append(event)
        if isinstance(event, pf.events.StageStarted) and event.stage == "evaluate":
            if pf.events.RoundStarted(0, 1) in told:
                assert gate.reached.wait(SECONDS)
                threading.Timer(0.2, gate.opened.set).start()
                raise error

    return progress


@pytest.mark.parametrize("error", [KeyboardInterrupt(), pf.RunFailure("a hook failed")])
def test_an_interruption_or_error_waits_for_the_finished_round(tmp_path, monkeypatch, error):
    out, told, gate = tmp_path / "run", [], Gate(monkeypatch)
    with pytest.raises(type(error)):
        train(METHOD, out, progress=stops(gate, error, told), **OPTIONS)
    assert rounds_in(out) == [0]
    assert Commit.read(out / "checkpoint/manifest.json").round == 0
    notes = [event.text for event in told if isinstance(event, pf.events.Note)]
    done = [event.row.round for event in told if isinstance(event, pf.events.RoundDone)]
    if isinstance(error, KeyboardInterrupt):  # who follows may be gone
        assert notes[-1] == "waiting until the last round is saved; interrupt again to stop now"
        assert done == []
    else:
        assert done == [0]


def test_an_error_of_both_names_both(tmp_path, monkeypatch):
    out, told, gate = tmp_path / "run", [], Gate(monkeypatch)
    error = pf.RunFailure("a hook failed")
    held = RunFolder.commit_round

    def failing(*args, **options):
        held(*args, **options)
        raise OSError(28, "No space left on device", "manifest.json")

    monkeypatch.setattr(RunFolder, "commit_round", failing)
    with pytest.raises(pf.RunFailure, match="a hook failed"):
        train(METHOD, out, progress=stops(gate, error, told), **OPTIONS)
    assert "the last round is not saved" in told[-1].text and "No space left" in told[-1].text


@pytest.mark.slow
def test_a_second_interruption_does_not_wait(tmp_path, monkeypatch, waits):
    """The thread may go on; who resumes the run in this process waits for it."""
    out, told = tmp_path / "run", []

    def again(event):
        if isinstance(event, pf.events.Note) and "interrupt again" in event.text:
            send = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
            send.start()
        follow(event)

    with monkeypatch.context() as patch:
        gate = Gate(patch)
        follow = stops(gate, KeyboardInterrupt(), told)
        opening = gate.opened.set
        patch.setattr(gate.opened, "set", lambda: None)
        with pytest.raises(KeyboardInterrupt):
            train(METHOD, out, progress=again, **OPTIONS)
        assert rounds_in(out) == [] and any(map(is_commit, threading.enumerate()))
    threading.Timer(0.3, opening).start()
    told.clear()
    train(None, out, resume=True, progress=told.append)
    assert next(e for e in told if isinstance(e, pf.events.RoundStarted)).round == 1


def is_commit(thread):
    return isinstance(thread, CommitThread)


@pytest.mark.slow
def test_a_round_is_best_among_all_finished_rounds(tmp_path, monkeypatch, waits):
    """Rounds count that the thread has not committed yet."""
    accuracies, saved = (0.5, 0.9, 0.7, 0.6), []
    trained, commit = Federation.round, RunFolder.commit_round

    def round(federation, number):
        row, clients = trained(federation, number)
        return row.changed(test_accuracy=accuracies[number]), clients

    def slow(folder, row, *args, **options):
        assert waits.wait(SECONDS)
        saved.append(row.round)
        commit(folder, row, *args, **options)

    monkeypatch.setattr(Federation, "round", round)
    monkeypatch.setattr(RunFolder, "commit_round", slow)
    train(METHOD, tmp_path / "run", **OPTIONS | {"checkpoint_every": 4})
    assert saved == [0, 1, 3]
