"""The backend of deployed runs: clients on nodes, reached through Flower.

protofl knows Flower as a `protocol.transport.Transport`. ``protofl deploy run`` starts Flower's
app. Its `flower_app.server_app` makes a transport of Flower's grid and starts `run_process`, which
calls `serve`. A run knows a client by the name and the version of its file
(`server.client_versions`); the file itself never leaves the node.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

import protofl as pf
from protofl_flower.protocol.transport import Deployment, RemoteNode, Transport, write_end
from protofl_flower.server.data_sizes import ask_data_sizes
from protofl_flower.server.node_pool import NodePool

DEPLOYMENT: ContextVar[Deployment | None] = ContextVar("deployed", default=None)
"""The place of the run of this context; `serve` sets it."""


class Flower:
    """Clients on the nodes of a federation, through Flower; see: protofl deploy run."""

    real_time = True
    has_secrets = True

    class Config(pf.Config):
        """Options."""

        deadline: float = pf.Field(
            0, ge=0, description="seconds after which a node's reply no longer counts; 0: 12 hours"
        )
        patience: float = pf.Field(
            60, ge=0, description="seconds within which the nodes must be online at the start"
        )
        start_deadline: float = pf.Field(
            600,
            ge=0,
            description="seconds within which a node must answer the plan, and before it the "
            "question for the sizes of its data; 0: no limit",
        )
        poll: float = pf.Field(0.2, gt=0, description="seconds between two looks for replies")
        on_stale: Literal["skip", "stop", "fresh"] = pf.Field(
            "skip",
            description="if a node lost a client's state: go on without the client, stop the run, "
            "or give the client its initial state",
        )

    @pf.hookimpl
    def open_pool(self, plan: pf.backends.Plan, config: Config) -> pf.backends.Pool:
        """Greet all nodes; they load the plan while the run prepares itself."""
        deployment = DEPLOYMENT.get()
        if deployment is None:
            raise pf.UsageError(
                "backend 'flower' works on the nodes of a federation only",
                do="start the run with: protofl deploy run METHOD --models GROUP; "
                "try it on this machine with: protofl deploy rehearse",
            )
        if plan.settings.devices is not None:
            raise pf.UsageError(
                f"--devices {plan.settings.devices} simulates devices, and these are real",
                do="leave it out; --set backend.deadline=SECONDS limits the time of a reply",
            )
        return NodePool(plan, deployment, config)


def with_data_sizes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a new run with what nodes tell of their own data.

    Args:
        options: Options of `protofl.run`; those of the data set ``nodes`` in ``options``.

    Raises:
        ProtoflError: A node is missing, or its data do not fit.
    """
    deployment, of_data = DEPLOYMENT.get(), options.get("options", {}).get("dataset", {})
    if options.get("dataset") != "nodes" or options.get("resume") or deployment is None:
        return {**options}
    assignments = options.get("set", ())
    typed = (
        assignments.items()
        if isinstance(assignments, Mapping)
        else (i.split("=", 1) for i in assignments)
    )
    seconds = {str(key).removeprefix("backend."): value for key, value in typed}
    pace = ("patience", "poll", "start_deadline")
    config = Flower.Config(**{key: seconds[key] for key in pace if key in seconds})
    skip = options.get("on_lost_client") == "skip"
    given = options.get("transforms", options.get("with", ()))
    transforms = given.split(",") if isinstance(given, str) else [*map(str, given)]
    told = ask_data_sizes(deployment, of_data, config, skip=skip, transforms=transforms)
    plugin_options = {**options["options"], "dataset": {**of_data, "told": told}}
    return {**options, "options": plugin_options}


def serve(transport: Transport, request: str) -> None:
    """Do a run on Flower's grid; its lines and its end go to files.

    Args:
        transport: The way to the nodes.
        request: A JSON file: ``options`` of `protofl.run`, ``nodes``, ``run``, and the files
            ``lines`` and ``end``.
    """
    asked = json.loads(Path(request).read_text(encoding="utf-8"))
    nodes = [RemoteNode(n["name"], n["key"], tuple(n["clients"])) for n in asked["nodes"]]
    end: dict[str, Any] = {"done": True}
    token = DEPLOYMENT.set(Deployment(transport, nodes, asked["run"]))
    try:
        with (
            open(asked["lines"], "a", encoding="utf-8", buffering=1) as lines,
            contextlib.redirect_stderr(lines),
        ):
            pf.run(**with_data_sizes(asked["options"]), backend="flower")
    except Exception as error:
        end = {"failure": pf.ProtoflError.to_values(error)}
    finally:
        DEPLOYMENT.reset(token)
    write_end(asked["end"], end)
