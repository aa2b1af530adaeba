"""A ClientApp or a server that is killed or stopped: the host goes on, the run names it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import BinaryIO, cast

import pytest

import protofl as pf
from protofl.backends import fresh_interpreter
from protofl_flower.node import host as node_host
from protofl_flower.protocol import framing, transport


@pytest.fixture
def door(tmp_path, monkeypatch):
    """Serve a host whose answers are larger than the buffers of a socket."""
    monkeypatch.setattr(node_host, "PATIENCE", 0.3)
    host = SimpleNamespace(respond=lambda text, blobs: (text[::-1], [b"x" * (16 << 20)]))
    path = tmp_path / "host"
    threading.Thread(target=node_host.serve, args=(host, path), daemon=True).start()
    wait_for(path.exists)
    return path


def wait_for(done, seconds=60):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def connected(path):
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(60)
    line.connect(str(path))
    return line


def ask(line, text="abc"):
    made = cast(BinaryIO, line.makefile("rwb"))
    framing.send(made, text, [])
    return made


def test_a_clientapp_that_is_killed_or_stopped_does_not_end_or_block_the_host(door):
    with connected(door) as killed, ask(killed):
        pass  # closed before the answer, which can't be written
    with connected(door) as garbage:
        garbage.sendall(b"\x07" * 20)
    with connected(door) as stopped, connected(door), ask(stopped):  # the second is silent
        with connected(door) as honest, ask(honest) as made:
            text, blobs = framing.receive(made)
    assert (text, len(blobs[0])) == ("cba", 16 << 20)


@pytest.mark.slow
@pytest.mark.always
def test_the_host_outlives_killed_clientapps(tmp_path):
    """With programs: five ClientApps are killed (-9) while they wait, then one is answered."""
    (tmp_path / "node.toml").write_text("clients = [0]\n")
    command, variables = fresh_interpreter("protofl_flower.node.host")
    path = tmp_path / "host"
    with open(tmp_path / "log", "wb") as log:
        host = subprocess.Popen([*command, str(tmp_path), str(path)], env=variables, stderr=log)
    try:
        wait_for(path.exists, 120)
        app = "import socket, sys, time; from protofl_flower.protocol import framing; "
        app += "line = socket.socket(socket.AF_UNIX); line.connect(sys.argv[1]); "
        app += "framing.send(line.makefile('rwb'), '{\"sizes\": {}}', []); print(1, flush=True); "
        app += "time.sleep(99)"
        for _ in range(5):
            with subprocess.Popen(
                [sys.executable, "-c", app, str(path)], stdout=subprocess.PIPE
            ) as process:
                assert process.stdout.read(1)
                process.kill()
        with connected(path) as line, ask(line, '{"sizes": {}}') as made:
            text, _ = framing.receive(made)
        assert "no data of its own" in text
        assert host.poll() is None
    finally:
        host.kill()
        host.wait(60)


# --- the server -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "words"), [(-9, "was killed by SIGKILL"), (3, "exit code 3")])
def test_a_killed_server_is_reported_as_killed(code, words, tmp_path):
    request, end = tmp_path / "request.json", tmp_path / "end.json"
    request.write_text(json.dumps({"end": str(end)}))
    transport.report_killed(str(request), code)
    error = pf.ProtoflError.from_values(json.loads(end.read_text())["failure"])
    assert isinstance(error, pf.RunFailure) and words in error.what and "--resume" in error.do
    transport.write_end(str(end), {"done": True})
    transport.report_killed(str(request), code)
    assert json.loads(end.read_text()) == {"done": True}


@pytest.mark.slow
@pytest.mark.always
def test_the_serverapp_tells_that_its_process_was_killed(tmp_path, monkeypatch):
    """The run waits for nodes when its process is killed (-9)."""
    pytest.importorskip("flwr")
    from protofl_flower.flower_app import server_app

    started = []

    class Started(subprocess.Popen):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            started.append(self)

    monkeypatch.setattr(server_app.subprocess, "Popen", Started)
    monkeypatch.setattr(server_app, "end_with_parent", lambda process: None)
    options = {"method": "fedproto", "models": "htcnn8", "dataset": "digits", "clients": 1}
    options |= {"out": str(tmp_path / "run"), "data_dir": str(tmp_path / "data")}
    request, end = tmp_path / "request.json", tmp_path / "end.json"
    asked = {"options": options, "run": "0" * 16, "lines": str(tmp_path / "lines")}
    asked |= {"end": str(end), "nodes": [{"name": "a", "key": "k", "clients": [0]}]}
    request.write_text(json.dumps(asked))
    asking = threading.Event()

    def no_nodes():
        asking.set()
        return []

    context = SimpleNamespace(run_config={"request": str(request)})
    grid = SimpleNamespace(get_nodes=no_nodes)
    main = threading.Thread(target=server_app.main, args=(grid, context))
    main.start()
    assert asking.wait(120)
    os.kill(started[0].pid, signal.SIGKILL)
    main.join(60)
    assert "killed by SIGKILL" in json.loads(end.read_text())["failure"]["what"]
    assert "--resume" in json.loads(end.read_text())["failure"]["do"]


def test_messages_that_are_malformed_cost_no_other_message():
    """Each ticket is pulled by itself, so an unreadable message takes no other with it."""
    pytest.importorskip("flwr")
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from protofl_flower.flower_app.server_app import GridTransport

    def blobs(*names):
        return ArrayRecord({name: Array("uint8", (1,), "safetensors", b"x") for name in names})

    good = {"protofl": ConfigRecord({"text": "{}"}), "blobs": blobs("0")}
    contents = {
        "good": good,
        "no blobs": {"protofl": good["protofl"]},
        "no text": good | {"protofl": ConfigRecord({"x": 1})},
        "a number": good | {"protofl": ConfigRecord({"text": 3})},
        "other names": good | {"blobs": blobs("1")},
        "no protofl": {"blobs": good["blobs"]},
        "blobs that are a table": good | {"blobs": good["protofl"]},
        "the last": good,
    }

    def pull(tickets):
        (ticket,) = tickets
        if ticket == "unreadable":
            raise ValueError("a crafted object")
        if ticket == "an error":
            error = SimpleNamespace(code=77, reason=None)
            return [SimpleNamespace(has_error=lambda: True, error=error)]
        content = RecordDict(contents[ticket])
        return [SimpleNamespace(has_error=lambda: False, content=content)]

    tickets = [*contents, "unreadable", "an error"]
    found = {
        d.ticket: d for d in GridTransport(SimpleNamespace(pull_messages=pull)).receive(tickets)
    }
    assert [*found] == tickets
    for ticket, delivery in found.items():
        if ticket in ("good", "the last"):
            assert (delivery.text, delivery.blobs, delivery.code) == ("{}", [b"x"], 0)
        else:
            assert delivery.code == (77 if ticket == "an error" else transport.MALFORMED), ticket
