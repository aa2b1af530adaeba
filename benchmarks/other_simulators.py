"""Compare the speed of protofl with pfl-research and Flower on plain FedAvg.

    python benchmarks/other_simulators.py FOLDER --data DIR

Creates a virtual environment for each of the two in FOLDER and installs them there. torch is that
of the Python that runs this script, so that all have the same arithmetic. The script then runs all
three in turn: the 4-layer CNN without padding, 20 clients × 300 MNIST images, batches of 10, SGD
0.01, and 2,000 images evaluated every round. Each has two processes: protofl's workers,
`torchrun`'s processes, Ray's actors. Seconds per round exclude the first round and the time until
it begins. A simulator that can't be installed is skipped with a line that gives the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from bench import machine, measure
from bench_cases import choose, load, write_subset

from protofl.federation.plan import Plan
from protofl.system.files.atomic import default_data_dir
from protofl.system.files.home import expand_user

HERE = Path(__file__).parent
NEEDS = {"pfl": "pfl==0.6.0", "flower": "flwr[simulation]>=1.41,<1.42"}


def main() -> None:
    """Install the simulators, run them in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="for the virtual environments")
    parser.add_argument("--data", type=Path, help="a folder with mnist….npz")
    parser.add_argument("--repeats", type=int, default=5, help="starts of each")
    parser.add_argument("--rounds", type=int, default=4, help="measured rounds of each start")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    pythons = {"protofl": Path(sys.executable)}
    for name, package in NEEDS.items():
        python = installed(arguments.folder / name, package)
        if python is not None:
            pythons[name] = python
    runs: dict[str, list[dict[str, object]]] = {name: [] for name in pythons}
    with tempfile.TemporaryDirectory() as folder:
        task = write_task(arguments, Path(folder))
        for repeat in range(arguments.repeats):
            for name in list(pythons)[:: -1 if repeat % 2 else 1]:
                print(f"start {repeat + 1} of {arguments.repeats}: {name}", file=sys.stderr)
                if name == "protofl":
                    measured = run_protofl(arguments)
                else:
                    measured = run_other(name, pythons[name], task, arguments, Path(folder))
                runs[name].append(measured)
    result = {**machine(), "rounds": arguments.rounds, "runs": runs}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(runs))


def installed(folder: Path, package: str) -> Path | None:
    """Return the Python of an environment with a package; None if installation fails."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        output = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        # Packages of protofl's environment (torch, numpy) are importable too, with lower priority.
        shared = sysconfig.get_path("purelib")
        line = f"import site; site.addsitedir({shared!r})\n"
        Path(output.stdout.strip(), "shared.pth").write_text(line)
    installation = subprocess.run(
        [python, "-m", "pip", "install", "-q", package], capture_output=True, text=True
    )
    if installation.returncode == 0:
        return python
    reason = (installation.stderr.strip().splitlines() or ["no reason given"])[-1]
    print(f"{package} can't be installed here and is left out: {reason}", file=sys.stderr)
    return None


def write_task(arguments: argparse.Namespace, folder: Path) -> Path:
    """Write the images of protofl's case as normalised floats, client by client."""
    images = load("mnist", arguments.data, expand_user(default_data_dir()))
    write_subset(images, arguments.clients, arguments.samples, folder / "mnist.npz")
    plan = Plan.make(
        {
            "method": "fedavg", "models": "cnn4", "dataset": f"npz:{folder / 'mnist.npz'}",
            "partition": "iid", "clients": arguments.clients, "data_dir": folder / "cache",
        }
    )  # fmt: skip
    split = plan.split(0)
    parts = [plan.samples(split.train(i), False) for i in range(arguments.clients)]
    tests = [plan.samples(split.test(i), False) for i in range(arguments.clients)]
    path = folder / "task.npz"
    np.savez(
        path,
        x=np.stack([client_samples.inputs().numpy() for client_samples in parts]),
        y=np.stack([client_samples.y.numpy() for client_samples in parts]),
        x_test=np.concatenate([test.inputs().numpy() for test in tests]),
        y_test=np.concatenate([test.y.numpy() for test in tests]),
        batch_size=plan.settings.batch_size,
        lr=plan.settings.lr,
    )
    return path


def run_protofl(arguments: argparse.Namespace) -> dict[str, object]:
    """Run ``bench.py mnist-fedavg`` once and return the measurements."""
    (case,) = choose(["mnist-fedavg"])
    case = replace(case, clients=arguments.clients, samples=arguments.samples)
    options = {"backend": "process", "workers": arguments.workers}
    row = measure(case, arguments.data, repeats=arguments.rounds, options=options)
    seconds = [timing["total"] for timing in row["measures"]["protofl"]]
    return {"seconds": seconds, "start": row["start"]["protofl"]}


def run_other(
    name: str, python: Path, task: Path, arguments: argparse.Namespace, folder: Path
) -> dict[str, object]:
    """Run pfl or Flower once; return seconds of each round and the time until the first."""
    out = folder / f"{name}.json"
    rounds = arguments.rounds + 1
    file = str(HERE / f"simulator_{'pfl' if name == 'pfl' else 'flower'}.py")
    command = [str(python)]
    if name == "pfl":
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(arguments.workers)]
    begin = time.time()
    process = subprocess.run(
        [*command, file, str(task), str(rounds), str(out)],
        env={
            **os.environ,
            **({"OMP_NUM_THREADS": "1"} if name == "pfl" else {}),  # as torchrun would set it
            "PYTHONPATH": str(HERE),
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        },
        capture_output=True,
        text=True,
    )  # fmt: skip
    if not out.exists():
        raise SystemExit(f"{name} failed:\n{process.stdout[-2000:]}\n{process.stderr[-4000:]}")
    measured = json.loads(out.read_text())
    out.unlink()
    if measured["accuracy"] < 2 / 10:  # exceptions in a simulator's clients may be hidden
        raise SystemExit(f"{name} has learned nothing:\n{process.stderr[-4000:]}")
    times = measured["times"]
    seconds = [b - a for a, b in pairwise(times)]
    return {
        "seconds": seconds[1:],
        "first": seconds[0],
        "start": times[0] - begin,
        "accuracy": measured["accuracy"],
    }


def table(runs: dict[str, list[dict[str, object]]]) -> str:
    """Return a Markdown table of seconds per round: the median of each start, then over starts."""
    lines = [
        "| simulator | seconds a round: median (min … max over starts) | protofl is | start, s |",
        "|---|---|---|---|",
    ]
    medians = {
        name: [statistics.median(run["seconds"]) for run in starts]  # type: ignore[type-var]
        for name, starts in runs.items()
    }
    ours = statistics.median(medians["protofl"])
    for name, values in medians.items():
        middle = statistics.median(values)
        ratio = "" if name == "protofl" else f"{middle / ours:.2f}× as fast"
        start = statistics.median(float(str(run["start"])) for run in runs[name])
        lines.append(
            f"| {name} | {middle:.2f} ({min(values):.2f} … {max(values):.2f}) "
            f"| {ratio} | {start:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
