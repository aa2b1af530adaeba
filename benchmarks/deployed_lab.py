"""A federation of Flower nodes on this machine: its programs, processes and runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from protofl_flower.deployment import programs
from protofl_flower.deployment.rehearsal import make_nodes
from protofl_flower.deployment.server_process import make_federation

PROTOFL = [sys.executable, "-c", "from protofl_cli.start import main; main()"]
RUN = "--models htcnn8 --dataset digits --clients 4 --batch-size 64 --local-epochs 10 --device cpu"
RUN += " --feature-dim 16 --no-dry-run"
ROUNDS = 4
ONE = {"OMP_NUM_THREADS": "1"}
SILENCE = 600
"""Seconds without a new line after which a program is given up.

There is no limit for all of its work, because the machine may be busy.
"""
TRAINING = 0.5
"""CPU seconds that a node's host uses for a message that asks for training; evaluations use 0.1."""


class Program:
    """A protofl command that writes its output to a file."""

    def __init__(self, folder: Path, name: str, *arguments: object) -> None:
        self.log = folder / f"{name}.txt"
        self._start = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as file:
            self.process = subprocess.Popen(
                [*PROTOFL, *map(str, arguments)],
                stdout=file,
                stderr=file,
                env=os.environ | ONE,
                cwd=folder,
            )

    @property
    def said(self) -> str:
        """The program's output so far."""
        return self.log.read_bytes()[self._start :].decode(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait until the output contains `text`.

        Raises:
            RuntimeError: The program has ended, or says nothing any more.
        """
        self._wait(lambda: text in self.said, f"never said {text!r}")

    def wait_for_end(self) -> int:
        """Wait until the program ends; return its exit code.

        Raises:
            RuntimeError: It says nothing any more. It is killed.
        """
        try:
            self._wait(lambda: self.process.poll() is not None, "does not end")
        except RuntimeError:
            self.process.kill()
            raise
        return self.process.wait()

    def _wait(self, done: Callable[[], bool], problem: str) -> None:
        said, since = self.said, time.monotonic()
        while not done():
            if self.said != said:
                said, since = self.said, time.monotonic()
            # What it said last may have been written after `done` looked.
            over = self.process.poll() is not None or time.monotonic() - since > SILENCE
            if over and not done():
                raise RuntimeError(f"{self.log.name} {problem}: {self.said[-500:]}")
            time.sleep(0.2)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the program with a signal."""
        self.process.send_signal(how)
        self.process.wait(SILENCE)


def processes(mark: str, home: Path) -> list[int]:
    """Return the IDs of processes that work for a folder and have `mark` in their command."""
    result = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            place = (path / "environ").read_bytes().decode(errors="replace")
            here = Path(os.readlink(path / "cwd")).is_relative_to(home)
            named = str(home) in command or f"FLWR_HOME={home}/" in place
            if mark in command and (named or here):
                result.append(int(path.name))
    return result


def kill(mark: str, home: Path, how: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal to the processes of a folder; return the number of processes."""
    pids = processes(mark, home)
    for number in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, how)
    return len(pids)


def cpu_seconds(mark: str, home: Path) -> float:
    """Return the CPU time that the processes of a folder have used."""
    ticks = 0
    for number in processes(mark, home):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(stat[11]) + int(stat[12])  # user, system
    return ticks / os.sysconf("SC_CLK_TCK")


class Lab:
    """The federation, its server and its nodes."""

    def __init__(self, folder: Path, nodes: int = 2, clients: int = 4) -> None:
        self.folder, self.lab = folder, folder / "federation"
        if not self.lab.exists():
            port = programs.free_port()
            made = make_federation(self.lab, f"127.0.0.1:{port}", port)
            data = folder / "data"
            made, folders = make_nodes(made, folder, nodes, clients, data)
            for node in folders:
                text = (node / "node.toml").read_text()
                (node / "node.toml").write_text(f'server = "{made.public}"\n' + text)
        self.nodes = [folder / f"node-{number}" for number in range(nodes)]
        self.server = self.start_server()
        self.starts = [self.start_node(number) for number in range(nodes)]

    def start_server(self) -> Program:
        """Start the server and wait until it is ready."""
        server = Program(self.folder, "server", "deploy", "server", self.lab)
        server.wait_for("server at")
        return server

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
        arguments = [
            "fedproto",
            *RUN.split(),
            "--rounds",
            ROUNDS,
            "--data-dir",
            self.folder / "data",
        ]
        return self.run(name, *arguments, *more)

    def in_training(self, run: Program) -> None:
        """Wait until the first node trains in the second round.

        Training differs from an evaluation by the CPU time of its host, which no load changes.

        Raises:
            RuntimeError: The run has ended.
        """
        run.wait_for("round 1/")
        home, host = self.nodes[0], "protofl_flower.node.host"
        before, used = list[int](), 0.0
        while not before or cpu_seconds(host, home) - used < TRAINING:
            if run.process.poll() is not None:
                raise RuntimeError(f"{run.log.name} ended before the node trained: {run.said}")
            now = processes("flwr-clientapp", home)
            if now != before:
                before, used = now, cpu_seconds(host, home)
            time.sleep(0.05)

    def close(self) -> None:
        """End all programs."""
        for program in (*self.starts, self.server):
            with contextlib.suppress(Exception):
                program.end()


def online(lab: Lab, tries: int = 60) -> None:
    """Wait until all nodes are online.

    A try takes the longer the busier the machine is, as the start of a node does.

    Raises:
        RuntimeError: They are not, after so many tries.
    """
    for _ in range(tries):
        status = Program(lab.folder, "status", "deploy", "status", lab.lab)
        status.process.wait()
        if status.said.count("online") >= len(lab.nodes) and "offline" not in status.said:
            return
        time.sleep(2)
    raise RuntimeError(f"the nodes are not online: {status.said}")
