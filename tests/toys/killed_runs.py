"""Kill a run at random moments, resume it, and compare it with a run that was not killed.

Runs are killed by SIGKILL, SIGTERM or SIGINT, workers by SIGKILL. A killed run is continued by
``--resume``, or started again if it had no folder yet, until it is done. Then its folder must equal
the folder of the run without kills, byte for byte except for times. Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from width_toys import nets_of

MAIN = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
PATIENCE = 300
"""A run that has not ended after this many seconds counts as hanging."""
PARTS_OF_ONE_NET = ("heterofl", "fedrolex")
COMMAND = (sys.executable, "-c", "import sys; from protofl_cli.start import main; main()")


@dataclass
class Chain:
    """A run with its kills, until it is done.

    Attributes:
        kills: {victim and signal: count}.
        wrong: Problems found.
    """

    kills: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


# --- a run that is killed -------------------------------------------------------------------------


@dataclass
class Place:
    """Folders and commands of a method's runs; ``words`` are further options."""

    folder: Path
    method: str
    backend: str
    rounds: int
    words: tuple[str, ...] = ()

    @property
    def whole(self) -> Path:
        """The folder of the run without kills."""
        return self.folder / self.method / "whole"

    @property
    def out(self) -> Path:
        """The folder of the run that is killed."""
        return self.folder / self.method / self.backend

    def command(self, out: Path, backend: str) -> list[str]:
        """Return the command that resumes a run, or starts it if there is nothing to resume."""
        hosts = ["--backend", backend, *(["--workers", "2"] if backend == "process" else [])]
        if (out / "config.json").exists():
            return [*COMMAND, "run", "--resume", "--out", str(out), *hosts]
        data = self.folder / "tiny.npz"
        if not data.exists():
            make_data(data)
        models = nets_of(self.method, "htcnn8", "cnn4", "depths:cnn4@3,1")
        if self.method in PARTS_OF_ONE_NET:
            models = "widths:cnn4@1,0.5"
        if self.method == "fedbn":
            models = "resnet10"  # it needs BatchNorm
        options = {
            "models": models, "dataset": f"npz:{data}", "partition": "iid", "clients": 4,
            "rounds": self.rounds, "participation": 0.75, "batch_size": 10, "feature_dim": 16,
            "public": 20, "seed": 0, "device": "cpu", "data_dir": self.folder / "cache",
        }  # fmt: skip
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        return [*COMMAND, "run", self.method, *words, *self.words, "--out", str(out), *hosts]


