"""Measure time and memory of a deployed run (Flower, on this machine) and of a simulated run.

    python benchmarks/deployed.py runs/deployed --nodes 2 4
    python benchmarks/deployed.py runs/large --nodes 2 --rounds 10 --large    # 40 MB each way

Prints the seconds per round, the time to import flwr, the lifetime of a ClientApp (the rest of a
message's time is polling), and the peak resident memory of each program. The same clients train in
two simulated runs: in the run's own process, and in worker processes. Messages and bytes are
counted by
plugins/protofl_flower/tests/server/test_faults.py. Needs protofl[flower]; Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from deployed_lab import RUN, Lab, Program, online, processes

SMALL = RUN.replace("--local-epochs 10", "--local-epochs 2")
LARGE = "--models torchvision:resnet18 --dataset digits --subset 0.1 --clients 4 --batch-size 16"
LARGE += " --local-epochs 1 --device cpu --feature-dim 512 --no-dry-run"
SUPERLINK, CLIENTAPP, HOST = "flower-superlink", "flwr-clientapp", "protofl_flower.node.host"
PROGRAMS = {SUPERLINK: "SuperLink", CLIENTAPP: "ClientApp", HOST: "resident host"}
PROGRAMS |= {"flower-supernode": "SuperNode", "backends.worker": "process worker"}


class Memory(threading.Thread):
    """Samples the resident memory (MB) of the programs that work for a folder.

    Attributes:
        largest: {program: largest value}.
        over_time: Memory of the SuperLink, one value per sample.
        torch: True if a ClientApp has mapped torch.
        lives: {process ID of a ClientApp: times when it was first and last seen}.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder, self._ended = folder, threading.Event()
        self.largest, self.torch = defaultdict[str, float](float), False
        self.over_time: list[float] = []
        self.lives: dict[int, tuple[float, float]] = {}

    def run(self) -> None:
        """Sample until `end` is called."""
        while not self._ended.wait(0.25):
            for mark, name in PROGRAMS.items():
                sizes = [*map(resident, processes(mark, self._folder))]
                self.largest[name] = max([self.largest[name], *sizes])
                if mark == SUPERLINK and sizes:
                    self.over_time.append(max(sizes))
            now = time.monotonic()
            for number in processes(CLIENTAPP, self._folder):
                self.lives[number] = self.lives.get(number, (now,))[0], now
                with contextlib.suppress(OSError):
                    self.torch |= "libtorch" in Path(f"/proc/{number}/maps").read_text()

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self.join()


def resident(number: int) -> float:
    """Return the resident memory of a process in MB; 0 if it has ended."""
    with contextlib.suppress(OSError, IndexError):
        text = Path(f"/proc/{number}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1000
    return 0.0


def seconds_of(folder: Path) -> tuple[float, dict[str, float]]:
    """Return the median seconds of a round, in total and by stage, without the first round."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][1:]
    parts = {
        name: median(row["seconds"].get(name, 0) for row in rows) for name in rows[0]["seconds"]
    }
    return parts.pop("total"), parts


def measure(folder: Path, nodes: int, rounds: int, method: str, flags: str) -> None:
    """Run the same federation in simulation and on nodes, and print the measurements."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = [*flags.split(), "--rounds", rounds, "--data-dir", folder / "data"]
    for backend in ("local", "process"):
        more = ["--workers", nodes] if backend == "process" else []
        watch = Memory(folder)
        watch.start()
        out = ["--backend", backend, "--out", folder / backend]
        run = Program(folder, f"run-{backend}", "run", method, *options, *more, *out)
        print(backend, "exit code", run.wait_for_end(), flush=True)
        watch.end()
        print("  ", seconds_of(folder / backend), dict(watch.largest), flush=True)
    lab = Lab(folder, nodes)
    try:
        online(lab)
        watch = Memory(folder)
        watch.start()
        out = ["--federation", lab.lab, "--out", folder / "deployed"]
        run = Program(folder, "run", "deploy", "run", method, *options, *out)
        print("deployed: exit code", run.wait_for_end())
        watch.end()
        print("  ", seconds_of(folder / "deployed"), dict(watch.largest), flush=True)
        print("   a ClientApp maps torch:", watch.torch)
        lives = [end - begin for begin, end in watch.lives.values()]
        print(f"   seconds of a ClientApp: {median(lives):.1f}, of {len(lives)}")
        looks = watch.over_time
        tenths = [looks[len(looks) * tenth // 10] for tenth in range(10)] + looks[-1:]
        print("   the SuperLink over time, MB:", [round(each) for each in tenths], flush=True)
    finally:
        lab.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--large", action="store_true", help="FedAvg of ResNet-18, 45 MB each way")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import flwr.clientapp, flwr.app"], check=True)
    print(f"import of flwr in a new process: {time.perf_counter() - begin:.1f} s")
    for nodes in arguments.nodes:
        print(f"{nodes} nodes")
        method, flags = ("fedavg", LARGE) if arguments.large else ("fedproto", SMALL)
        folder = arguments.folder.absolute() / f"{nodes}-nodes"
        measure(folder, nodes, arguments.rounds, method, flags)


if __name__ == "__main__":
    main()
