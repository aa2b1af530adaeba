"""``protofl compare``: means of runs, and statistical tests of their differences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofl_cli.json.json_output import Json, check_format, print_json, prints_json
from protofl_cli.options.options import Debug, GroupBy, Label, option
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl_workbench.comparing.comparison import Comparison

FORMATS = ("table", "md", "csv", "tex", "json")


@prints_json
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run folders, or folders of runs."),
    ],
    figure: Annotated[
        list[str] | None,
        option(
            "--figure",
            "FIGURE",
            "final, best (on test samples), validation, worst, macro-f1, … or FIGURE@best; "
            "repeatable (default: all figures that every run has)",
        ),
    ] = None,
    target: Annotated[
        float | None,
        option(
            "--target",
            "SHARE",
            "Also compare rounds, MB, seconds and FLOPs until this test accuracy, such as 0.8",
        ),
    ] = None,
    baseline: Annotated[
        str,
        option(
            "--baseline",
            "METHOD",
            "Baseline of the differences (default: local, then fedavg, otherwise the first)",
        ),
    ] = "",
    group_by: GroupBy = None,
    label: Label = None,
    rounds: Annotated[
        int | None, option("--rounds", "N", "Use only the first N rounds of each run.", min=1)
    ] = None,
    confidence: Annotated[
        float, option("--confidence", "SHARE", "Confidence of the intervals.")
    ] = 0.95,
    format_: Annotated[
        str | None,
        option(
            "--format",
            "FORMAT",
            "table, md, csv, tex or json (default: the ending of --out, otherwise table)",
        ),
    ] = None,
    out: Annotated[Path | None, option("--out", "FILE", "Write the comparison to a file.")] = None,
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare runs, paired over seeds and splits.

    Runs that differ only in their seeds are one group. Prints the mean ± std of each group over
    trials, and the difference to the baseline with Wilcoxon's signed-rank test and a confidence
    interval.
    """
    kind = _format(format_, out)
    check_format(format_, as_json=as_json)
    if out is not None:
        checked("--out", out, force=force)
    with render.waiting("reading"):
        from protofl_workbench.comparing.compare import compare as compared

        comparison = compared(
            runs,
            figure or (),
            target=target,
            baseline=baseline,
            by=group_by or (),
            rounds=rounds,
            confidence=confidence,
            labels=label or (),
        )
    if as_json:
        print_json(comparison.to_values())
    elif kind == "table":
        _show(comparison)
    elif out is None:
        render.plain([comparison.text(kind).rstrip("\n")])
    if out is not None:
        from protofl_workbench.comparing.figure_table import write_output

        write_output(out, comparison.text(kind))
        render.line(f"comparison: {out}")


def _format(requested: str | None, out: Path | None) -> str:
    """Return the requested format."""
    from protofl.errors import UsageError, unknown

    ending = out.suffix.lower().removeprefix(".") if out else ""
    kind = requested or ending or "table"
    if kind not in FORMATS:
        if requested:
            raise unknown("format", kind, FORMATS)
        raise UsageError(
            f"--out {out}: unknown format {ending!r}", f"known: {', '.join(FORMATS[1:])}"
        )
    if out is not None and kind == "table":
        raise UsageError(
            "--format table is only for the screen", f"formats of files: {', '.join(FORMATS[1:])}"
        )
    return kind


def _show(comparison: Comparison) -> None:
    from protofl_workbench.comparing.comparison import sheets

    for sheet in sheets(comparison):
        render.table(
            sheet.columns, sheet.rows, title=sheet.title, right=sheet.columns[1:], wrap=True
        )
    for note in comparison.notes:
        render.text(note, "dim")
