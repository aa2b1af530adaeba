"""Flower's programs as child processes: where they are, their environment, start and end."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import protofl as pf

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Flower sends nothing to its authors."""

EXTRA = "pip install 'protofl[flower]', from a checkout: pip install . ./plugins/protofl_flower"
"""How to install Flower."""


def program(name: str) -> str:
    """Return the path of one of Flower's programs.

    Raises:
        UsageError: Flower is not installed in this environment.
    """
    scripts = sysconfig.get_path("scripts")
    result = shutil.which(name, path=os.pathsep.join([scripts, os.environ.get("PATH", "")]))
    if result is None:
        raise pf.UsageError(
            f"{name} is missing: deployment needs Flower", do=f"install it: {EXTRA}"
        )
    return result


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs; ``home`` is their folder for state."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    polling = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
    return {**os.environ, **QUIET, **polling, "PATH": path, "FLWR_HOME": str(home)}


_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def _end_with(parent: int) -> None:
    """Have the system terminate this process when its parent ends, even by SIGKILL (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


class Child:
    """A program in a process group of its own, with a file for what it prints.

    It ends with the process that started it, however that ends.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log, self._name = log, Path(command[0]).name
        parent = os.getpid()
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=lambda: _end_with(parent),
            )

    @property
    def code(self) -> int | None:
        """The exit code; None while the program runs."""
        return self._process.poll()

    def check(self) -> None:
        """Check that the program runs.

        Raises:
            RunFailure: It has ended.
        """
        if self.code is not None:
            raise pf.RunFailure(
                f"{self._name} ended with exit code {self.code}",
                last_line(self.log),
                f"see {self.log}",
            )

    def stop(self, seconds: float = 10.0) -> None:
        """End the program and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def last_line(log: Path) -> str:
    """Return the last line of a log that says something."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def wait_for_port(port: int, child: Child, seconds: float = 60) -> None:
    """Wait until a program listens.

    Raises:
        RunFailure: It ended, or does not listen in time.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        child.check()
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    raise pf.RunFailure(f"no answer at port {port} after {seconds:g} s", do=f"see {child.log}")


def call(arguments: Sequence[str], home: Path) -> dict[str, Any]:
    """Call ``flwr`` and return the JSON that it prints.

    Raises:
        RunFailure: The call failed.
    """
    command = [program("flwr"), *arguments, "--format", "json"]
    process = subprocess.run(
        command, env=environment(home), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    try:
        values = json.loads(process.stdout[process.stdout.index("{") :])
    except ValueError:
        values = {}
    if process.returncode or not values.get("success", True) or not values:
        said = str(values.get("error-message") or process.stderr or process.stdout)
        raise pf.RunFailure(f"flwr {arguments[0]} failed: {' '.join(said.split())[-300:]}")
    return dict(values)
