"""A deployed run on this machine alone, and its comparison with a simulated one."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import protofl as pf
from protofl_flower.deployment import programs
from protofl_flower.deployment.federation_file import Federation, NodeEntry
from protofl_flower.deployment.node_process import make_node, running_node
from protofl_flower.deployment.server_process import make_federation, running_server, submit

ROUNDS = "rounds"
"""The schedule whose runs can be compared."""

TIMES = ("seconds", "time")
"""Values of a record's line that differ between equal runs."""


def rehearse(
    folder: Path, options: Mapping[str, Any], count: int, say: Callable[[str], None]
) -> list[tuple[str, str]]:
    """Run on nodes of this machine, with TLS and keys, and compare with backend ``local``.

    A run with noise from secrets of the nodes is not compared: its simulation has other noise.

    Every node has the whole data set, and its clients take their rows by seed.

    Args:
        folder: A new folder for the federation, the nodes and both runs.
        options: Options of `protofl.run`.
        count: The number of nodes.
        say: Takes each line of the run.

    Returns:
        What was compared, in words.

    Raises:
        UsageError: The run has no rounds.
        RunFailure: The runs differ, or one failed.
    """
    schedule = str(options.get("schedule") or options.get("timing") or ROUNDS)
    if schedule != ROUNDS:
        raise pf.UsageError(
            f"--schedule {schedule}: a rehearsal compares every bit with a simulation, and without "
            "rounds the order in which uploads arrive differs from run to run",
            do="rehearse with rounds, then start: protofl deploy run --schedule " + schedule,
        )
    programs.program("flower-superlink")
    secretive: list[str] = []

    def follow(event: pf.events.Event) -> None:
        if isinstance(event, pf.events.Planned):
            secretive.extend(event.plan.composition.secretive)

    local = pf.run(**{**options, "backend": "local"}, out=folder / "local", progress=follow)
    clients, data_dir = _facts(local)
    if not 1 <= count <= clients:
        raise pf.UsageError(f"--nodes {count}: expected 1 to {clients}, the number of clients")
    federation = make_federation(
        folder / "federation", f"127.0.0.1:{(port := programs.free_port())}", port
    )
    with ExitStack() as until:
        federation, nodes = make_nodes(federation, folder, count, clients, data_dir)
        say(f"server at {federation.address}: TLS, keys of {count} nodes, process isolation")
        checks = [until.enter_context(running_server(federation))]
        checks += [until.enter_context(running_node(node, federation.address)) for node in nodes]
        here = {**options, "out": str(folder / "deployed"), "data_dir": str(data_dir)}
        submit(federation, secrets.token_hex(8), here, say)
        for check in checks:
            check()
    if not secretive:
        return compare(local.folder, folder / "deployed", local.summary["best_test_accuracy"])
    rounds = len(_lines(folder / "deployed"))
    why = f"the noise of {', '.join(secretive)} comes from secrets of the nodes"
    return [("rounds", str(rounds)), ("not compared", why)]


def _facts(local: pf.Result) -> tuple[int, Path]:
    """Return the number of clients and the data folder of a run."""
    config = json.loads((local.folder / "config.json").read_text(encoding="utf-8"))
    return int(config["clients"]), Path(config["data_dir"])


def make_nodes(
    federation: Federation, folder: Path, count: int, clients: int, data_dir: Path
) -> tuple[Federation, list[Path]]:
    """Write a folder for each node; clients are dealt to nodes in turn."""
    made, nodes = [], []
    for number in range(count):
        node_clients = tuple(range(number, clients, count))
        node = folder / f"node-{number}"
        settings = f"clients = {[*node_clients]}\ndata_dir = {json.dumps(str(data_dir))}\n"
        settings += "\n[policy]\npaths = true\nclass_counts = true\nclasses = true\n"
        key = make_node(node, settings)
        (node / "ca.crt").write_bytes((federation.folder / "ca.crt").read_bytes())
        made.append(NodeEntry(f"node-{number}", key, node_clients))
        nodes.append(node)
    federation = replace(federation, nodes=made)
    federation.write()
    return federation, nodes


def compare(here: Path, there: Path, accuracy: float) -> list[tuple[str, str]]:
    """Compare a deployed run with the simulated one, to the last bit.

    Args:
        here: The run folder of the simulated run.
        there: The run folder of the deployed run, beside the folders of its nodes.
        accuracy: The accuracy to tell.

    Returns:
        What was compared, in words.

    Raises:
        RunFailure: They differ.
    """
    simulated, deployed = _lines(here), _lines(there)
    for line, other in zip(simulated, deployed, strict=False):
        keys = sorted({*line, *other})
        if wrong := [key for key in keys if line.get(key) != other.get(key)]:
            raise pf.RunFailure(
                f"deployed and local differ in round {line['round'] + 1}: {', '.join(wrong)}"
            )
    if len(simulated) != len(deployed):
        raise pf.RunFailure(f"the deployed run has {len(deployed)} rounds, local {len(simulated)}")
    servers, clients = compare_states(here, there)
    return [
        ("rounds", f"{len(deployed)}, best test accuracy {100 * accuracy:.2f} %"),
        ("record", "equal to local"),
        ("server", f"equal to local: {servers} files"),
        ("clients", f"equal to local: {clients} files, which stayed on the nodes"),
    ]


def compare_states(here: Path, there: Path) -> tuple[int, int]:
    """Compare server and clients of the last round; see `compare`.

    Returns:
        The numbers of files of the server and of the clients.

    Raises:
        RunFailure: One differs.
    """
    (servers, clients), (their_servers, their_clients) = map(_last_files, (here, there))
    for name, check in servers.items():
        if check != their_servers.get(name):
            raise pf.RunFailure(f"the deployed run differs from local in {name}")
    kept = {digest_of(path) for path in there.parent.glob("node-*/runs/*/client-*.safetensors")}
    for client, (name, *check) in clients.items():
        same = digest_of(here / "checkpoint" / name) in kept
        if not same or their_clients.get(client) != [name, *check]:
            raise pf.RunFailure(f"the deployed run differs from local in client {client}")
    return len(servers), len(clients)


def _last_files(run: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the files of a run's last round, with lengths and checksums.

    Returns:
        {name: check} of the server, and {client: name and check}.
    """
    manifest = json.loads((run / "checkpoint" / "manifest.json").read_text(encoding="utf-8"))
    servers = {n: check for n, check in manifest["checks"].items() if n.startswith("server-")}
    clients = (run / "checkpoint" / manifest["clients"]).read_text(encoding="utf-8")
    return servers, json.loads(clients)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return sha256(path.read_bytes()).hexdigest()


def _lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a record without times."""
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]
