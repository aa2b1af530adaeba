"""Tests of faults in deployed runs with Flower's own programs on this machine.

A federation with two nodes of two clients each is made once. Each fault has its own run and occurs
while the first node trains. Afterwards, a simulated run with the same participants must have the
same server and clients, bit for bit. Each takes one to three minutes on an idle machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import ssl
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from urllib import error, request

import pytest
from deployed_lab import ROUNDS, RUN, Lab, Program, kill, online, processes

from protofl_flower.deployment.federation_file import read_federation
from protofl_flower.deployment.node_process import make_node
from protofl_flower.deployment.rehearsal import compare_states
from protofl_flower.deployment.server_process import make_federation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.skipif(find_spec("flwr") is None, reason="Flower is not installed"),
]


def killed(lab: Lab, run: Program) -> Program:
    """The node is killed (-9) in training and restarted after 10 s."""
    lab.in_training(run)
    lab.starts[0].end(signal.SIGKILL)
    kill("", lab.nodes[0])
    time.sleep(10)
    lab.starts[0] = lab.start_node(0)
    return run


def terminated(lab: Lab, run: Program) -> Program:
    """The node is terminated in training and restarted at once."""
    lab.in_training(run)
    lab.starts[0].end()
    lab.starts[0] = lab.start_node(0)
    return run


def clientapp(lab: Lab, run: Program) -> Program:
    """Flower's ClientApp is killed in training."""
    lab.in_training(run)
    assert kill("flwr-clientapp", lab.nodes[0])
    return run


def host(lab: Lab, run: Program) -> Program:
    """The resident host is killed in training."""
    lab.in_training(run)
    assert kill("protofl_flower.node.host", lab.nodes[0])
    return run


def deadline(lab: Lab, run: Program) -> Program:
    """The node's host is paused until the deadline has passed."""
    lab.in_training(run)
    assert kill("protofl_flower.node.host", lab.nodes[0], signal.SIGSTOP)
    try:
        run.wait_for("node-0: no reply within")
    finally:
        kill("protofl_flower.node.host", lab.nodes[0], signal.SIGCONT)
    return run


def gone(lab: Lab, run: Program) -> Program:
    """Both nodes are terminated and restarted after 45 s; the run is resumed if it ended."""
    lab.in_training(run)
    for start in lab.starts:
        start.end()
    time.sleep(45)
    lab.starts = [lab.start_node(number) for number in range(2)]
    run.wait_for_end()
    online(lab)
    return lab.run("gone", "--resume")


def superlink(lab: Lab, run: Program) -> Program:
    """The SuperLink is killed in training and restarted; the run is resumed."""
    lab.in_training(run)
    assert kill("flower-superlink", lab.lab)
    assert run.wait_for_end() != 0, run.said
    lab.server.wait_for_end()  # until then it holds the lock
    lab.server = lab.start_server()
    online(lab)
    return lab.run("superlink", "--resume")


def process(lab: Lab, run: Program) -> Program:
    """The process of the run is killed in training; the run is resumed."""
    lab.in_training(run)
    assert kill("protofl_flower.run_process", lab.lab)
    assert run.wait_for_end() != 0, run.said
    return lab.run("process", "--resume")


def stopped(lab: Lab, run: Program) -> Program:
    """`protofl deploy stop` is called in training; the run is resumed."""
    lab.in_training(run)
    stop = Program(lab.folder, "stop", "deploy", "stop", lab.lab)
    assert stop.wait_for_end() == 0, stop.said
    assert run.wait_for_end() != 0, run.said
    return lab.run("stopped", "--resume")


def twice(lab: Lab, run: Program) -> Program:
    """A second run is started while another one trains. The nodes serve both."""
    run.wait_for("round 1/")
    check(lab, "twice-2", lab.new_run("twice-2"))
    return run


FAULTS: dict[str, Callable[[Lab, Program], Program]] = {
    f.__name__: f
    for f in (
        killed,
        terminated,
        clientapp,
        host,
        deadline,
        gone,
        superlink,
        process,
        stopped,
        twice,
    )
}
MORE = {"deadline": ["--deadline", "120"], "gone": ["--wait-for-clients", "300"]}


def simulated(lab: Lab, name: str) -> Path:
    """Run a simulated run with the participants of a deployed run; return its folder."""
    out = lab.folder / f"{name}-simulated"
    words = [*RUN.split(), "--rounds", ROUNDS, "--data-dir", lab.folder / "data"]
    words += ["--participants-from", lab.folder / name, "--on-lost-client", "skip", "--out", out]
    run = Program(lab.folder, f"simulated-{name}", "run", "fedproto", *words)
    assert run.wait_for_end() == 0, run.said
    return out


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab"))
    try:
        online(lab)
        yield lab
    finally:
        lab.close()


def check(lab: Lab, name: str, run: Program) -> None:
    """Wait for the end of a run, and compare it with its simulation."""
    assert run.wait_for_end() == 0, run.said
    rows = (lab.folder / name / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == ROUNDS
    compare_states(simulated(lab, name), lab.folder / name)  # raises if a file differs


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_survives(lab, fault):
    check(lab, fault, FAULTS[fault](lab, lab.new_run(fault, *MORE.get(fault, ()))))
    online(lab)


def test_flowers_programs_listen_on_loopback_alone(lab):
    """Flower's control API answers a stranger without a key, so no other machine may reach it."""
    own = {each for number in processes("", lab.folder) for each in sockets(number)}
    addresses = {place for place, socket in listening() if socket in own}
    assert f"0100007F:{read_federation(lab.lab).port:04X}" in addresses
    assert {place.partition(":")[0] for place in addresses} == {"0100007F"}  # 127.0.0.1


def sockets(process):
    """Return the sockets of a process, as /proc names them."""
    found = set()
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(file))
    return found


def listening():
    """Return the address, in hexadecimal digits, and the socket of each listening TCP port."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                yield words[1], f"socket:[{words[9]}]"


@pytest.mark.parametrize("path", ["/v1/fleet/pull-messages", "/v1/runtime/acquire-task"])
def test_a_stranger_without_a_key_is_refused(lab, path):
    address = read_federation(lab.lab).address
    context = ssl.create_default_context(cafile=str(lab.lab / "ca.crt"))
    kind = {"Content-Type": "application/protobuf"}
    asked = request.Request(f"https://{address}{path}", b"", kind, method="POST")
    with pytest.raises(error.HTTPError) as refused:
        request.urlopen(asked, context=context, timeout=20)
    with refused.value as response:  # it holds the connection
        assert 400 <= response.code < 500


@pytest.mark.parametrize("what", ["another CA", "an unregistered key", "the key of another node"])
def test_a_node_is_refused(lab, what, tmp_path):
    node = tmp_path / "node"
    make_node(node, (lab.nodes[0] / "node.toml").read_text())
    if what != "an unregistered key":
        shutil.copy(lab.nodes[0] / "key", node / "key")
    authority = lab.lab / "ca.crt"
    if what == "another CA":
        make_federation(tmp_path / "other", "127.0.0.1:1", 1)
        authority = tmp_path / "other" / "ca.crt"
    shutil.copy(authority, node / "ca.crt")
    start = Program(tmp_path, "start", "node", "start", node)
    try:
        start.wait_for("next try")
    except RuntimeError:
        assert start.process.poll() not in (0, None), start.said
    finally:
        if start.process.poll() is None:
            start.end()
