"""Measure the server's cost of an upload: bytes, and time to read, check and aggregate it.

    python benchmarks/aggregation.py

Two clients train on random images; copies of their uploads stand for the uploads of many clients.
Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import protofl as pf
from protofl.federation.jobs.jobs import Job, Reply
from protofl.federation.round.federation import Federation
from protofl.hooks.views.server import Server


def noise(classes: int) -> type:
    """Return a data set class of random 28×28 images, 40 of each class."""

    class Noise:
        """Random images."""

        @pf.hookimpl
        def cache_key(self) -> str:
            """Return a cache key for this number of classes."""
            return f"noise-{classes}"

        @pf.hookimpl
        def decode(self) -> pf.datasets.Dataset:
            """Return the images and labels."""
            generator = torch.Generator().manual_seed(0)
            shape = (40 * classes, 1, 28, 28)
            x = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
            y = torch.arange(len(x)) % classes
            return pf.datasets.Dataset(x, y, len(x), [str(c) for c in range(classes)])

    return Noise


class OneHost:
    """A pool of one host that keeps the bytes of all uploads and downloads."""

    def __init__(self, plan: pf.backends.Plan) -> None:
        self.host = pf.backends.Host(plan)
        self.uploads: list[bytes] = []
        self.downloads: list[bytes] = []

    def run(self, jobs: list[Job]) -> Any:  # noqa: ANN401 - a generator
        """Run the jobs and yield each with its reply."""
        for job in jobs:
            reply = self.host.handle(job)
            if job.op == "train":
                self.uploads.append(reply.blob)
                self.downloads.append(job.blob)
            yield job, reply

    def broadcast(self, job: Job) -> None:
        """Run a job on the host."""
        self.host.handle(job)

    def close(self) -> None:
        """Do nothing."""


def measure(method: str, classes: int, count: int, repeats: int, data: Path) -> str:
    """Return one row of the table."""
    options = {
        "method": method,
        "models": "cnn4",
        "dataset": "noise",
        "partition": "iid",
        "clients": 2,
        "rounds": 2,
        "batch_size": 32,
        "backend": "local",
        "device": "cpu",
        "data_dir": data,
        "dry_run": False,
    }
    plan = pf.backends.Plan.make(options, {("dataset", "noise"): noise(classes)})
    pool = OneHost(plan)
    federation = Federation(plan, pool)
    federation.start_trial(0)
    for number in range(2):
        federation.round(number)
    # Copies, because the replies of different clients do not share memory either.
    blobs = [bytes(bytearray(pool.uploads[i % 2])) for i in range(count)]
    torch.set_num_threads(plan.settings.server_threads)
    view = Server(federation.server, plan.composition.main)
    read, aggregated = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        uploads = {}
        for client, blob in enumerate(blobs):
            uploads[client] = pf.Payload.from_bytes(Reply(blob=blob).blob)
            assert uploads[client].nonfinite() is None
        middle = time.perf_counter()
        plan.composition.call("server_aggregate", server=view, uploads=uploads)
        read.append(middle - start)
        aggregated.append(time.perf_counter() - middle)
        del uploads
    upload, download = max(map(len, pool.uploads)), max(map(len, pool.downloads))
    milliseconds = [1e3 * statistics.median(seconds) / count for seconds in (read, aggregated)]
    return (
        f"| {method} | {classes} | {plan.info.feature_dim} | {upload:,} | {download:,} | {count:,} "
        f"| {milliseconds[0]:.3f} | {milliseconds[1]:.3f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print(
        "| method | C | K | upload, bytes | download, bytes | uploads | read and check, ms each ",
        end="",
    )
    print("| aggregate, ms each |")
    print("|---|---|---|---|---|---|---|---|")
    cases = [("fedproto", 10, 100), ("fedproto", 10, 2000), ("fedproto", 100, 2000)]
    cases += [("fedavg", 10, 100), ("fedavg", 10, 400)]
    with tempfile.TemporaryDirectory() as folder:
        for method, classes, count in cases:
            print(measure(method, classes, count, repeats, Path(folder)), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"\npeak of resident memory: {peak / 1e6:.2f} GB (in KiB on Linux: {peak:,})")


if __name__ == "__main__":
    main()
