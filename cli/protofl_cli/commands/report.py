"""``protofl report``: an HTML page about runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofl.system.files.home import expand_user
from protofl_cli.options.options import Debug, Label, Order, TrustCode, option
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl_workbench.reproductions.reproduction_result import ReproductionResult


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run folders, folders of runs, the folder of a sweep, or one reproduction.",
        ),
    ],
    out: Annotated[
        Path | None,
        option(
            "--out",
            "FILE",
            "File of the page, .html (default: NAME-OF-THE-RUN.html, or report.html)",
        ),
    ] = None,
    title: Annotated[
        str, option("--title", "TEXT", "Heading of the page.", show_default=False)
    ] = "",
    baseline: Annotated[
        str,
        option(
            "--baseline",
            "METHOD",
            "Baseline of the differences (default: local, then fedavg, otherwise the first)",
        ),
    ] = "",
    label: Label = None,
    order: Order = "",
    scale: Annotated[
        str | None,
        option("--scale", "NAME", "Scale of a reproduction: paper, fast, … (default: paper)"),
    ] = None,
    found_in: Annotated[
        Path | None,
        option("--runs", "DIR", "Folder with the runs of a reproduction (default: runs)"),
    ] = None,
    force: Force = False,
    trust_code: TrustCode = None,
    debug: Debug = False,
) -> None:
    """Write a report about runs: one HTML page that needs no network.

    The page of one run has key figures, curves, clients and classes, traffic and time, the
    configuration, deviations from the paper, and the commands that repeat the run. Several runs are
    compared. Runs may be unfinished. For a reproduction, the page compares the figures of existing
    runs with the published ones.
    """
    reproduction = _reproduction_in(runs)
    if reproduction is None and (scale or found_in):
        from protofl.errors import UsageError

        raise UsageError(
            "--scale and --runs apply only to a reproduction", do="see: protofl reproduce --list"
        )
    target = _target(runs, out, force, reproduction)
    with render.waiting("reading"):
        from protofl_workbench.reporting.page import report as write_report

        about = (
            runs if reproduction is None else _result_of(reproduction, scale or "paper", found_in)
        )
        notes: list[str] = []
        text = write_report(
            about,
            target,
            title=title,
            baseline=baseline,
            labels=label or (),
            order=order,
            note=notes.append,
        )
    size = len(text.encode()) / 1e3
    render.line(f"report: {target} ({size:,.0f} kB; open it in a browser)")
    for line in notes:
        render.text(line, "dim")


def _reproduction_in(arguments: list[Path]) -> str | None:
    """Return the name of the reproduction; None if folders are given."""
    (name, *others) = map(str, arguments)
    known = name.endswith(".toml") or "/" in name
    return name if known and not others and not expand_user(name).is_dir() else None


def _result_of(name: str, scale: str, runs: Path | None) -> ReproductionResult:
    """Return the result of a reproduction so far; nothing is started.

    Raises:
        UsageError: The name is neither a reproduction nor a folder.
    """
    from protofl.errors import Unknown
    from protofl_workbench.reproductions.reproduction_interface import reproduce

    try:
        return reproduce(name, scale=scale, runs=runs or Path("runs"), start=False)
    except Unknown as problem:
        if problem.noun == "reproduction":
            problem.what = f"{name} is neither a run folder nor a reproduction"
        raise


def _target(runs: list[Path], out: Path | None, force: bool, reproduction: str | None) -> Path:
    """Check the file before any long step."""
    from protofl.errors import UsageError

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out {out} is not an HTML file", do="give a name that ends in .html")
    if out is None:
        one = len(runs) == 1 and (runs[0] / "config.json").is_file()
        name = runs[0].resolve().name if one else (reproduction or "").removesuffix(".toml")
        out = Path(re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "report")
        out = out.with_name(f"{out.name}.html")
    return checked("--out", out, force=force)
