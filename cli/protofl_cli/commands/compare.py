"""``protofl compare``: runs beside each other, and whether they differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofl_cli import render
from protofl_cli.options import Debug
from protofl_cli.overwriting import Force, checked

if TYPE_CHECKING:
    from protofl.comparing.comparison import Comparison

FORMATS = ("table", "md", "csv", "tex", "json")


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of runs.")
    ],
    figure: Annotated[
        list[str] | None,
        typer.Option(
            "--figure",
            metavar="FIGURE",
            help="final, best (on test samples), validation, worst, macro-f1, … or FIGURE@best; "
            "repeatable (default: what every run has)",
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            "--target",
            metavar="SHARE",
            help="Rounds, MB, seconds and FLOPs until this test accuracy, such as 0.8",
        ),
    ] = None,
    baseline: Annotated[
        str,
        typer.Option(
            "--baseline", metavar="METHOD", help="What others are held against (default: the first)"
        ),
    ] = "",
    group_by: Annotated[
        list[str] | None,
        typer.Option(
            "--group-by",
            metavar="OPTION",
            help="Group runs by method, lr, tau, …, or run for each by itself; repeatable "
            "(default: by what differs)",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", metavar="N", min=1, help="Read the first N rounds of each run."),
    ] = None,
    unpaired: Annotated[
        bool,
        typer.Option("--unpaired", help="Compare runs on other data, or with other seeds, too."),
    ] = False,
    confidence: Annotated[
        float, typer.Option("--confidence", metavar="SHARE", help="Of the bootstrap intervals.")
    ] = 0.95,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="table, md, csv, tex or json (default: as --out ends, otherwise table)",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it to a file.")
    ] = None,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Compare runs, paired over seeds and splits.

    Runs that differ in nothing but seeds are one group. Each group's mean ± std over trials, and
    its difference to the baseline with Wilcoxon's signed-rank test and a bootstrap interval.
    """
    kind = _format(format_, out)
    if out is not None:
        checked("--out", out, force=force)
    with render.waiting("reading"):
        from protofl.comparing.compare import compare as compared

        found = compared(
            runs,
            figure or (),
            target=target,
            baseline=baseline,
            unpaired=unpaired,
            by=group_by or (),
            rounds=rounds,
            confidence=confidence,
        )
    if kind == "table":
        _show(found)
    elif out is None:
        render.plain([found.text(kind).rstrip("\n")])
    else:
        from protofl.errors import UsageError

        try:
            out.expanduser().write_text(found.text(kind), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out {out} can't be written: {error.strerror or error}") from None
        render.line(f"comparison: {out}")


def _format(given: str | None, out: Path | None) -> str:
    """The format that is asked for."""
    from protofl.errors import UsageError, unknown

    ending = out.suffix.lower().removeprefix(".") if out else ""
    kind = given or ending or "table"
    if kind not in FORMATS:
        if given:
            raise unknown("format", kind, FORMATS)
        raise UsageError(
            f"--out {out}: there is no format {ending!r}", f"known: {', '.join(FORMATS[1:])}"
        )
    if out is not None and kind == "table":
        raise UsageError(
            "--format table is for the screen", f"files are {', '.join(FORMATS[1:])}", "give one"
        )
    return kind


def _show(found: Comparison) -> None:
    from protofl.comparing.tables import sheets

    for sheet in sheets(found):
        render.table(
            sheet.columns, sheet.rows, title=sheet.title, right=sheet.columns[1:], wrap=True
        )
    for note in found.notes:
        render.text(note, "dim")
