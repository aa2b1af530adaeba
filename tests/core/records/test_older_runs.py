"""Tests that run folders of protofl 0.1.0 open, resume and replay. `older` has two of them."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

import protofl as pf
from protofl.hooks.discovery import registry
from protofl.runs import identity
from protofl.runs.identity import identity_of
from protofl.runs.request import read_request
from protofl.runs.requested_run import RequestedRun

OLDER = Path(__file__).parent / "older"


@pytest.fixture
def older(tmp_path, monkeypatch):
    """Copy the run folders into the working directory, and return it."""
    monkeypatch.chdir(tmp_path)
    for folder in OLDER.iterdir():
        copy = shutil.copytree(folder, tmp_path / folder.name)
        for path in (copy, *copy.rglob("*")):  # the source tree may be read-only
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
    return tmp_path


@pytest.fixture
def as_0_1_0(monkeypatch):
    """Give protofl's plugins version 0.1.0, because a run's identity contains their versions."""
    real = registry._origin

    def origin(distribution):
        version, name = real(distribution)
        return "0.1.0" if name == "protofl" else version, name

    monkeypatch.setattr(registry, "_origin", origin)


def arrays():
    drawn, y = np.random.default_rng(0), np.repeat(np.arange(4), 20)
    return (drawn.normal(size=(80, 6)) + y[:, None]).astype("float32"), y


def test_an_interrupted_run_opens_replays_and_goes_on(older):
    run = pf.load_run("0.1.0-interrupted")
    assert (run.state, run.rounds_done, run.settings.rounds) == ("unfinished", 2, 4)
    assert run.observed.prototypes(1).rows.shape[1] == run.settings.feature_dim == 8
    assert run.model(client=1)(run.plan.data.x[:3].float()).shape == (3, 2)
    assert all(round.same for round in pf.replay("0.1.0-interrupted").own.rounds)
    before = run.rows
    result = pf.run(resume=True, out="0.1.0-interrupted", backend="local", data_dir="data")
    assert [*map(dict, result.record[:2])] == [*map(dict, before)] and len(result.record) == 4
    best, last = (pf.read_weights("0.1.0-interrupted", which) for which in ("best", "last"))
    assert (best.round, last.round) == (result.summary["best_round"], 3)
    assert best.clients.keys() == last.clients.keys() == {0, 1}


def test_weights_that_protofl_0_1_0_has_kept(older):
    """A journal lists the files of the clients, and counts up to the length in the commit."""
    best, last = (pf.read_weights("0.1.0-interrupted", which) for which in ("best", "last"))
    assert (best.round, last.round) == (0, 1)
    assert best.clients.keys() == last.clients.keys() == {0, 1}
    journal = older / "0.1.0-interrupted/checkpoint/clients-t0-r1.jsonl"
    journal.write_text(journal.read_text() + '{"0": ["client-00000-t0-r9.safetensors", 1, 1]}\n')
    assert pf.read_weights("0.1.0-interrupted", "last").clients.keys() == {0, 1}
    journal.write_text(journal.read_text().replace("r1", "r0"))
    with pytest.raises(pf.UsageError, match=r"clients-t0-r1\.jsonl is damaged"):
        pf.read_weights("0.1.0-interrupted", "last")


def test_a_run_of_0_1_0_is_the_one_that_its_options_ask_for_now(older, as_0_1_0):
    run = pf.load_run("0.1.0-interrupted")
    given = {"method": "fedtgp", "models": "mlp", "dataset": "breast-cancer", "clients": 2}
    given |= {"rounds": 4, "batch_size": 64, "feature_dim": 8, "set": {"fedtgp.S": 2}}
    request = read_request({**given, "device": "cpu", "data_dir": Path("data")})
    now = RequestedRun.of(request, pf.events.ignore)
    assert identity_of(run.config, now.defaults) == run.identity == now.identity


def test_a_run_on_arrays_goes_on(older):
    result = pf.run(
        resume=True,
        out="0.1.0-arrays",
        rounds=3,
        dataset=arrays(),
        backend="local",
        data_dir="data",
    )
    assert result.summary["rounds"] == 3


DEVICES = {
    "method": "fedproto",
    "models": "mlp",
    "dataset": "breast-cancer",
    "clients": 3,
    "participation": 0.7,
    "batch_size": 64,
    "feature_dim": 8,
    "devices": "tiers",
    "sampling": "size",
    "transforms": ["quantise"],
    "dry_run": False,
    "set": {"devices.spread": 0, "sampling.power": 0.5, "quantise.to": "fp16"},
    "device": "cpu",
}
"""The options of ``0.1.0-devices``, which has them under their former names, in today's."""


@pytest.mark.slow
def test_a_run_with_former_names_is_found_and_goes_on(older, as_0_1_0, monkeypatch):
    """Options, kinds and tensors have former names in a folder that 0.1.0 has written."""
    folder = older / "0.1.0-devices"
    assert '"world": "tiers"' in (folder / "config.json").read_text()
    run = pf.load_run(folder)
    assert (run.settings.devices, run.settings.sampling) == ("tiers", "size")
    assert run.settings.transforms == ["quantise"] and not run.settings.dry_run
    assert set(run.global_state()) == {"prototypes", "classes"}
    request = read_request({**DEVICES, "rounds": 2, "data_dir": Path("data")})
    assert RequestedRun.of(request, pf.events.ignore).identity == run.identity

    monkeypatch.setattr(identity, "_codes", lambda was, now: ([], []))  # code has changed since
    options = DEVICES | {"backend": "local", "data_dir": "data", "progress": False}
    reused = pf.run(**options, rounds=2, reuse=older)
    assert Path(reused.folder).resolve() == folder.resolve()
    longer = pf.run(resume=True, out=folder, rounds=3, backend="local", data_dir="data")
    whole = pf.run(**options, rounds=3, out=older / "whole")
    own = [{k: v for k, v in row.items() if k not in ("seconds", "time")} for row in whole.record]
    assert own == [
        {k: v for k, v in row.items() if k not in ("seconds", "time")} for row in longer.record
    ]
