"""``protofl compare``: runs beside each other, and whether they differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl_cli import render
from protofl_cli.options import DataDir, Debug, TrustCode
from protofl_cli.overwriting import Force, checked
from protofl_cli.study_options import (
    COLUMNS,
    DATASET,
    FILE,
    ONLY,
    SCALE,
    SET,
    TRIALS,
    VARIANT,
    change_of,
    which,
)

if TYPE_CHECKING:
    from protofl_workbench.comparing.comparison import Comparison
    from protofl_workbench.studies.study import Study

FORMATS = ("table", "md", "csv", "tex", "json")


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Run folders, or folders of runs; or a study: PAPER/NAME, FILE.toml.",
        ),
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
            "--baseline", metavar="METHOD", help="Default: local, then fedavg, otherwise the first"
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
    scale: Annotated[str | None, SCALE] = None,
    variant: Annotated[str | None, VARIANT] = None,
    only: Annotated[str | None, ONLY] = None,
    columns: Annotated[str | None, COLUMNS] = None,
    trials: Annotated[int | None, TRIALS] = None,
    dataset: Annotated[list[str] | None, DATASET] = None,
    file: Annotated[list[str] | None, FILE] = None,
    set_: Annotated[list[str] | None, SET] = None,
    runs_folder: Annotated[
        Path | None, which("runs", "DIR", "Where a study's runs are (default: runs)")
    ] = None,
    data_dir: DataDir = None,
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
    trust_code: TrustCode = None,
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
        given = {
            "figures": figure or (), "target": target, "baseline": baseline, "unpaired": unpaired,
            "by": group_by or (), "rounds": rounds, "confidence": confidence,
        }  # fmt: skip
        of_study = {
            "scale": scale, "variant": variant, "only": only, "columns": columns, "set_": set_,
            "trials": trials, "dataset": dataset, "file": file, "data_dir": data_dir,
        }  # fmt: skip
        found = _compared(runs, given, runs_folder, of_study)
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


def _compared(
    runs: list[str], given: dict[str, Any], folder: Path | None, of_study: dict[str, Any]
) -> Comparison:
    """The comparison of runs, or of the one study that is named.

    Args:
        runs: What is named.
        given: What `comparing.compare` takes.
        folder: ``--runs``.
        of_study: Other options that are of a study alone.
    """
    from protofl.errors import UsageError
    from protofl_workbench.comparing.compare import compare as compared

    study = _study(runs)
    if study is None:
        for name, value in {"runs": folder, **of_study}.items():
            if value is not None:
                flag = f"--{name.rstrip('_').replace('_', '-')}"
                raise UsageError(f"{flag} is of a study, and runs were given", do="leave it out")
        return compared(runs, **given)
    from protofl_workbench.studies.study_interface import compare_study

    options = {"data_dir": of_study.pop("data_dir")}
    change = change_of(options, rounds=given["rounds"], **of_study)
    return compare_study(study, change, folder or Path("runs"), **given)


def _study(runs: list[str]) -> Study | None:
    """The study that is named; None where folders are.

    Raises:
        UsageError: There are several, or runs beside it; or its file is none of a study.
    """
    from protofl.errors import UsageError

    named = [n for n in runs if n.endswith(".toml") or not Path(n).expanduser().exists()]
    if not named:
        return None
    from protofl_workbench.studies.finding import find_study

    found = []
    for name in named:
        try:
            found.append(find_study(name))
        except UsageError as error:
            if name.endswith(".toml") or error.near.startswith("did you mean"):
                raise
    if found and len(runs) > 1:
        raise UsageError(
            f"{found[0].name} is a study, and there is more to compare",
            "its rows are compared with each other",
            "give one study, or runs",
        )
    return found[0] if found else None


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
    from protofl_workbench.comparing.comparison import sheets

    for sheet in sheets(found):
        render.table(
            sheet.columns, sheet.rows, title=sheet.title, right=sheet.columns[1:], wrap=True
        )
    for note in found.notes:
        render.text(note, "dim")
