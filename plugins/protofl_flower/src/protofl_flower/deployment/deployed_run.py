"""A run on the nodes of a federation: its request, and its name on the nodes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import protofl as pf
from protofl_flower.deployment.federation_file import FILE, Federation, read_federation
from protofl_flower.deployment.server_process import submit
from protofl_flower.files import write_json


def start(
    folder: Path,
    out: Path,
    options: dict[str, Any],
    say: Callable[[str], None],
    *,
    resume: bool,
) -> None:
    """Start or resume a run on the server of a federation, and follow it.

    Args:
        folder: The federation's folder.
        out: The run folder.
        options: Options as ``protofl deploy run`` takes them.
        say: Takes each line of the run.
        resume: Resume the run in ``out``.

    Raises:
        ProtoflError: The request is wrong, or the run failed.
    """
    federation, place = read_federation(folder), pf.expand_user(out).absolute()
    if not federation.nodes:
        raise pf.UsageError("the federation has no node", do="add one: protofl deploy add-node")
    run = _name(federation, place, resume=resume)
    federation_options = {} if resume else options_of(federation, options)
    submit(
        federation,
        run,
        {**federation_options, **real_options(options, resume=resume), "out": str(place)},
        say,
    )


def options_of(federation: Federation, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `protofl.run` that ``federation.toml`` sets for a new run.

    Args:
        federation: The federation.
        options: Options as ``protofl deploy run`` takes them; these come first.

    Raises:
        UsageError: Some nodes name an architecture, and others do not.
    """
    result: dict[str, Any] = {}
    if federation.data and "dataset" not in options:
        result = {"dataset": "nodes", "options": {"dataset": dict(federation.data)}}
    nodes = federation.nodes
    names = {client: node.architecture for node in nodes for client in node.clients}
    without = [node.name for node in nodes if not node.architecture]
    if "architectures" in options or len(without) == len(nodes):
        return result
    if without:
        raise pf.UsageError(
            f"{without[0]} has no architecture in {FILE}, and other nodes have one",
            do="name one for each node, or for none",
        )
    return {**result, "architectures": [names[client] for client in sorted(names)]}


def real_options(options: dict[str, Any], *, resume: bool) -> dict[str, Any]:
    """Return the options of `protofl.run` for a deployed run.

    Raises:
        UsageError: An option simulates what is real here.
    """
    run_options = dict(options)
    for name in ("devices", "over_select"):
        if run_options.get(name):
            flag = f"--{name.replace('_', '-')}"
            what = f"{flag} {run_options[name]} simulates devices, and these are real"
            raise pf.UsageError(what, do="leave it out")
    if "backend" in run_options:
        raise pf.UsageError(
            f"--backend {run_options['backend']}: a deployed run has its own", do="leave out"
        )
    for name in ("deadline", "on_stale"):
        value = run_options.pop(name, None)
        if value is not None:
            run_options["set"] = [*run_options.get("set", []), f"backend.{name}={value}"]
    if resume:
        return {**run_options, "resume": True}
    # No node ends the run of the others.
    return {"on_lost_client": "skip", "on_bad_upload": "skip", **run_options}


def _name(federation: Federation, out: Path, *, resume: bool) -> str:
    """Return the name of the run in a folder on the nodes' disks; make one for a new run.

    Raises:
        UsageError: A run that is to be resumed was not started on this federation.
    """
    file = federation.folder / "runs.json"
    names = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if resume:
        if str(out) not in names:
            raise pf.UsageError(
                f"--resume: {out} is not a run of the federation in {federation.folder}",
                do="give the run folder of protofl deploy run",
            )
        return str(names[str(out)])
    names[str(out)] = name = secrets.token_hex(8)
    write_json(file, names)
    return name
