"""``protofl report``: an HTML page about runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from protofl_cli.options.options import Debug, Label, TrustCode, option
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.screens import render


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run folders, folders of runs, or the folder of a sweep.",
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
    force: Force = False,
    trust_code: TrustCode = None,
    debug: Debug = False,
) -> None:
    """Write a report about runs: one HTML page that needs no network.

    The page of one run has key figures, curves, clients, traffic, the configuration, deviations
    from the paper, and the commands that repeat the run. Several runs are compared. Runs may be
    unfinished.
    """
    target = _target(runs, out, force)
    with render.waiting("reading"):
        from protofl_workbench.reporting.page import report as write_report

        notes: list[str] = []
        text = write_report(
            runs,
            target,
            title=title,
            baseline=baseline,
            labels=label or (),
            note=notes.append,
        )
    size = len(text.encode()) / 1e3
    render.line(f"report: {target} ({size:,.0f} kB; open it in a browser)")
    for line in notes:
        render.text(line, "dim")


def _target(runs: list[Path], out: Path | None, force: bool) -> Path:
    """Check the file before any long step."""
    from protofl.errors import UsageError

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out {out} is not an HTML file", do="give a name that ends in .html")
    if out is None:
        one = len(runs) == 1 and (runs[0] / "config.json").is_file()
        name = runs[0].resolve().name if one else ""
        out = Path(re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "report")
        out = out.with_name(f"{out.name}.html")
    return checked("--out", out, force=force)
