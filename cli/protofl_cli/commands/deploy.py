"""``protofl deploy``: runs on machines of their own, through Flower."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from protofl.errors import ProtoflError, UsageError
from protofl_cli import render
from protofl_cli.interrupts import interrupted
from protofl_cli.options import Debug, option

PANEL = "Deployment"


def _typed(method: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the typed options of a run."""
    values = {name.removesuffix("_"): value for name, value in given.items()}
    return {k: v for k, v in {"method": method, **values}.items() if v is not None and v != []}


def rehearse(
    method: Annotated[str | None, typer.Argument(metavar="METHOD", help="Method or recipe.")] = None,
    sites: Annotated[
        int, option("--sites", "N", "Number of nodes.", min=1, rich_help_panel=PANEL)
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
    debug: Debug = False,
    **given: Any,  # noqa: ANN401 - the options of `Settings`, see with_options
) -> None:
    """Try a deployment on this machine: nodes, TLS and keys, compared with backend local.

    Every node has the whole data set. The command fails if the record, the server or a client
    differs from a simulated run by one bit. Rounds take about ten seconds, because Flower's nodes
    ask for messages every few seconds.
    """
    from protofl_cli.deploying.rehearsal import rehearse as carry_out

    place = new_folder(folder, "--folder") if folder else Path(tempfile.mkdtemp(prefix="protofl-"))
    try:
        rows = carry_out(place, _typed(method, given), sites, render.line)
    except KeyboardInterrupt as stop:
        raise typer.Exit(interrupted(stop, f"logs and runs are in {place}")) from None
    except ProtoflError as problem:
        problem.do = "; ".join(filter(None, (problem.do, f"logs and runs are in {place}")))
        raise
    if folder is None:
        shutil.rmtree(place, ignore_errors=True)
    render.pairs(rows)


def new_folder(folder: Path, flag: str) -> Path:
    """Return a folder that is missing or empty, made absolute.

    Raises:
        UsageError: It has files.
    """
    place = folder.expanduser().absolute()
    if place.exists() and any(place.iterdir()):
        raise UsageError(f"{flag} {folder} is not empty", do="give a new folder")
    place.mkdir(parents=True, exist_ok=True)
    return place
