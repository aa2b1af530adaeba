"""Tests of interrupted runs: wherever a run is cut, the resumed run equals the whole run."""

from __future__ import annotations

import builtins
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from interrupted_runs import Killed, Remembering, interrupted
from runtime_toys import DATA, GIVEN, install, train, without_times
from slowness import quick
from torch import nn

import protofl as pf
from protofl.records import checkpoint, run_folder

pytestmark = pytest.mark.always


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    install(monkeypatch)


def same(one, two):
    assert without_times(one.record) == without_times(two.record)
    assert one.summary == two.summary
    on_disk = (two.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in on_disk] == two.record
    assert json.loads((two.folder / "summary.json").read_text()) == two.summary


def files_of(folder):
    """Return {path: bytes} of a folder's files; empty bytes for all but client files."""
    names = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {n: p.read_bytes() if p.name.startswith("client-") else b"" for n, p in names.items()}


OPTIONS = {"rounds": 3, "participation": 0.5, "trials": 2, "local_epochs": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        return train(Remembering, tmp_path_factory.mktemp("whole") / "run", **OPTIONS)


# --- a kill at every step of writing -------------------------------------------------------------


def killing(monkeypatch, place, number, late):
    """Kill the run at the ``number``-th call of a function, before the call or (``late``) after."""
    holder, name = place
    original, calls = getattr(holder, name), []

    def call(*arguments, **options):
        calls.append(arguments)
        if len(calls) == number and not late:
            raise Killed
        result = original(*arguments, **options)
        if len(calls) == number:
            raise Killed
        return result

    monkeypatch.setattr(holder, name, call)


PLACES = {
    "os.replace": (os, "replace"),
    "manifest": (checkpoint, "write_file"),
    "save_server": (run_folder, "write_tensors"),
    "add": (run_folder.RunFolder, "add"),
    "unlink": (Path, "unlink"),
}


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", PLACES)
def test_a_kill_at_each_step_of_writing(tmp_path, monkeypatch, whole, place, late):
    number, kills = 0, 0
    while True:
        number += 1 if number < 4 else 4
        out = tmp_path / str(number)
        with monkeypatch.context() as patch:
            killing(patch, PLACES[place], number, late)
            try:
                train(Remembering, out, dry_run=False, **OPTIONS)
                break
            except Killed:
                kills += 1
        if not (out / "config.json").exists():
            with pytest.raises(pf.UsageError, match=r"config\.json"):
                train(Remembering, out, resume=True)
            continue
        resumed = train(Remembering, out, resume=True, backend="local")
        same(whole, resumed)
        assert files_of(resumed.folder) == files_of(whole.folder)
    assert kills >= 4


@pytest.mark.slow
@pytest.mark.always
def test_a_kill_while_a_line_is_written(tmp_path, whole):
    interrupted(Remembering, tmp_path / "run", (0, 2), **OPTIONS)
    for rest in ('{"trial": 0, "round": 2, "test_ac', '{"trial": 0, "round": 2}\n', "\n"):
        out = tmp_path / f"cut {len(rest)}"
        shutil.copytree(tmp_path / "run", out)
        with open(out / "metrics.jsonl", "a") as file:
            file.write(rest)
        (out / "checkpoint/client-00000-t0-r2.safetensors.part").write_bytes(b"half")
        (out / "checkpoint/client-00000-t0-r2.safetensors").write_bytes(b"not committed")
        same(whole, train(Remembering, out, resume=True))


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize(("trial", "done"), quick([(0, 0), (0, 1), (1, 0), (1, 2)], (0, 1)))
def test_a_kill_at_the_beginning_of_a_round(tmp_path, whole, trial, done):
    out = tmp_path / "run"
    interrupted(Remembering, out, (trial, done), **OPTIONS)
    assert not (out / "summary.json").exists()
    resumed = train(Remembering, out, resume=True)
    same(whole, resumed)
    assert resumed.client_accuracies == whole.client_accuracies


@pytest.mark.slow
@pytest.mark.always
def test_a_disk_that_is_full_loses_no_round(tmp_path, monkeypatch, whole):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:

        def full(file, mode="r", *rest, **options):
            if (
                str(file).endswith("manifest.json.part")
                and (out / "metrics.jsonl").read_text().count("\n") > 2
            ):
                raise OSError(28, "No space left on device")
            return original(file, mode, *rest, **options)

        original = builtins.open
        patch.setattr(builtins, "open", full)
        with pytest.raises((OSError, pf.RunFailure), match="No space left"):
            train(Remembering, out, **OPTIONS)
    same(whole, train(Remembering, out, resume=True))


# --- less frequent checkpoints -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("every", quick([2, 0], 0))
def test_rarer_checkpoints(tmp_path, every):
    options = {"rounds": 5, "participation": 0.5, "checkpoint_every": every}
    plain = train(Remembering, tmp_path / "plain", rounds=5, participation=0.5)
    rare = train(Remembering, tmp_path / "rare", **options)
    same(plain, rare)
    interrupted(Remembering, tmp_path / "cut", (0, 3), **options)
    rounds = []

    def note(event):
        if isinstance(event, pf.events.RoundStarted):
            rounds.append(event.round)

    same(plain, train(Remembering, tmp_path / "cut", resume=True, progress=note))
    assert rounds == ([2, 3, 4] if every else [0, 1, 2, 3, 4])


@pytest.mark.parametrize("every", [1, 3, 0])
def test_a_finished_run_is_not_trained_again(tmp_path, every):
    first = train(Remembering, tmp_path / "run", checkpoint_every=every)
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    events = []
    again = train(Remembering, tmp_path / "run", resume=True, progress=events.append)
    assert [type(event) for event in events] == [pf.events.Planned, pf.events.Finished]
    same(first, again)
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before


# --- options with --resume -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"seed": 1}, "--seed"),
        ({"lr": 0.2}, "--lr"),
        ({"models": "cnn4"}, "--models"),
        ({"server_threads": 2}, "--server-threads"),
        ({"drop": ["ce"]}, "--drop"),
        ({"method": "fedavg"}, "--method"),
    ],
)
def test_an_option_that_differs(tmp_path, options, flag):
    out = tmp_path / "run"
    interrupted("local", out, (0, 1))
    method = options.pop("method", "local")
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    with pytest.raises(pf.UsageError, match=f"{flag} ") as caught:
        train(method, out, resume=True, **options)
    assert caught.value.exit_code == 2
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


