"""Tests of faults in deployed runs with Flower's own programs on this machine.

A federation with two nodes of two clients each is made once. Each fault has its own run and occurs
while the first node trains. Afterwards, a simulated run with the same participants must have the
same server and clients, bit for bit. Each takes one to three minutes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from urllib import error, request

import pytest

from protofl_cli.deploying import programs
from protofl_cli.deploying.federation_file import read_federation
from protofl_cli.deploying.link import make_federation
from protofl_cli.deploying.node_process import make_node
from protofl_cli.deploying.rehearsal import compare_states, make_sites

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.skipif(find_spec("flwr") is None, reason="Flower is not installed"),
]

PROTOFL = [sys.executable, "-c", "from protofl_cli.start import main; main()"]
RUN = "--models htcnn8 --dataset digits --clients 4 --batch-size 64 --local-epochs 10 --device cpu"
RUN += " --feature-dim 16 --no-dry-step"
ROUNDS = 4
ONE = {"OMP_NUM_THREADS": "1"}


class Program:
    """A protofl command that writes its output to a file."""

    def __init__(self, folder: Path, name: str, *words: object) -> None:
        self.log = folder / f"{name}.txt"
        self._start = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as file:
            self.process = subprocess.Popen(
                [*PROTOFL, *map(str, words)],
                stdout=file,
                stderr=file,
                env=os.environ | ONE,
                cwd=folder,
            )

    @property
    def said(self) -> str:
        """The program's output so far."""
        return self.log.read_bytes()[self._start :].decode(errors="replace")

    def wait_for(self, words: str, seconds: float = 240) -> None:
        """Wait until the output contains `words`."""
        end = time.monotonic() + seconds
        while words not in self.said:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.log.name} never said {words!r}: {self.said[-500:]}")
            time.sleep(0.2)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the program with a signal."""
        self.process.send_signal(how)
        self.process.wait(60)


def processes(mark: str, home: Path) -> list[int]:
    """Return the IDs of processes that work for a folder and have `mark` in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            place = (path / "environ").read_bytes().decode(errors="replace")
            here = Path(os.readlink(path / "cwd")).is_relative_to(home)
            named = str(home) in command or f"FLWR_HOME={home}/" in place
            if mark in command and (named or here):
                found.append(int(path.name))
    return found


def kill(mark: str, home: Path, how: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal to the processes of a folder; return the number of processes."""
    found = processes(mark, home)
    for number in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, how)
    return len(found)


class Lab:
    """The federation, its link and its nodes."""

    def __init__(self, folder: Path, sites: int = 2) -> None:
        self.folder, self.lab = folder, folder / "federation"
        if not self.lab.exists():
            port = programs.free_port()
            made = make_federation(self.lab, f"127.0.0.1:{port}", port)
            data = folder / "data"
            made, nodes = make_sites(made, folder, sites, 4, data)
            for node in nodes:
                text = (node / "node.toml").read_text()
                (node / "node.toml").write_text(f'link = "{made.public}"\n' + text)
        self.nodes = [folder / f"node-{number}" for number in range(sites)]
        self.link = self.start_link()
        self.starts = [self.start_node(number) for number in range(sites)]

    def start_link(self) -> Program:
        """Start the link and wait until it is ready."""
        link = Program(self.folder, "link", "deploy", "link", self.lab)
        link.wait_for("link at")
        return link

    def start_node(self, number: int) -> Program:
        """Start a node."""
        return Program(self.folder, f"start-{number}", "node", "start", self.nodes[number])

    def run(self, name: str, *more: object) -> Program:
        """Start or resume a run."""
        out = ["--federation", self.lab, "--out", self.folder / name]
        return Program(self.folder, f"run-{name}", "deploy", "run", *out, *more)

    def new_run(self, name: str, *more: object) -> Program:
        """Start a new run."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        words = ["fedproto", *RUN.split(), "--rounds", ROUNDS, "--data-dir", self.folder / "data"]
        return self.run(name, *words, *more)

    def in_training(self, run: Program) -> None:
        """Wait until the first node trains in the second round."""
        run.wait_for("round 1/")
        before, since = list[int](), time.monotonic()
        while not before or time.monotonic() - since < 4:  # an evaluation's ClientApp ends sooner
            now = processes("flwr-clientapp", self.nodes[0])
            if now != before:
                before, since = now, time.monotonic()
            time.sleep(0.1)

    def close(self) -> None:
        """End all programs."""
        for program in (*self.starts, self.link):
            with contextlib.suppress(Exception):
                program.end()


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
    assert kill("backends.node", lab.nodes[0])
    return run


def deadline(lab: Lab, run: Program) -> Program:
    """The node's host is paused until the deadline has passed."""
    lab.in_training(run)
    assert kill("backends.node", lab.nodes[0], signal.SIGSTOP)
    try:
        run.wait_for("no reply within")
    finally:
        kill("backends.node", lab.nodes[0], signal.SIGCONT)
    return run


def gone(lab: Lab, run: Program) -> Program:
    """Both nodes are terminated and restarted after 45 s; the run is resumed if it ended."""
    lab.in_training(run)
    for start in lab.starts:
        start.end()
    time.sleep(45)
    lab.starts = [lab.start_node(number) for number in range(2)]
    ended(run)
    online(lab)
    return lab.run("gone", "--resume")


def superlink(lab: Lab, run: Program) -> Program:
    """The SuperLink is killed in training and restarted; the run is resumed."""
    lab.in_training(run)
    kill("flower-superlink", lab.lab)
    ended(run)
    lab.link = lab.start_link()
    online(lab)
    return lab.run("superlink", "--resume")


def server(lab: Lab, run: Program) -> Program:
    """The process of the run on the server is killed in training; the run is resumed."""
    lab.in_training(run)
    assert kill("backends.server_process", lab.lab)
    ended(run)
    return lab.run("server", "--resume")


def stopped(lab: Lab, run: Program) -> Program:
    """`protofl deploy stop` is called in training; the run is resumed."""
    lab.in_training(run)
    stop = Program(lab.folder, "stop", "deploy", "stop", lab.lab)
    assert ended(stop) == 0, stop.said
    ended(run)
    return lab.run("stopped", "--resume")


def twice(lab: Lab, run: Program) -> Program:
    """A second run is started while another one trains."""
    run.wait_for("round 1/")
    second = lab.new_run("twice-2")
    assert ended(second) != 0, second.said
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
        server,
        stopped,
        twice,
    )
}
MORE = {"deadline": ["--deadline", "40"], "gone": ["--wait-for-clients", "300"]}


