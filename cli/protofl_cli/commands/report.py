"""``protofl report``: a page about runs that can be read anywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from protofl_cli import render
from protofl_cli.options import Debug
from protofl_cli.overwriting import Force, checked


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, or folders of runs: a sweep's, all."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="The page, an .html file (default: that of a run's name, or report.html)",
        ),
    ] = None,
    title: Annotated[
        str, typer.Option("--title", metavar="TEXT", help="Its heading.", show_default=False)
    ] = "",
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Write a page about runs: one HTML file, which needs no network.

    Of one run it has the figures that count, curves, clients and classes, traffic and time, the
    configuration, where it departs from the paper, and the commands that repeat it; of several a
    comparison, and each run by itself. Runs may be going on.
    """
    target = _target(runs, out, force)
    with render.waiting("reading"):
        from protofl.reporting.page import report as write_report

        text = write_report(runs, target, title=title)
    size = len(text.encode()) / 1e3
    render.line(f"report: {target} ({size:,.0f} kB; open it in a browser)")


def _target(runs: list[Path], out: Path | None, force: bool) -> Path:
    """The file, checked before anything takes time."""
    from protofl.errors import UsageError

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out {out} is no HTML file", do="give a name that ends in .html")
    if out is None:
        one = len(runs) == 1 and (runs[0] / "config.json").is_file()
        name = runs[0].resolve().name if one else ""
        out = Path(re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "report")
        out = out.with_name(f"{out.name}.html")
    return checked("--out", out, force=force)
