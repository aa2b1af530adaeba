"""Models of the JSON of ``protofl deploy`` and ``protofl node``."""

from __future__ import annotations

from protofl_cli.public import Output, Pair


class Rehearsal(Output):
    """A rehearsal of a deployment; exit code 1 if the runs differ."""

    rows: list[Pair]
    """Parts that were compared."""
    folder: str | None
    """Folder of both runs; null for a temporary one, which is removed."""


class DeployedSite(Output):
    """A site of a federation."""

    site: str
    """Name."""
    clients: list[int]
    """Numbers of its clients."""
    state: str
    """State of its node, as Flower reports it; `not registered` if the link does not know it."""


class DeployedRun(Output):
    """A run of a federation."""

    run: str
    """Flower's number of the run."""
    state: str
    """State, as Flower reports it."""


class FederationStatus(Output):
    """The sites and runs of a federation."""

    sites: list[DeployedSite]
    """Sites."""
    runs: list[DeployedRun]
    """Runs, the latest first."""


class MadeNode(Output):
    """A new node."""

    rows: list[Pair]
    """Files, and the next step."""
    public_key: str
    """Public key, which the operator of the federation needs."""


class NodeCheck(Output):
    """A check of a node."""

    check: str
    """Name."""
    finding: str
    """Finding, or the problem."""
    passed: bool
    """False if the node cannot start because of it."""


NodeChecks = list[NodeCheck]


class NodeExport(Output):
    """An exported client of a node."""

    file: str
    """File."""
    rows: list[Pair]
    """Facts about the file."""