@pytest.mark.slow
def test_options_that_may_be_given(tmp_path):
    out = tmp_path / "run"
    interrupted("local", out, (0, 1))
    same_ones = {"rounds": 2, "lr": 0.1, "data_dir": DATA, "dataset": "tiny", "device": "cpu"}
    result = train(None, out, resume=True, backend="process", workers=1, **same_ones)
    assert len(result.record) == 2


def test_what_may_not_be_given(tmp_path):
    out = tmp_path / "run"
    interrupted("local", out, (0, 1))
    for options, words in (
        ({"set": {"local.x": 1}}, "differs from the run's None"),
        ({"set": {"x": 1}}, "differs from the run's None"),
        ({"config": out / "config.json"}, "--resume continues the run as it was"),
    ):
        with pytest.raises(pf.UsageError, match=words):
            train("local", out, resume=True, **options)
    with pytest.raises(pf.UsageError, match="--resume needs --out"):
        pf.run(resume=True)
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "missing"):
        with pytest.raises(pf.UsageError, match=r"no config\.json"):
            pf.run(out=tmp_path / folder, resume=True)


@pytest.mark.parametrize(
    ("method", "option", "words"),
    [("local", "dataset", "the data of npz:"), ("fedmd", "public", "the public data of npz:")],
)
def test_data_that_changed(tmp_path, method, option, words):
    path = tmp_path / "d.npz"

    def write(seed):
        x = np.random.default_rng(seed).integers(0, 256, (60, 8, 8), dtype=np.uint8)
        np.savez(path, x_train=x, y_train=np.arange(60) % 3)

    write(0)
    out = tmp_path / "run"
    options = {option: f"npz:{path}", "data_dir": tmp_path / "cache"}
    interrupted(method, out, (0, 1), **options)
    write(1)
    with pytest.raises(pf.UsageError, match="not those with which the run began") as caught:
        train(method, out, resume=True)
    assert words in caught.value.what
    assert caught.value.exit_code == 2
    write(0)
    assert len(train(method, out, resume=True).record) == 2


def test_modules_that_are_made_late_are_not_lost_silently(tmp_path):
    class Late:
        @pf.hookimpl
        def server_train(self, server, uploads):
            if "net" not in server.modules:
                server.modules["net"] = nn.Linear(1, 1, bias=False)
                nn.init.zeros_(server.modules["net"].weight)
            with torch.no_grad():
                server.modules["net"].weight.add_(1)
            return {}

        @pf.hookimpl
        def end_round(self, server):
            return {"sum": server.modules["net"].weight.item()}

    plain = train(Late, tmp_path / "plain", rounds=3)
    interrupted(Late, tmp_path / "cut", (0, 2), rounds=3)
    try:
        resumed = train(Late, tmp_path / "cut", resume=True)
    except pf.ProtoflError as error:
        assert "net" in str(error)
    else:
        same(plain, resumed)


