"""Tests of sessions: workers that stay between runs, and when they end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import protofl as pf
from protofl.backends import Idle


class Host:
    def __init__(self):
        self.closed = False

    def close(self):
        self.closed = True


def test_hosts_that_wait():
    idle, one, two = Idle(), Host(), Host()
    idle.put("key", one)
    idle.put("key", two)
    assert idle.take("other") is None
    assert idle.take("key", lambda host: host is two) is two
    assert idle.take("key", lambda host: host is two) is None
    assert len(idle) == 1
    idle.close()
    assert one.closed and not two.closed and len(idle) == 0


def test_a_run_s_options_win_over_the_session_s(table, quick, tmp_path):
    with pf.Session(dataset=table, **quick) as session:
        one = session.run("local", out=tmp_path / "one")
        two = session.run("local", rounds=1, out=tmp_path / "two")
    assert (len(one.record), len(two.record)) == (2, 1)
    with pytest.raises(pf.UsageError, match="the session is closed"):
        session.run("local")


def children():
    """Return the process ids of this process's workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z" and b"backends.worker" in command:
            found.append(int(path.parent.name))
    return sorted(found)


class Fails:
    """A method that fails in its worker."""

    @pf.hookimpl
    def upload_payload(self, client):
        raise ValueError("no")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_workers_stay_and_change_nothing(table, quick, tmp_path, same, run):
    alone = [run(m, f"alone-{m}", backend="local") for m in ("fedproto", "fedtgp")]
    with pf.Session(dataset=table, workers=2, **{**quick, "backend": "process"}) as session:
        one = session.run("fedproto", out=tmp_path / "one")
        first = children()
        assert len(first) == 2
        two = session.run("fedtgp", out=tmp_path / "two")
        assert children() == first
        again = session.run("fedproto", out=tmp_path / "again")
        assert children() == first
        for found, wanted in ((one, alone[0]), (two, alone[1]), (again, alone[0])):
            same(found, wanted)
        # A worker that ended between two runs is replaced.
        os.kill(first[0], signal.SIGKILL)
        same(session.run("fedtgp", out=tmp_path / "three"), alone[1])
        assert first[1] in children() and len(children()) == 2
        # A failed run ends its workers.
        with pytest.raises(pf.RunFailure, match="ValueError: no"):
            session.run(Fails, out=tmp_path / "bad", dry_run=False)
        assert children() == []
        same(session.run("fedproto", out=tmp_path / "four"), alone[0])
    assert children() == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_a_changed_file_gets_a_new_worker(table, quick, tmp_path):
    source = '''
import protofl as pf

class Sends:
    """Sends a number."""

    uploads = {"number": "a number"}

    @pf.hookimpl
    def upload_payload(self, client):
        import torch
        return {"number": torch.full((2,), NUMBER)}

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        return {"number": uploads[0]["number"]}

    @pf.hookimpl
    def end_round(self, server):
        return {"number": float(server.global_state["number"][0])}
'''
    file = tmp_path / "numbers_of_mine.py"
    options = {"dataset": table, "backend": "process", "workers": 1, **quick}
    try:
        with pf.Session(**options) as session:
            for number in (1.0, 2.0):
                file.write_text(source.replace("NUMBER", str(number)))
                found = session.run(f"{file}:Sends", out=tmp_path / str(number))
                assert found.record[-1]["extra"]["number"] == number
    finally:
        sys.modules.pop("numbers_of_mine", None)
