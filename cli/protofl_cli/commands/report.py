"""``protofl report``: a page about runs that can be read anywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofl_cli import render
from protofl_cli.options import Debug, TrustCode
from protofl_cli.overwriting import Force, checked

if TYPE_CHECKING:
    from protofl_workbench.studies.study_result import StudyResult


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folders, folders of runs, a sweep's folder, or one study."
        ),
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
    baseline: Annotated[
        str,
        typer.Option(
            "--baseline",
            metavar="METHOD",
            help="Baseline of differences (default: local, then fedavg, otherwise the first)",
        ),
    ] = "",
    scale: Annotated[
        str | None,
        typer.Option("--scale", metavar="NAME", help="Of a study: paper (the default), fast, …"),
    ] = None,
    found_in: Annotated[
        Path | None,
        typer.Option(
            "--runs", metavar="DIR", help="Of a study: the folder of runs (default: runs)"
        ),
    ] = None,
    force: Force = False,
    trust_code: TrustCode = None,
    debug: Debug = False,
) -> None:
    """Write a page about runs: one HTML file, which needs no network.

    Of one run it has the figures that count, curves, clients and classes, traffic and time, the
    configuration, where it departs from the paper, and the commands that repeat it; of several a
    comparison, and each run by itself. Runs may be going on. Of a study of protofl reproduce it has
    ours beside the published figures, as far as its runs are there.
    """
    study = _study_in(runs)
    if study is None and (scale or found_in):
        from protofl.errors import UsageError

        raise UsageError(
            "--scale and --runs are of a study", do="name one: protofl reproduce --list"
        )
    target = _target(runs, out, force, study)
    with render.waiting("reading"):
        from protofl_workbench.reporting.page import report as write_report

        about = runs if study is None else _result_of(study, scale or "paper", found_in)
        text = write_report(about, target, title=title, baseline=baseline)
    size = len(text.encode()) / 1e3
    render.line(f"report: {target} ({size:,.0f} kB; open it in a browser)")


def _study_in(given: list[Path]) -> str | None:
    """The study that is named, where no folder is."""
    (name, *others) = map(str, given)
    known = name.endswith(".toml") or "/" in name
    return name if known and not others and not Path(name).expanduser().is_dir() else None


def _result_of(name: str, scale: str, runs: Path | None) -> StudyResult:
    """What came of a study so far; nothing is started.

    Raises:
        UsageError: It is neither a study nor a folder.
    """
    from protofl.errors import Unknown
    from protofl_workbench.studies.study_interface import reproduce

    try:
        return reproduce(name, scale=scale, runs=runs or Path("runs"), start=False)
    except Unknown as problem:
        if problem.noun == "study":
            problem.what = f"{name} is not a run folder, and no study"
        raise


def _target(runs: list[Path], out: Path | None, force: bool, study: str | None) -> Path:
    """The file, checked before anything takes time."""
    from protofl.errors import UsageError

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out {out} is no HTML file", do="give a name that ends in .html")
    if out is None:
        one = len(runs) == 1 and (runs[0] / "config.json").is_file()
        name = runs[0].resolve().name if one else (study or "").removesuffix(".toml")
        out = Path(re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "report")
        out = out.with_name(f"{out.name}.html")
    return checked("--out", out, force=force)