# --- real kills ----------------------------------------------------------------------------------

CHILD = """
import json, sys
import protofl as pf
import torch
torch.set_num_threads(1)
def progress(event):
    print(type(event).__name__, getattr(event, "text", ""), flush=True)
pf.run(progress=progress, **json.loads(sys.argv[1]))
"""


def start(set_variables=(), **options):
    options = json.dumps({k: str(v) if k in ("out", "data_dir") else v for k, v in options.items()})
    path = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    environment = os.environ | path | dict(set_variables)
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, options], stdout=subprocess.PIPE, text=True, env=environment
    )


DIGITS = {"models": "cnn4", "dataset": "digits", "clients": 3, "rounds": 3, "batch_size": 128}
DIGITS |= {"local_epochs": 1}
SHORT = {"rounds": 6, "trials": 2, "participation": 0.5}


@pytest.mark.parametrize(
    ("method", "options"),
    [("fedavg", DIGITS), ("fedsa", SHORT), ("fedsa", SHORT | {"client_store": "disk"})],
    ids=["digits", "trials-and-participation", "on-disk"],
)
@pytest.mark.slow
def test_sigkill_at_random_moments(tmp_path, method, options):
    options = GIVEN | {"method": method} | options
    whole = pf.run(out=tmp_path / "whole", **options)
    out, chance, kills = tmp_path / "run", random.Random(method), 0
    for attempt in range(3):
        resume = (out / "config.json").exists()
        child = start(out=out, **({"resume": True, "backend": "local"} if resume else options))
        # The first child is killed after more events, so that there is something to resume.
        for _ in range(chance.randrange(9, 16) if attempt == 0 else chance.randrange(2, 10)):
            child.stdout.readline()
        time.sleep(chance.uniform(0, 0.05))
        child.kill()
        kills += child.wait() == -9
        child.stdout.close()
    assert kills == 3
    assert len((out / "metrics.jsonl").read_text().splitlines()) < len(whole.record)
    same(whole, pf.run(out=out, resume=True, backend="local"))
    assert not (out / "parked").exists()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="one instruction set")
def test_a_run_goes_on_with_another_instruction_set(tmp_path):
    out, here = tmp_path / "run", torch.backends.cpu.get_cpu_capability()
    interrupted("fedproto", out, (0, 1))
    there = "AVX2" if here == "DEFAULT" else "DEFAULT"
    child = start({"ATEN_CPU_CAPABILITY": there.lower()}, out=out, resume=True, backend="local")
    said, _ = child.communicate()
    assert child.returncode == 0
    (line,) = [line for line in said.splitlines() if "instruction set" in line]
    assert line.startswith(f"Note instruction set was {here} and is {there}: the rounds from here")
    assert len((out / "metrics.jsonl").read_text().splitlines()) == GIVEN["rounds"]


def test_groups_of_clients_are_those_of_the_backend(tmp_path, monkeypatch):
    """If an engine trains several clients at once, the backend must not change on resume."""
    install(monkeypatch)
    for engine, held in (("vmapped", {"backend": "local", "profile": False}), ("eager", {})):
        out = tmp_path / engine
        train("fedproto", out, rounds=1, engine=engine, dry_run=False)
        config = json.loads((out / "config.json").read_text())
        assert {key: config[key] for key in ("backend", "profile") if key in config} == held
    for options in ({}, {"backend": "auto"}, {"backend": "local", "workers": 3}):
        pf.run(out=tmp_path / "vmapped", resume=True, **options)
    for options in ({"backend": "process"}, {"profile": True}):
        with pytest.raises(pf.UsageError, match="differs from the run's"):
            pf.run(out=tmp_path / "vmapped", resume=True, **options)
        pf.run(out=tmp_path / "eager", resume=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedkd", "fedgen", "fedtgp"])
def test_the_server_s_file_is_the_same_to_the_byte(tmp_path, method):
    """Its keys are in the same order as in a run without an interruption, too."""
    options = {"rounds": 3, "dry_run": False, "feature_dim": 6}
    calm = train(method, tmp_path / "calm", **options)
    interrupted(method, tmp_path / "run", (0, 2), **options)
    resumed = train(None, tmp_path / "run", resume=True)
    name = "checkpoint/server-t0-r2.safetensors"
    assert (resumed.folder / name).read_bytes() == (calm.folder / name).read_bytes()
