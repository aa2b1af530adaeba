"""``protofl deploy``: runs on several machines, through Flower."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import protofl as pf
from protofl_cli.public import (
    Debug,
    Json,
    group_of,
    interrupted,
    line,
    option,
    pair_values,
    pairs,
    print_json,
    prints_json,
)

PANEL = "Deployment"


def _typed(method: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the typed options of a run."""
    values = {name.removesuffix("_"): value for name, value in arguments.items()}
    return {k: v for k, v in {"method": method, **values}.items() if v is not None and v != []}


@prints_json
def rehearse(
    method: Annotated[str | None, typer.Argument(metavar="METHOD", help="The method.")] = None,
    nodes: Annotated[
        int, option("--nodes", "N", "Number of nodes.", min=1, rich_help_panel=PANEL)
    ] = 2,
    folder: Annotated[
        Path | None,
        option(
            "--folder",
            "DIR",
            "New folder for the federation, the nodes, their logs and both runs (default: a "
            "temporary one)",
            rich_help_panel=PANEL,
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
    **arguments: Any,  # noqa: ANN401 - the options of `Settings`, see with_options
) -> None:
    """Try a deployment on this machine: nodes, TLS and keys, compared with backend local.

    Every node has the whole data set. The command fails if the record, the server or a client
    differs from a simulated run by one bit. Rounds take about ten seconds, because Flower's nodes
    ask for messages every few seconds.
    """
    from protofl_flower.deployment.rehearsal import rehearse as rehearse_run

    place = new_folder(folder, "--folder") if folder else Path(tempfile.mkdtemp(prefix="protofl-"))
    try:
        rows = rehearse_run(place, _typed(method, arguments), nodes, line)
    except KeyboardInterrupt as stop:
        raise typer.Exit(interrupted(stop, f"logs and runs are in {place}")) from None
    except pf.ProtoflError as problem:
        problem.do = "; ".join(filter(None, (problem.do, f"logs and runs are in {place}")))
        raise
    if folder is None:
        shutil.rmtree(place, ignore_errors=True)
    if as_json:
        print_json({"rows": pair_values(rows), "folder": place if folder else None})
        return
    pairs(rows)


Federated = Annotated[
    Path, option("--federation", "DIR", "Folder of the federation.", rich_help_panel=PANEL)
]
Folder = Annotated[Path, typer.Argument(metavar="FEDERATION", help="Folder of the federation.")]


@prints_json
def init(
    folder: Annotated[Path, typer.Argument(metavar="FEDERATION", help="New folder.")],
    public: Annotated[
        str, option("--public", "HOST:PORT", "Address at which nodes reach the server (needed).")
    ],
    port: Annotated[
        int, option("--port", "N", "Port of the server on this machine.", min=1, max=65535)
    ] = 9200,
    sample: Annotated[
        str,
        option("--sample", "SHAPE", "Shape of a sample of the nodes' own data, such as 1x28x28"),
    ] = "",
    classes: Annotated[
        str,
        option("--classes", "N|NAME,…", "Classes of the nodes' own data: a number, or names"),
    ] = "",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a federation: certificates, a secret, federation.toml, a proxy's configuration.

    With --sample and --classes, runs train on the nodes' own data. Keep server.key secret.
    Give ca.crt to every node.
    """
    from protofl_flower.deployment.server_process import make_federation
    from protofl_flower.deployment.service_files import write_server_files

    host, colon, number = public.rpartition(":")
    if not (host and colon and number.isdecimal()):
        raise pf.UsageError(f"--public {public!r}: expected HOST:PORT")
    if bool(sample) != bool(classes):
        raise pf.UsageError("--sample and --classes belong together", do="give both, or neither")
    data = {"sample": sample, "classes": classes} if sample else {}
    if data:
        # Raises an error that says what is wrong with them.
        pf.backends.load_dataset("nodes", {**data, "told": [{}]}, Path(), line)
    made = make_federation(folder, public, port, data)
    files = write_server_files(made)
    rows = [
        ("federation", str(made.folder / "federation.toml")),
        ("for nodes", str(made.folder / "ca.crt")),
        *((file.name, str(file)) for file in files),
        ("next", f"protofl deploy add-node {folder} NAME KEY.pub --client 0"),
    ]
    if as_json:
        print_json({"rows": pair_values(rows)})
        return
    pairs(rows)


def add_node(
    folder: Folder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the node.")],
    key: Annotated[Path, typer.Argument(metavar="KEY.pub", help="Its public key.")],
    client: Annotated[
        list[int], option("--client", "N", "A client on the node; repeatable.", min=0)
    ],
    architecture: Annotated[
        str, option("--architecture", "NAME|N", "Architecture of its clients (default: i mod X)")
    ] = "",
    debug: Debug = False,
) -> None:
    """Add a node. A running server takes it when it is restarted."""
    from dataclasses import replace

    from protofl_flower.deployment.federation_file import (
        FILE,
        NodeEntry,
        check_nodes,
        read_federation,
    )
    from protofl_flower.deployment.keys import read_public_key

    federation = read_federation(folder)
    nodes = [*federation.nodes, NodeEntry(name, read_public_key(key), tuple(client), architecture)]
    check_nodes(federation.folder / FILE, nodes)
    replace(federation, nodes=nodes).write()
    line(f"{name} has client {', '.join(map(str, client))}: {len(nodes)} nodes")


def server(folder: Folder, debug: Debug = False) -> None:
    """Run the server until interrupted: Flower's SuperLink and SuperExec, on loopback only."""
    from protofl_flower.deployment.federation_file import read_federation
    from protofl_flower.deployment.server_process import running_server

    federation = read_federation(folder)
    try:
        with running_server(federation) as check:
            line(f"server at {federation.address} with {len(federation.nodes)} nodes")
            while True:
                check()
                time.sleep(2)
    except KeyboardInterrupt as stop:
        raise typer.Exit(interrupted(stop, "the server has ended")) from None


def run(
    method: Annotated[str | None, typer.Argument(metavar="METHOD", help="The method.")] = None,
    out: Annotated[
        Path | None, option("--out", "DIR", "Run folder (needed).", rich_help_panel=PANEL)
    ] = None,
    federation: Federated = Path(),
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in --out.", rich_help_panel=PANEL)
    ] = False,
    on_stale: Annotated[
        str | None,
        option(
            "--on-stale",
            "skip|stop|fresh",
            "If a node lost the state of a client: go on without the client, stop the run, or give "
            "the client its initial state (default: skip)",
            rich_help_panel=PANEL,
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
    **arguments: Any,  # noqa: ANN401 - the options of `Settings`, see with_options
) -> None:
    """Train on the nodes of a federation, whose server must run.

    Takes the options of protofl run. Two differ: --deadline is the real time in seconds after which
    a node's reply no longer counts, and --on-lost-client and --on-bad-upload are skip by default.
    """
    from protofl_flower.deployment.deployed_run import start

    if out is None:
        raise pf.UsageError("the run folder is missing", do="give it: --out DIR")
    try:
        start(
            federation,
            out,
            _typed(method, {**arguments, "on_stale": on_stale}),
            line,
            resume=resume,
        )
    except KeyboardInterrupt as stop:
        do = "the run goes on; end it with: protofl deploy stop"
        raise typer.Exit(interrupted(stop, do)) from None


@prints_json
def status(folder: Folder, as_json: Json = False, debug: Debug = False) -> None:
    """Show the nodes of a federation, whether they are online, and its runs."""
    from protofl_flower.deployment.federation_file import read_federation
    from protofl_flower.deployment.server_process import node_states, runs_of

    federation = read_federation(folder)
    states = node_states(federation)
    if as_json:
        nodes = [
            {
                "node": node.name,
                "clients": node.clients,
                "state": states.get(node.name, "not registered"),
            }
            for node in federation.nodes
        ]
        runs = [{"run": n, "state": state} for n, state in runs_of(federation).items()]
        print_json({"nodes": nodes, "runs": runs})
        return
    rows = [
        (
            node.name,
            f"{states.get(node.name, 'not registered')}, client "
            f"{', '.join(map(str, node.clients))}",
        )
        for node in federation.nodes
    ]
    rows += [(f"run {number}", state) for number, state in runs_of(federation).items()]
    pairs(rows)


def stop(folder: Folder, debug: Debug = False) -> None:
    """Stop the runs of a federation; finished rounds are saved and can be resumed."""
    from protofl_flower.deployment.federation_file import read_federation
    from protofl_flower.deployment.server_process import flwr, runs_of

    federation = read_federation(folder)
    going = [number for number, state in runs_of(federation).items() if "finished" not in state]
    for number in going:
        flwr(federation, "stop", number, "lab")
    line(f"stopped: {', '.join(going)}" if going else "no run is going on")


def new_folder(folder: Path, flag: str) -> Path:
    """Return a folder that is missing or empty, made absolute.

    Raises:
        UsageError: It has files.
    """
    place = pf.expand_user(folder).absolute()
    if place.exists() and any(place.iterdir()):
        raise pf.UsageError(f"{flag} {folder} is not empty", do="give a new folder")
    place.mkdir(parents=True, exist_ok=True)
    return place


app = group_of(
    {
        "rehearse": rehearse,
        "init": init,
        "add-node": add_node,
        "server": server,
        "run": run,
        "status": status,
        "stop": stop,
    },
    help="Run on several machines, through Flower.",
    rich_help_panel="Deploy",
    with_run_options=("rehearse", "run"),
)
