"""Check that a run has the same results if a Ray actor or node ends in the middle of a round.

    pip install 'protofl[ray]'
    python benchmarks/ray_recovery.py
    python benchmarks/ray_recovery.py --method fedsa --models htcnn8 --rounds 4

Each case is a run with two actors. Its record, summary and checkpoint files are compared, byte for
byte, with those of the backend `local`. Nodes are processes on this machine, made by Ray's own
``cluster_utils``: a head and one that is removed. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import protofl as pf

MIDDLE = 1
"""The round of the fault, which happens after the round's first client is done."""

Blow = Callable[[], str]
"""Ends an actor or a node; returns a description of it."""


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--method", default="fedsa")
    parser.add_argument("--models", default="htcnn8")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = vars(parser.parse_args())
    with tempfile.TemporaryDirectory() as folder:
        reference = run(arguments, Path(folder) / "local", {"backend": "local"})
        print(f"local: {reference[1]:.1f} s")
        for name, case in {"undisturbed": calm, "an actor is killed": actor_killed}.items():
            with case() as (options, blow):
                report(name, run(arguments, Path(folder) / name, options, blow), reference)
        for name, cpus in {"a node is removed": 2, "… and no other has room": 1}.items():
            with node_removed(cpus) as (options, blow):
                report(name, run(arguments, Path(folder) / name, options, blow), reference)


# --- faults -----------------------------------------------------------------------------------


@contextmanager
def calm() -> Iterator[tuple[dict[str, Any], Blow | None]]:
    """Provide no fault."""
    yield {}, None


@contextmanager
def actor_killed() -> Iterator[tuple[dict[str, Any], Blow]]:
    """Provide a fault that kills the process of one of the two actors."""

    def blow() -> str:
        process = next(actors())
        os.kill(process, signal.SIGKILL)
        return f"process {process}"

    yield {}, blow


@contextmanager
def node_removed(cpus: int) -> Iterator[tuple[dict[str, Any], Blow]]:
    """Provide a fault that removes the second of two nodes; the head has room for `cpus` actors."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus})
    try:
        node = cluster.add_node(num_cpus=1)
        options = {"backend.address": cluster.address, "backend.patience": 20}

        def blow() -> str:
            cluster.remove_node(node, allow_graceful=False)
            return f"node {node.node_ip_address}"

        yield {"set": options}, blow
    finally:
        cluster.shutdown()


def actors() -> Iterator[int]:
    """Yield the process IDs of this machine's actors."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"HostActor" in path.read_bytes():
                yield int(path.parent.name)
        except OSError:
            continue


# --- runs -------------------------------------------------------------------------------------


def run(
    arguments: dict[str, Any], out: Path, options: dict[str, Any], blow: Blow | None = None
) -> tuple[dict[str, Any], float, list[str]]:
    """Run once; return the results, the seconds, and messages about the fault."""
    state: dict[str, Any] = {"round": -1, "said": []}

    def progress(event: pf.events.Event) -> None:
        if isinstance(event, pf.events.RoundStarted):
            state["round"] = event.round
        elif isinstance(event, pf.events.Note):
            state["said"].append(event.text)
        elif isinstance(event, pf.events.ClientDone) and state["round"] == MIDDLE:
            if blow and "ended" not in state:
                state["ended"] = blow()

    options = {"backend": "ray", "workers": 2} | options
    if options["backend"] == "local":
        del options["workers"]
    start = time.perf_counter()
    result = pf.run(
        arguments["method"],
        models=arguments["models"],
        dataset=arguments["dataset"],
        clients=arguments["clients"],
        rounds=arguments["rounds"],
        out=out,
        progress=progress,
        **options,
    )
    seconds = time.perf_counter() - start
    if blow and "ended" not in state:
        raise SystemExit("nothing was ended; are there enough rounds?")
    kept = {p.name: p.read_bytes() for p in (result.folder / "checkpoint").glob("*.safetensors")}
    lines = [
        {k: v for k, v in line.items() if k not in ("seconds", "time")} for line in result.record
    ]
    left = {"record": lines, "summary": result.summary, "checkpoint": kept}
    said = [line for line in state["said"] if "replaced" in line or "worker" in line]
    return left, seconds, ["ended: " + state["ended"], *said] if blow else []


def report(
    name: str,
    outcome: tuple[dict[str, Any], float, list[str]],
    reference: tuple[dict[str, Any], float, list[str]],
) -> None:
    """Compare a case with the reference and print the result."""
    same = {what: outcome[0][what] == reference[0][what] for what in reference[0]}
    print(f"{name}: {outcome[1]:.1f} s, equal to local: {json.dumps(same)}")
    for line in outcome[2]:
        print(f"    {line}")


if __name__ == "__main__":
    main()
