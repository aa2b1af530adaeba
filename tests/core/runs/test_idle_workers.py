"""Tests of workers that stay between the runs of a sweep, and when they end."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest

import protofl as pf
from protofl.backends import Idle
from protofl.runs.lifecycle.lifecycle import start
from protofl.runs.request.program_classes import name_classes
from protofl.runs.request.request import read_request


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


def run_with(idle, method, out, **options):
    """Train as a sweep does, with hosts of earlier runs."""
    named = name_classes({"method": method, **options})
    with named.opened():
        return start(read_request(named.typed, extra=named.extra, out=out), pf.events.ignore, idle)


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


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_workers_stay_and_change_nothing(table, quick, tmp_path, same, run):
    alone = [run(m, f"alone-{m}", backend="local") for m in ("fedproto", "fedtgp")]
    options = {**quick, "dataset": table, "workers": 2, "backend": "process"}
    options.pop("progress", None)
    idle = Idle()
    with closing(idle):
        one = run_with(idle, "fedproto", tmp_path / "one", **options)
        first = children()
        assert len(first) == 2
        two = run_with(idle, "fedtgp", tmp_path / "two", **options)
        assert children() == first
        again = run_with(idle, "fedproto", tmp_path / "again", **options)
        assert children() == first
        for found, wanted in ((one, alone[0]), (two, alone[1]), (again, alone[0])):
            same(found, wanted)
        # A worker that ended between two runs is replaced.
        os.kill(first[0], signal.SIGKILL)
        same(run_with(idle, "fedtgp", tmp_path / "three", **options), alone[1])
        assert first[1] in children() and len(children()) == 2
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
    options = {**quick, "dataset": table, "backend": "process", "workers": 1}
    options.pop("progress", None)
    idle = Idle()
    try:
        with closing(idle):
            for number in (1.0, 2.0):
                file.write_text(source.replace("NUMBER", str(number)))
                found = run_with(idle, f"{file}:Sends", tmp_path / str(number), **options)
                assert found.record[-1]["extra"]["number"] == number
    finally:
        sys.modules.pop("numbers_of_mine", None)
