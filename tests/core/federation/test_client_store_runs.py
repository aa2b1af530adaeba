"""Tests of runs with clients on disk: same results, and each client is written once."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from runtime_toys import install, train, without_times
from slowness import quick
from torch import nn

import protofl as pf
from protofl.federation.clients import client_store as store
from protofl.records.checkpoint import Checkpoint
from protofl.records.run_folder import RunFolder

pytestmark = pytest.mark.always


class Counting:
    """Counts rounds in each client's state, and adds a module."""

    @pf.hookimpl
    def setup_client(self, client):
        client.add_module("gate", nn.Linear(2, 2))
        client.state["first"] = client.module("head").weight[0, 0].item()

    @pf.hookimpl
    def before_training(self, client):
        client.state["rounds"] = client.state.get("rounds", 0) + 1

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(rounds=torch.tensor(float(client.state["rounds"])))


OPTIONS = {"rounds": 4, "participation": 0.5, "trials": 2}


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    install(monkeypatch)


def same(one, two):
    assert without_times(one.record) == without_times(two.record)
    assert one.summary == two.summary
    files = [
        {p.name: p.read_bytes() for p in (r.folder / "checkpoint").glob("*.safetensors")}
        for r in (one, two)
    ]
    assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedproto", "ds-fl"])
def test_a_round_writes_each_participant_once(tmp_path, monkeypatch, method):
    """ds-fl trains again after the server's step, so its clients are parked twice."""
    written, links = [], []
    original, link = store.write_tensors, os.link
    monkeypatch.setattr(store, "write_tensors", lambda *a: written.append(a[0]) or original(*a))
    monkeypatch.setattr(os, "link", lambda *a: links.append(a) or link(*a))
    public = {"public": 10} if method == "ds-fl" else {}
    result = train(method, tmp_path / "run", client_store="disk", **OPTIONS, **public)
    times = 2 if public else 1
    assert len(written) == times * sum(row["participants"] for row in result.record)
    files = [source for source, _ in links if source.name != "manifest.json"]
    assert len(files) == sum(row["participants"] for row in result.record)
    assert not (tmp_path / "run/parked").exists()
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["client_store"] == "disk"


# Other tests use 1: every round writes its files.
@pytest.mark.slow
@pytest.mark.parametrize("every", quick([2, 0], 0))
def test_disk_equals_memory(tmp_path, every):
    options = OPTIONS | {"checkpoint_every": every}
    runs = [train(Counting, tmp_path / s, client_store=s, **options) for s in ("memory", "disk")]
    same(*runs)
    assert all(not (r.folder / "parked").exists() for r in runs)


@pytest.mark.slow
def test_workers_keep_clients_on_disk(tmp_path):
    options = OPTIONS | {"trials": 1, "client_store": "disk", "backend": "process", "workers": 2}
    seen = []

    def look(event):
        if isinstance(event, pf.events.RoundDone):
            seen.append(len(list((tmp_path / "disk/parked").glob("*/*.safetensors"))))

    disk = train("fedkd", tmp_path / "disk", progress=look, **options)
    memory = train("fedkd", tmp_path / "memory", **OPTIONS | {"trials": 1})
    same(memory, disk)
    assert seen[0] == 2
    assert seen[-1] > 2
    assert not (tmp_path / "disk/parked").exists()


class Killed(BaseException):
    """Stands for a signal that ends the process at once."""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["os.replace", "os.link", "commit"])
@pytest.mark.parametrize(
    "late", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["before", "after"]
)
def test_a_kill_at_each_step_of_writing(tmp_path, monkeypatch, place, late):
    places = {
        "os.replace": (os, "replace"),
        "os.link": (os, "link"),
        "commit": (Checkpoint, "_write"),
    }
    holder, name = places[place]
    options = {"rounds": 3, "participation": 0.5, "client_store": "disk", "dry_run": False}
    whole = train(Counting, tmp_path / "whole", **options)
    original, kills = getattr(holder, name), 0
    for number in range(2, 20, 3):
        calls, out = [], tmp_path / str(number)

        def call(*given, calls=calls, number=number):
            calls.append(given)
            if len(calls) == number and not late:
                raise Killed
            result = original(*given)
            if len(calls) == number:
                raise Killed
            return result

        with monkeypatch.context() as patch:
            patch.setattr(holder, name, call)
            # A killed process does not clean up.
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)
            try:
                train(Counting, out, **options)
                break
            except Killed:
                kills += 1
        if (out / "config.json").exists():
            same(whole, train(Counting, out, resume=True))
            assert not (out / "parked").exists()
            assert not list(out.rglob("*.part"))
    assert kills >= 1


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [("disk", "memory"), ("memory", "disk")])
def test_a_run_goes_on_with_another_store(tmp_path, first, then):
    whole = train(Counting, tmp_path / "whole", **OPTIONS)

    def stop(event):
        if event == pf.events.RoundStarted(trial=1, round=2):
            raise Killed

    with pytest.raises(Killed):
        train(Counting, tmp_path / "cut", client_store=first, progress=stop, **OPTIONS)
    assert not (tmp_path / "cut/parked").exists()
    same(whole, train(Counting, tmp_path / "cut", resume=True, client_store=then))


# --- evaluated clients ---------------------------------------------------------------------------


@pytest.mark.slow
def test_evaluating_participants(tmp_path):
    options = {"rounds": 5, "participation": 0.5, "eval_every": 3}
    everyone = train("fedsa", tmp_path / "all", **options)
    some = train("fedsa", tmp_path / "participants", eval_clients="participants", **options)
    assert [row["evaluated"] for row in everyone.record] == [0, 0, 4, 0, 4]
    assert [row["evaluated"] for row in some.record] == [0, 0, 2, 0, 2]
    accuracy = {"test_accuracy", "client_test_accuracy", "test_accuracy_std", "client_accuracies"}
    accuracy |= {"evaluated"}
    rest = [
        [{k: v for k, v in row.items() if k not in accuracy} for row in without_times(run.record)]
        for run in (everyone, some)
    ]
    assert rest[0] == rest[1]
    chosen = list(some.client_accuracies[0])
    assert len(chosen) == 2
    assert some.client_accuracies[0] == {c: everyone.client_accuracies[0][c] for c in chosen}
    assert (everyone.summary["eval_clients"], some.summary["eval_clients"]) == (
        "all",
        "participants",
    )


def test_what_a_killed_run_had_parked_is_removed_at_once(tmp_path):
    train("local", tmp_path / "run", rounds=1)
    (tmp_path / "run/parked/protofl-clients-x").mkdir(parents=True)
    (tmp_path / "run/parked/protofl-clients-x/client-00000.safetensors").write_bytes(b"big")
    RunFolder.reopen(tmp_path / "run").settle()
    assert not (tmp_path / "run/parked").exists()