def ended(program: Program, seconds: float = 900) -> int:
    """Wait until a program ends; return its exit code."""
    return program.process.wait(seconds)


def online(lab: Lab, seconds: float = 150) -> None:
    """Wait until all nodes are online."""
    end = time.monotonic() + seconds
    while True:
        status = Program(lab.folder, "status", "deploy", "status", lab.lab)
        status.process.wait()
        if status.said.count("online") >= len(lab.nodes) and "offline" not in status.said:
            return
        if time.monotonic() > end:
            raise RuntimeError(f"the nodes are not online: {status.said}")
        time.sleep(2)


def simulated(lab: Lab, name: str) -> Path:
    """Run a simulated run with the participants of a deployed run; return its folder."""
    out = lab.folder / f"{name}-simulated"
    words = [*RUN.split(), "--rounds", ROUNDS, "--data-dir", lab.folder / "data"]
    words += ["--participants-from", lab.folder / name, "--on-lost-client", "skip", "--out", out]
    run = Program(lab.folder, f"simulated-{name}", "run", "fedproto", *words)
    assert ended(run) == 0, run.said
    return out


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab"))
    try:
        online(lab)
        yield lab
    finally:
        lab.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_survives(lab, fault):
    run = FAULTS[fault](lab, lab.new_run(fault, *MORE.get(fault, ())))
    assert ended(run) == 0, run.said
    rows = (lab.folder / fault / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == ROUNDS
    compare_states(simulated(lab, fault), lab.folder / fault)  # raises if a file differs
    online(lab)


@pytest.mark.parametrize("path", ["/v1/fleet/pull-messages", "/v1/runtime/acquire-task"])
def test_a_stranger_without_a_key_is_refused(lab, path):
    address = read_federation(lab.lab).address
    context = ssl.create_default_context(cafile=str(lab.lab / "ca.crt"))
    kind = {"Content-Type": "application/protobuf"}
    asked = request.Request(f"https://{address}{path}", b"", kind, method="POST")
    with pytest.raises(error.HTTPError) as refused:
        request.urlopen(asked, context=context, timeout=20)
    assert 400 <= refused.value.code < 500


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
        start.wait_for("next try", 60)
    except RuntimeError:
        assert start.process.poll() not in (0, None), start.said
    finally:
        if start.process.poll() is None:
            start.end()
