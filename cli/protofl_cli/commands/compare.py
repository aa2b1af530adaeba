"""``protofl compare``: means of runs, and statistical tests of their differences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl.system.files.home import expand_user
from protofl_cli.json.json_output import Json, check_format, print_json, prints_json
from protofl_cli.options.options import DataDir, Debug, Label, Order, TrustCode, option
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.options.reproduction_options import (
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
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl_workbench.comparing.comparison import Comparison
    from protofl_workbench.reproductions.reproduction import Reproduction

FORMATS = ("table", "md", "csv", "tex", "json")


@prints_json
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Run folders, folders of runs, or one reproduction: PAPER/NAME or FILE.toml.",
        ),
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
    group_by: Annotated[
        list[str] | None,
        option(
            "--group-by",
            "OPTION",
            "Option to group runs by: method, lr, tau, …, or run for a group per run; "
            "repeatable (default: all options that differ)",
        ),
    ] = None,
    label: Label = None,
    order: Order = "",
    rounds: Annotated[
        int | None, option("--rounds", "N", "Use only the first N rounds of each run.", min=1)
    ] = None,
    unpaired: Annotated[
        bool,
        typer.Option(
            "--unpaired", help="Also compare runs on different data or with different seeds."
        ),
    ] = False,
    test: Annotated[
        str,
        option(
            "--test",
            "NAME",
            "wilcoxon compares trials; mcnemar compares test samples, of runs with "
            "--record-predictions",
        ),
    ] = "wilcoxon",
    round_: Annotated[
        str,
        option(
            "--round",
            "ROUND",
            "With --test mcnemar: last, best (on test samples) or validation (default: last)",
        ),
    ] = "",
    confidence: Annotated[
        float, option("--confidence", "SHARE", "Confidence of the intervals.")
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
        Path | None, which("--runs", "DIR", "Folder with the reproduction's runs (default: runs)")
    ] = None,
    data_dir: DataDir = None,
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
    trust_code: TrustCode = None,
    debug: Debug = False,
) -> None:
    """Compare runs, paired over seeds and splits.

    Runs that differ only in their seeds are one group. Prints the mean ± std of each group over
    trials, and the difference to the baseline with Wilcoxon's signed-rank test and a confidence
    interval, or with McNemar's test over recorded predictions.
    """
    kind = _format(format_, out)
    check_format(format_, as_json=as_json)
    if out is not None:
        checked("--out", out, force=force)
    with render.waiting("reading"):
        arguments = {
            "figures": figure or (), "target": target, "baseline": baseline, "unpaired": unpaired,
            "by": group_by or (), "rounds": rounds, "confidence": confidence,
            "labels": label or (), "test": test, "round": round_,
            "order": order,
        }  # fmt: skip
        of_reproduction = {
            "scale": scale, "variant": variant, "only": only, "columns": columns, "set_": set_,
            "trials": trials, "dataset": dataset, "file": file, "data_dir": data_dir,
        }  # fmt: skip
        comparison = _compared(runs, arguments, runs_folder, of_reproduction)
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


def _compared(
    runs: list[str], arguments: dict[str, Any], folder: Path | None, of_reproduction: dict[str, Any]
) -> Comparison:
    """Return the comparison of runs, or of a reproduction.

    Args:
        runs: Folders or a reproduction.
        arguments: Arguments of `protofl.compare`.
        folder: ``--runs``.
        of_reproduction: Further options that apply only to a reproduction.
    """
    from protofl.errors import UsageError
    from protofl_workbench.comparing.compare import compare as compared

    reproduction = _reproduction(runs)
    if reproduction is None:
        for name, value in {"runs": folder, **of_reproduction}.items():
            if value is not None:
                flag = f"--{name.rstrip('_').replace('_', '-')}"
                raise UsageError(
                    f"{flag} applies only to a reproduction, and runs were given", do="leave it out"
                )
        return compared(runs, **arguments)
    from protofl_workbench.reproductions.reproduction_interface import compare_reproduction

    options = {"data_dir": of_reproduction.pop("data_dir")}
    change = change_of(options, rounds=arguments["rounds"], **of_reproduction)
    return compare_reproduction(reproduction, change, folder or Path("runs"), **arguments)


def _reproduction(runs: list[str]) -> Reproduction | None:
    """Return the reproduction among the arguments; None if all are folders.

    Raises:
        UsageError: There are several arguments with a reproduction, or the file is not a
            reproduction.
    """
    from protofl.errors import UsageError

    named = [n for n in runs if n.endswith(".toml") or not expand_user(n).exists()]
    if not named:
        return None
    from protofl_workbench.reproductions.finding import find_reproduction

    reproductions = []
    for name in named:
        try:
            reproductions.append(find_reproduction(name))
        except UsageError as error:
            if name.endswith(".toml") or error.near.startswith("did you mean"):
                raise
    if reproductions and len(runs) > 1:
        raise UsageError(
            f"{reproductions[0].name} is a reproduction, and other arguments were given",
            "the rows of one reproduction are compared with each other",
            "give one reproduction, or runs",
        )
    return reproductions[0] if reproductions else None


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
