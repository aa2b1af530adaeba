"""Measure memory and seconds per round by the number of clients; print Markdown tables.

    python benchmarks/scale.py --data DIR
    python benchmarks/scale.py --data DIR --case memory-limit --rounds 40

DIR holds ``mnist-12k.npz`` and ``cifar10-12k.npz`` (balanced subsets of 12,000 images) and
``fashion-mnist.npz`` (70,000 images) as `npz:` data sets. Every run has its own process and two
workers. Memory is the sum of the peak resident memory of these three processes. This is an upper
bound: shared memory (torch's libraries, the mapped images) counts three times. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MNIST, FASHION, CIFAR = "mnist-12k.npz", "fashion-mnist.npz", "cifar10-12k.npz"


@dataclass
class Run:
    """One row of a table."""

    method: str
    models: str
    data: str
    clients: int
    participation: float
    rounds: int
    store: str = "memory"
    evaluated: str = "participants"
    options: dict[str, Any] = field(default_factory=dict)


def hundredth() -> Iterator[Run]:
    """One hundredth of the clients in each round, as in a usual run."""
    for clients in (20, 100, 1_000, 10_000):
        for method in ("fedavg", "fedproto"):
            # MNIST's 12,000 images can't give 10,000 clients two each.
            data = FASHION if clients > 5_000 else MNIST
            yield Run(method, "cnn4", data, clients, 0.01, 20, options={"partition": "iid"})


def same_work() -> Iterator[Run]:
    """Ten participants with six images each, for any number of clients."""
    sizes = {"partition.shard_size": 2, "partition.shards_per_client": 3}
    six = {"partition": "shards", "set": sizes}
    for clients in (20, 100, 1_000, 10_000):
        for store in ("memory", "disk"):
            share = 10 / clients
            yield Run("fedproto", "cnn4", FASHION, clients, share, 20, store, options=six)


def memory_limit() -> Iterator[Run]:
    """200 clients of eight architectures up to ResNet152, on disk."""
    yield Run("fedproto", "htfe8", CIFAR, 200, 0.05, 40, "disk")


CASES = {"hundredth": hundredth, "same-work": same_work, "memory-limit": memory_limit}


# --- one run ----------------------------------------------------------------------------------


def peak(process: int) -> int:
    """Return the peak resident memory of a process in bytes; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def children(process: int) -> list[int]:
    """Return the child processes of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = path.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == process:
            found.append(int(path.parent.name))
    return found


class Watch:
    """A progress callback that measures a run."""

    def __init__(self, started: float) -> None:
        self._started = started
        self.begin = 0.0
        self.base = self.peak = self.parked = 0
        self.trained: set[int] = set()
        self._folder = Path()

    def __call__(self, event: object) -> None:
        """Handle an event of `protofl.run`."""
        from protofl.federation import events

        if isinstance(event, events.FolderMade):
            self._folder = event.folder.path
        elif isinstance(event, events.RoundStarted) and not self.begin:
            self.begin = time.time() - self._started
            self.base = self._resident()
        elif isinstance(event, events.ClientDone) and event.stage == "train":
            self.trained.add(event.client)
        elif isinstance(event, events.RoundDone):
            self.peak = self._resident()
            files = (self._folder / "parked").rglob("*.safetensors")
            self.parked = sum(file.stat().st_size for file in files)

    def _resident(self) -> int:
        own = os.getpid()
        return sum(peak(process) for process in (own, *children(own)))


def one(run: Run, data: Path, started: float, checkpoints: int) -> dict[str, Any]:
    """Run once and return the measurements."""
    import protofl as pf

    watch = Watch(started)
    with tempfile.TemporaryDirectory(prefix="protofl-scale-") as folder:
        result = pf.run(
            run.method,
            models=run.models,
            dataset=f"npz:{data / run.data}",
            clients=run.clients,
            participation=run.participation,
            rounds=run.rounds,
            client_store=run.store,
            eval_clients=run.evaluated,
            checkpoint_every=checkpoints,
            backend="process",
            workers=2,
            seed=0,
            out=Path(folder) / "run",
            progress=watch,
            **run.options,
        )
    make = pf.backends.Plan.make
    plan = make({"method": run.method, "models": run.models, "clients": run.clients,
                         "dataset": f"npz:{data / run.data}", "backend": "local"})  # fmt: skip
    numbers = {  # client i is the first with architecture i
        a.name: sum(p.numel() for p in plan.initial_model(i, 0).parameters())
        for i, a in enumerate(plan.info.architectures)
    }
    owners = (plan.info.architecture_of(c).name for c in range(run.clients))
    return {
        "participants": result.record[0]["participants"],
        "trained": len(watch.trained),
        "weights": 4 * sum(numbers[name] for name in owners),
        "begin": watch.begin,
        "base": watch.base,
        "peak": watch.peak,
        "parked": watch.parked,
        "seconds": [row["seconds"]["total"] for row in result.record],
        "accuracy": result.summary["best_test_accuracy"],
    }


# --- all runs ---------------------------------------------------------------------------------


def size(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


HEAD = (
    "| clients | method | store | a round | rounds | trained | weights of all | on disk | peak "
    "| of which at the start | first round after | seconds a round (least … most) |\n"
    "|" + "---|" * 12
)


def line(run: Run, found: dict[str, Any]) -> str:
    """Return a row of the table."""
    # Skip round 0: the data are mapped then, and the server has no knowledge yet.
    seconds = found["seconds"][1:] or found["seconds"]
    parts = [
        f"{run.clients:,}", f"`{run.method}`, `{run.models}`", run.store, found["participants"],
        run.rounds, f"{found['trained']:,}", size(found["weights"]),
        size(found["parked"]) if found["parked"] else "–", size(found["peak"]),
        size(found["base"]), f"{found['begin']:.1f} s",
        f"{statistics.median(seconds):.2f} ({min(seconds):.2f} … {max(seconds):.2f})",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, parts)) + " |"


def main() -> None:
    """Run the chosen cases and print a table for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of the npz files")
    parser.add_argument("--case", choices=CASES, action="append", help="only this one")
    parser.add_argument("--clients", type=int, action="append", help="only this number")
    parser.add_argument("--rounds", type=int, help="in place of each run's own number")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="0 for never")
    parser.add_argument("--json", type=Path, help="write all figures to this file too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        values = json.loads(given.one)
        found = one(Run(**values["run"]), given.data, values["started"], given.checkpoint_every)
        print(json.dumps(found))
        return
    everything = []
    for name in given.case or CASES:
        runs = [r for r in CASES[name]() if not given.clients or r.clients in given.clients]
        print(f"\n{(CASES[name].__doc__ or '').strip()}\n\n{HEAD}", flush=True)
        for run in runs:
            run.rounds = given.rounds or run.rounds
            found = in_a_process(run, given)
            everything.append({"case": name, "run": asdict(run), **found})
            print(line(run, found), flush=True)
    if given.json:
        given.json.write_text(json.dumps(everything, indent=1) + "\n")


def in_a_process(run: Run, given: argparse.Namespace) -> dict[str, Any]:
    """Run in a new process, because the peak memory of a process never decreases."""
    text = json.dumps({"run": asdict(run), "started": time.time()})
    command = [sys.executable, __file__, "--data", str(given.data), "--one", text]
    command += ["--checkpoint-every", str(given.checkpoint_every)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
