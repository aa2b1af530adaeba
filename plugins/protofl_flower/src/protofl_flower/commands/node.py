"""``protofl node``: a machine on which clients of a deployed run live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import protofl as pf
from protofl_cli.public import (
    Debug,
    Force,
    Json,
    checked,
    group_of,
    interrupted,
    line,
    option,
    pair_values,
    pairs,
    print_json,
    prints_json,
    waiting,
)

Folder = Annotated[Path, typer.Argument(metavar="NODE", help="Folder of the node.")]


@prints_json
def init(
    folder: Annotated[Path, typer.Argument(metavar="NODE", help="New folder.")],
    server: Annotated[
        str, option("--server", "HOST:PORT", "Address of the federation's server (needed).")
    ],
    client: Annotated[
        list[int], option("--client", "N", "A client on this node; repeatable.", min=0)
    ],
    data: Annotated[
        str,
        option("--data", "NAME[:PATH]", "Data set with this node's samples (default: the run's)"),
    ] = "",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a node: a key pair, node.toml with its policy, a systemd unit.

    Prints the public key, which the federation's operator needs.
    """
    from protofl_flower.deployment.node_process import check_address, make_node, settings_text
    from protofl_flower.deployment.service_files import unit_text

    check_address("--server", server)
    place = pf.expand_user(folder).absolute()
    public = make_node(place, settings_text(server, client, data))
    unit = unit_text("node", f"node start {place}")
    (place / "protofl-node.service").write_text(unit, encoding="utf-8")
    rows = [
        ("settings", str(place / "node.toml")),
        ("public key", str(place / "key.pub")),
        ("next", f"copy the federation's ca.crt to {place}, then: protofl node check {folder}"),
    ]
    if as_json:
        print_json({"rows": pair_values(rows), "public_key": public})
        return
    pairs(rows)
    line(public)


def start(folder: Folder, debug: Debug = False) -> None:
    """Run the node until it is interrupted.

    If the server is not there, or refuses a node that was killed less than a minute ago, the node
    tries again.
    """
    from protofl_flower.deployment.node_process import keep_running

    try:
        keep_running(pf.expand_user(folder).absolute(), line)
    except KeyboardInterrupt as stop:
        raise typer.Exit(interrupted(stop, "the node has ended")) from None


@prints_json
def check(folder: Folder, as_json: Json = False, debug: Debug = False) -> None:
    """Check settings, policy, keys, device and disk of a node, and its server, a line each.

    Exit code 2: something is wrong.
    """
    from protofl_flower.deployment.node_check import checks

    rows = checks(pf.expand_user(folder).absolute())
    if as_json:
        print_json([{"check": n, "finding": text, "passed": good} for n, text, good in rows])
    else:
        for name, finding, good in rows:
            line(f"{name}: {finding}", "" if good else "red")
    wrong = [name for name, _, good in rows if not good]
    if wrong:
        raise pf.UsageError(f"the node cannot start: {', '.join(wrong)}")


@prints_json
def export(
    folder: Folder,
    out: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="FILE.onnx, FILE.pt2 or FILE.safetensors."),
    ],
    client: Annotated[int, option("--client", "N", "Number of the client.", min=0)],
    run: Annotated[
        str, option("--run", "NAME", "Run, by its folder in NODE/runs (default: the latest)")
    ] = "",
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Export a client of this node as it was evaluated last; the same file as protofl export."""
    target = checked("FILE", out, force=force)
    with waiting("exporting"):
        from protofl_flower.deployment.node_export import export_client

        rows = export_client(pf.expand_user(folder).absolute(), run, client, target)
    if as_json:
        print_json({"file": target, "rows": pair_values(rows)})
        return
    pairs(rows)


app = group_of(
    {"init": init, "start": start, "check": check, "export": export},
    help="Run clients on this machine for a deployed run.",
    rich_help_panel="Deploy",
)