def make_data(path: Path) -> None:
    """Write eighty 8×8 images in four classes; each class has a different bright quarter."""
    draw = np.random.default_rng(0)
    y = np.arange(80) % 4
    x = draw.integers(0, 120, (80, 8, 8))
    for c in range(4):
        row, column = 4 * (c // 2), 4 * (c % 2)
        x[y == c, row : row + 4, column : column + 4] += 100
    np.savez(path, x_train=x.astype(np.uint8), y_train=y)


def killed(place: Place, count: int, draw: random.Random) -> Chain:
    """Kill a run `count` times, then finish it and compare it with the run without kills."""
    chain = Chain()
    shutil.rmtree(place.out, ignore_errors=True)
    if not (place.whole / "summary.json").exists():
        shutil.rmtree(place.whole, ignore_errors=True)
        with started(place.command(place.whole, "local"), place.folder / "log") as run:
            if code := run.wait():
                chain.wrong.append(f"it fails where nothing befalls it: exit code {code}")
                return chain
    while not chain.wrong:
        left = max(0, count - sum(chain.kills.values()))
        log = place.folder / "log"
        with started(place.command(place.out, place.backend), log) as run:
            if left:
                befall(run, place, chain, draw)
            code = ended(run, chain, log)
        if code == 0 and not left:
            break
        if code == 0:  # the run ended before all kills were done: start again
            chain.wrong += differences(place.whole, place.out)
            shutil.rmtree(place.out)
    else:
        return chain
    chain.wrong += differences(place.whole, place.out)
    shutil.rmtree(place.out if not chain.wrong else place.folder / "none", ignore_errors=True)
    return chain


@contextlib.contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run in its own session; kill the run on exit."""
    with log.open("wb") as file:
        run = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        yield run
    finally:
        run.kill()
        run.wait()


def befall(run: subprocess.Popen[bytes], place: Place, chain: Chain, draw: random.Random) -> None:
    """Kill the run, or one of its workers, at a random moment."""
    further = draw.choice((0, 1, 1, 1, 2, 3))
    if not further:
        time.sleep(draw.uniform(0, 6))  # during the start, before its first round is saved
    saved = rounds_of(place.out)
    while run.poll() is None and further and rounds_of(place.out) < saved + further:
        time.sleep(0.002)
    time.sleep(draw.uniform(0, 0.4))
    workers = processes(parent=run.pid) if place.backend == "process" else []
    if workers and draw.random() < 0.7:
        kill(draw.choice(workers), signal.SIGKILL, "a worker", chain)
        if draw.random() < 0.3:
            return  # the run replaces the worker
        time.sleep(draw.uniform(0, 3))  # while the run recovers
    if run.poll() is None:
        kill(run.pid, draw.choice(MAIN), "the run", chain)


def kill(process: int, by: signal.Signals, whom: str, chain: Chain) -> None:
    """Kill a process and record the kill."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, by)
        chain.kills[f"{whom} by {by.name}"] += 1


def rounds_of(out: Path) -> int:
    """Return the number of rounds in a run's record."""
    try:
        return (out / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def ended(run: subprocess.Popen[bytes], chain: Chain, log: Path) -> int:
    """Wait until a run and its workers have ended; return the exit code."""
    try:
        code = run.wait(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        chain.wrong.append(f"it hangs behind {sum(chain.kills.values())} kills")
        return 1
    until = time.monotonic() + 20
    while stray := processes(session=run.pid):
        if time.monotonic() > until:
            chain.wrong.append(f"what it started outlives the run: {stray}")
            break
        time.sleep(0.02)
    text = log.read_text(errors="replace")
    # A signal may come while the interpreter cleans up after the run.
    text = re.sub(r"Exception ignored in:.*?KeyboardInterrupt: *\n", "", text, flags=re.DOTALL)
    expected = {0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 130, 143}
    if "Traceback" in text or "internal error" in text or code not in expected:
        chain.wrong.append(f"exit code {code}: {text[-500:]}")
    return code


def processes(*, parent: int | None = None, session: int | None = None) -> list[int]:
    """Return the children of a process, or all processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            name, rest = stat.read_text().rsplit(")", 1)
            state, above, _, group = rest.split()[:4]
            if state != "Z" and (int(above) == parent or int(group) == session):
                found.append(int(name.split()[0]))
    return sorted(found)


# --- comparison of folders ------------------------------------------------------------------------


def differences(one: Path, two: Path) -> list[str]:
    """Describe the files that differ between two folders."""
    first, second = contents(one), contents(two)
    names = sorted(first.keys() | second.keys())
    return [f"{name} differs" for name in names if first.get(name) != second.get(name)]


def contents(folder: Path) -> dict[str, Any]:
    """Return {path: content without times} for a folder and its subfolders."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            found[name] = "folder"
        elif name == "metrics.jsonl":
            found[name] = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.suffix == ".json":
            found[name] = timeless(json.loads(path.read_text()))
        else:
            found[name] = path.read_bytes()
    return found


TIMES = ("seconds", "time", "crc32", "record")
"""Keys that differ between equal runs: times, and checksums of lines that hold times."""


def timeless(value: Any) -> Any:
    """Return a JSON value without times."""
    if not isinstance(value, dict):
        return value
    kept = {key: timeless(v) for key, v in value.items() if not re.match(r"seconds", key)}
    return {key: v for key, v in kept.items() if key not in TIMES}
