"""Tests of pools that keep the clients' files: the run folder has only names and checksums."""

from __future__ import annotations

import json

import pytest
from fake_pools import KeepingPool
from runtime_toys import install, train, without_times
from slowness import quick

import protofl as pf
from protofl.backends import Job, SaveReply
from protofl.federation.jobs.jobs import StartTrial

GIVEN = {"clients": 5, "rounds": 4, "participation": 0.6, "dry_run": False}


class Keeping:
    """A backend whose pool keeps files in its own folder."""

    folder, pools = None, ()

    @pf.hookimpl
    def open_pool(self, plan):
        Keeping.pools = [*self.pools, KeepingPool(plan, self.folder)]
        return Keeping.pools[-1]


@pytest.fixture
def backend(tmp_path, monkeypatch):
    install(monkeypatch)
    monkeypatch.setattr(Keeping, "folder", tmp_path / "node")
    monkeypatch.setattr(Keeping, "pools", ())
    return Keeping


class Killed(BaseException):
    pass


def kill(event):
    if isinstance(event, pf.events.RoundStarted) and event.round == 3:
        raise Killed


def files(folder):
    return {path.name: path.read_bytes() for path in folder.glob("client-*")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    quick([{}, {"keep": "current"}, {"checkpoint_every": 2}], {"checkpoint_every": 2}, always=True),
    ids=str,
)
@pytest.mark.parametrize("method", quick(["fedproto", "ds-fl"], "ds-fl", always=True))
def test_a_run_is_the_same_and_is_resumed(tmp_path, backend, method, options):
    given = GIVEN | options | ({"public": 10} if method == "ds-fl" else {})
    here = train(method, tmp_path / "here", **given)
    there = train(method, tmp_path / "there", backend=backend, **given)
    assert without_times(here.record) == without_times(there.record)
    own = files(here.folder / "checkpoint")
    node = files(tmp_path / "node")
    assert own and not files(there.folder / "checkpoint")
    assert backend.pools[-1].kept == own.keys() == node.keys()
    assert node == own

    with pytest.raises(Killed):
        train(method, tmp_path / "cut", backend=backend, progress=kill, **given)
    again = train(method, tmp_path / "cut", resume=True, backend=backend)
    assert without_times(again.record) == without_times(here.record)
    assert files(tmp_path / "node") == own


@pytest.mark.always
@pytest.mark.slow
def test_trials_and_longer_runs(tmp_path, backend):
    here = train("fedproto", tmp_path / "here", **GIVEN, trials=2)
    there = train("fedproto", tmp_path / "there", backend=backend, **GIVEN, trials=2)
    assert files(tmp_path / "node") == files(here.folder / "checkpoint")
    longer = {"resume": True, "rounds": 6}
    here = train("fedproto", here.folder, **longer)
    there = train("fedproto", there.folder, backend=backend, **longer)
    assert len(there.record) == 12
    assert without_times(here.record) == without_times(there.record)
    assert files(tmp_path / "node") == files(here.folder / "checkpoint")


def test_a_client_of_another_round_is_found_on_resume(tmp_path, backend):
    with pytest.raises(Killed):
        train("fedproto", tmp_path / "cut", backend=backend, progress=kill, **GIVEN)
    node, manifest = tmp_path / "node", tmp_path / "cut/checkpoint/manifest.json"
    assert json.loads(manifest.read_text())["elsewhere"] is True
    for path in node.iterdir():
        path.write_bytes(b"another round")
    with pytest.raises(pf.backends.HostFailure, match=r"client \d is stale"):
        train("fedproto", tmp_path / "cut", resume=True, backend=backend)


def test_weights_are_not_in_the_run_folder(tmp_path, backend):
    run = train("fedproto", tmp_path / "run", backend=backend, **GIVEN).folder
    words = "the clients' weights are not in the run folder"
    for read in (
        lambda: pf.read_weights(run),
        lambda: pf.load_run(run).model(0),
        lambda: train("fedproto", tmp_path / "new", init=str(run), **GIVEN),
    ):
        with pytest.raises(pf.UsageError, match=words) as caught:
            read()
        assert "clients' own machines" in caught.value.near
        assert "protofl node export" in caught.value.do
    assert "global_state/prototypes" in pf.read_weights(run, clients=[]).server


@pytest.mark.parametrize("began", ["with the hosts of the backend", "in the run folder"])
def test_a_run_goes_on_where_its_files_are(tmp_path, backend, began):
    keeps = {"backend": backend}
    first, then = (keeps, {}) if began.startswith("with") else ({}, keeps)
    with pytest.raises(Killed):
        train("fedproto", tmp_path / "run", **GIVEN | first, progress=kill)
    with pytest.raises(pf.UsageError, match=f"clients' files of .* are {began}"):
        train("fedproto", tmp_path / "run", resume=True, **then)
    train("fedproto", tmp_path / "run", resume=True, **first)


@pytest.mark.parametrize(("name", "value"), [("size", -1), ("crc", 1 << 32), ("crc", "x")])
def test_what_a_pool_says_of_a_file_is_checked(tmp_path, backend, monkeypatch, name, value):
    handle = KeepingPool.handle

    def lies(pool, job):
        reply = handle(pool, job)
        if isinstance(reply, SaveReply):
            setattr(reply, name, value)
        return reply

    monkeypatch.setattr(KeepingPool, "handle", lies)
    with pytest.raises(pf.RunFailure, match=f"save of client .*'{name}' as {value}"):
        train("fedproto", tmp_path / "run", backend=backend, **GIVEN)


def test_the_start_of_a_trial_crosses_as_json():
    job = StartTrial(1, {3: "client-00003-t1-r0.safetensors"}, checks={3: [7, 8]})
    assert Job.from_header(json.loads(json.dumps(job.header()))) == job
