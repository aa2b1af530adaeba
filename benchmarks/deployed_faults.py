"""Cause faults in deployed runs (Flower's own programs, on this machine); print how the runs react.

    python benchmarks/deployed_faults.py runs/faults                 # all, some twenty minutes
    python benchmarks/deployed_faults.py runs/faults killed deadline

A federation with two nodes of two clients each is made once. Each fault has its own run and occurs
while the first node trains. Afterwards, a simulated run with the same participants must have the
same server and clients, bit for bit. Needs protofl[flower]; Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib import error, request

from protofl_flower.deployment import programs
from protofl_flower.deployment.federation_file import read_federation
from protofl_flower.deployment.link import make_federation
from protofl_flower.deployment.node_process import make_node
from protofl_flower.deployment.rehearsal import compare_states, make_sites

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
    assert kill("protofl_flower.node.host", lab.nodes[0])
    return run


def deadline(lab: Lab, run: Program) -> Program:
    """The node's host is paused until the deadline has passed."""
    lab.in_training(run)
    assert kill("protofl_flower.node.host", lab.nodes[0], signal.SIGSTOP)
    try:
        run.wait_for("no reply within")
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
    print("   the run:", closing(run))
    online(lab)
    return lab.run("gone", "--resume")


def superlink(lab: Lab, run: Program) -> Program:
    """The SuperLink is killed in training and restarted; the run is resumed."""
    lab.in_training(run)
    kill("flower-superlink", lab.lab)
    print("   the run:", closing(run))
    lab.link = lab.start_link()
    online(lab)
    return lab.run("superlink", "--resume")


def server(lab: Lab, run: Program) -> Program:
    """The process of the run on the server is killed in training; the run is resumed."""
    lab.in_training(run)
    assert kill("protofl_flower.run_process", lab.lab)
    print("   the run:", closing(run))
    return lab.run("server", "--resume")


def stopped(lab: Lab, run: Program) -> Program:
    """`protofl deploy stop` is called in training; the run is resumed."""
    lab.in_training(run)
    stop = Program(lab.folder, "stop", "deploy", "stop", lab.lab)
    print("   stop:", closing(stop))
    print("   the run:", closing(run))
    return lab.run("stopped", "--resume")


def twice(lab: Lab, run: Program) -> Program:
    """A second run is started while another one trains."""
    run.wait_for("round 1/")
    second = lab.new_run("twice-2")
    print("   the second:", closing(second))
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


def closing(program: Program, seconds: float = 900) -> str:
    """Wait until a program ends; describe its exit code and its last lines."""
    try:
        code = program.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return "it does not end"
    words = [line for line in program.said.splitlines() if line.strip()][-3:]
    return f"exit code {code}: {' | '.join(words)}"


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


def judged(lab: Lab, name: str) -> str:
    """Compare a run with a simulated run that has the same participants."""
    out = lab.folder / f"{name}-simulated"
    shutil.rmtree(out, ignore_errors=True)
    words = [*RUN.split(), "--rounds", ROUNDS, "--data-dir", lab.folder / "data"]
    words += ["--participants-from", lab.folder / name, "--on-lost-client", "skip", "--out", out]
    simulated = Program(lab.folder, f"simulated-{name}", "run", "fedproto", *words)
    if simulated.process.wait():
        return f"no simulated run: {simulated.said[-300:]}"
    servers, clients = compare_states(out, lab.folder / name)
    return f"equal to the simulated run: {servers} + {clients} files"


def strangers(lab: Lab) -> Iterator[str]:
    """Yield the link's answers to requests without a key."""
    import ssl

    address = read_federation(lab.lab).address
    context = ssl.create_default_context(cafile=str(lab.lab / "ca.crt"))
    kind = {"Content-Type": "application/protobuf"}
    for path in ("/v1/fleet/pull-messages", "/v1/runtime/acquire-task", "/v1/control/list-runs"):
        asked = request.Request(f"https://{address}{path}", b"", kind, method="POST")
        try:
            with request.urlopen(asked, context=context, timeout=20) as answer:
                yield f"{path}: {answer.status}"
        except error.HTTPError as problem:
            yield f"{path}: {problem.code}"


def refused_nodes(lab: Lab) -> Iterator[str]:
    """Yield the output of nodes that the link refuses, and of `protofl node check` for them."""
    other, away = lab.folder / "other", lab.folder / "refused"
    for place in (other, away):
        shutil.rmtree(place, ignore_errors=True)
    make_federation(other, "127.0.0.1:1", 1)
    lines = (lab.nodes[0] / "node.toml").read_text()
    made = {"a wrong CA": (other / "ca.crt", True), "a key that is not registered": (None, False)}
    made["the key of a node that is online"] = (None, True)
    for name, (authority, known) in made.items():
        node = away / name.replace(" ", "-")
        make_node(node, lines)
        if known:
            shutil.copy(lab.nodes[0] / "key", node / "key")
        shutil.copy(authority or lab.lab / "ca.crt", node / "ca.crt")
        check = Program(lab.folder, f"check-{node.name}", "node", "check", node)
        check.process.wait(120)
        link = [line.strip() for line in check.said.splitlines() if "link" in line][-1:]
        start = Program(lab.folder, f"refused-{node.name}", "node", "start", node)
        end = time.monotonic() + 60
        while start.process.poll() is None and time.monotonic() < end:
            if "next try" in start.said:
                break
            time.sleep(0.5)
        said = [line for line in start.said.splitlines() if line.strip()][-2:]
        if start.process.poll() is None:
            start.end()
        yield f"{name}: {' | '.join(said)} (node check: {' '.join(link)})"


def main() -> None:
    """Run the chosen faults and print how the runs react."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("faults", nargs="*", help=f"default: refused, {', '.join(FAULTS)}")
    given = parser.parse_args()
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    lab = Lab(folder)
    try:
        online(lab)
        for answer in strangers(lab):
            print("a stranger at", answer, flush=True)
        if not given.faults or "refused" in given.faults:
            for answer in refused_nodes(lab):
                print(answer, flush=True)
        for name in [f for f in given.faults or FAULTS if f != "refused"]:
            print(f"{name}: {FAULTS[name].__doc__}", flush=True)
            try:
                run = FAULTS[name](lab, lab.new_run(name, *MORE.get(name, ())))
                print("   it ends with", closing(run), flush=True)
                for line in (folder / name / "metrics.jsonl").read_text().splitlines():
                    row = json.loads(line)
                    kept = ("absent", "unscored", "answered")
                    print(f"   round {row['round']}:", {k: row[k] for k in kept if k in row})
                print("  ", judged(lab, name), flush=True)
                online(lab)
            except Exception as problem:
                print(f"   {type(problem).__name__}: {problem}", flush=True)
    finally:
        lab.close()


if __name__ == "__main__":
    main()
