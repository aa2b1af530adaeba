"""``protofl plot``: figures of runs for papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from protofl_cli.options.options import Debug, GroupBy, Label, TrustCode, option
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.screens import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofl_workbench.comparing.run_groups import Group
    from protofl_workbench.recorded.recorded_run import Run

KINDS = {
    "curve": "figure over rounds, MB, seconds or FLOPs, with bands over trials",
    "bars": "figure of each method with its deviation over trials",
    "differences": "differences to a baseline with intervals, as in protofl compare",
    "clients": "accuracy of each client, from the worst to the best",
    "traffic": "bytes sent and received in a round",
    "confusion": "confusion matrix (--metrics confusion or --record-predictions last)",
    "cross": "accuracy of each client's model on the test samples of each client",
    "split": "samples of each class at each client",
    "margins": "margins of clients and server over rounds (--observe prototypes)",
    "prototypes": "t-SNE of the prototypes of clients and the server (--observe prototypes)",
    "features": "t-SNE of test features (--observe features)",
    "images": "generated images by round and class (--observe images)",
}
"""Kinds of pictures."""

ONE = ("confusion", "cross", "split", "margins", "prototypes", "features", "images")
"""Kinds that show a single run."""

TAKES = {
    "curve": ("y", "x", "band", "target"),
    "bars": ("figure",),
    "differences": ("figure", "baseline"),
    **dict.fromkeys(ONE, ("trial",)),
}
"""{kind: its own options}."""


class Naming(NamedTuple):
    """Values of --group-by and --label."""

    by: Sequence[str]
    labels: Sequence[str]


def plot(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=", ".join(KINDS))],
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, or folders of runs."),
    ],
    out: Annotated[
        Path | None,
        option("--out", "FILE", "File: .pdf, .png or .svg (default: KIND.png)"),
    ] = None,
    y: Annotated[
        str | None,
        option(
            "--y",
            "FIGURE",
            "curve: accuracy, loss, worst, macro-f1, … or a name in the record: "
            "loss_terms.align (default: accuracy)",
        ),
    ] = None,
    x: Annotated[
        str | None,
        option(
            "--x",
            "WHAT",
            "curve: rounds, mb, upload-mb, seconds, flops or virtual (default: rounds)",
        ),
    ] = None,
    band: Annotated[
        str | None, option("--band", "WHAT", "curve: std, range, trials or none (default: std)")
    ] = None,
    target: Annotated[
        float | None, option("--target", "SHARE", "curve: Draw a line at this accuracy: 0.8")
    ] = None,
    figure: Annotated[
        str | None,
        option(
            "--figure",
            "FIGURE",
            "bars, differences: final, best, validation, worst, macro-f1, … (default: final)",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        option(
            "--baseline",
            "METHOD",
            "differences: Baseline (default: local, then fedavg, otherwise the first)",
        ),
    ] = None,
    trial: Annotated[
        int | None, option("--trial", "N", "Kinds with a single run: Trial (default: 0)", min=0)
    ] = None,
    group_by: GroupBy = None,
    label: Label = None,
    width: Annotated[
        str | None,
        option(
            "--width",
            "WIDTH",
            "column (3.3 in), page (6.9 in), inches, or the width and letters of a paper: "
            "icml-column, icml-text, neurips-text, iclr-text, cvpr-column, cvpr-text, eccv-text, "
            "ieee-column, ieee-text, acm-column, acm-text, aaai-column, aaai-text, jmlr-text or "
            "tmlr-text (default: column)",
        ),
    ] = None,
    font: Annotated[str, option("--font", "FONT", "Font: serif or sans")] = "serif",
    force: Force = False,
    trust_code: TrustCode = None,
    debug: Debug = False,
) -> None:
    """Draw a figure of runs for a paper.

    Trials, and runs that differ only in their seeds, are one group with a mean and a band. The
    kinds confusion, cross, split, margins, prototypes, features and images show a single run.
    """
    arguments = {
        "y": y, "x": x, "band": band, "target": target, "figure": figure, "baseline": baseline,
        "trial": trial,
    }  # fmt: skip
    options = _options(kind, arguments, bool(group_by or label))
    size, target_file = _width(width), _target(kind, out, force)
    with render.waiting("drawing"):
        from protofl_workbench.comparing.run_groups import runs_in, sound_runs, state_notes
        from protofl_workbench.plots.figure_files import save

        damaged: list[str] = []
        usable = sound_runs((run for folder in runs for run in runs_in(folder)), damaged)
        notes = damaged + state_notes(usable)
        names = Naming(group_by or (), label or ())
        made = _draw(kind, usable, options, names, size, font, notes)
        save(made, target_file)
    render.line(f"picture: {target_file}")
    for line in notes:
        render.text(line, "dim")


def _options(kind: str, arguments: dict[str, Any], groups: bool) -> dict[str, Any]:
    """Return the given options of a kind.

    Raises:
        UsageError: An option belongs to another kind.
    """
    from protofl.errors import UsageError, unknown

    if kind not in KINDS:
        raise unknown("kind of picture", kind, KINDS, "see protofl plot --help")
    there = {key: value for key, value in arguments.items() if value is not None}
    for key in there.keys() - {*TAKES.get(kind, ())}:
        whose = [name for name, keys in TAKES.items() if key in keys]
        raise UsageError(
            f"{kind} has no option --{key}", f"it belongs to {' and '.join(whose)}", "leave it out"
        )
    if kind in ONE and groups:
        raise UsageError(f"{kind} has no options --group-by and --label", do="leave them out")
    return there


def _target(kind: str, out: Path | None, force: bool) -> Path:
    """Check the file before any long step."""
    from protofl_workbench.plots.figure_files import format_of

    path = out or Path(f"{kind}.png")
    format_of(path)
    return checked("--out", path, force=force)


def _width(text: str | None) -> str | float:
    """Return the width in inches, or its name.

    Raises:
        UsageError: The inches are not possible.
    """
    from protofl.errors import UsageError

    try:
        inches = float(text or "column")
    except ValueError:
        return text or "column"
    if not 1 <= inches <= 40:
        raise UsageError(f"--width {text}", "expected 1 to 40 inches, column or page")
    return inches


def _draw(
    kind: str,
    runs: Sequence[Run],
    options: dict[str, Any],
    names: Naming,
    width: str | float,
    font: str,
    notes: list[str],
) -> Figure:
    from protofl_workbench import plots

    if kind in ONE:
        run = _only(kind, runs)
        if kind == "split":
            return plots.split(run, **options)
        from protofl_workbench.plots.observation_charts import CHARTS

        make = {**CHARTS, "confusion": plots.confusion, "cross": plots.cross}[kind]
        return make(run, **options, width=width, font=font)
    if kind == "differences":
        from protofl_workbench.comparing.compare import compare

        figure, baseline = options.get("figure", "final"), options.get("baseline", "")
        comparison = compare(runs, figure, baseline=baseline, by=names.by, labels=names.labels)
        without = f" has no {baseline}: left out"
        notes += [n for n in comparison.notes if n.startswith("label: ") or without in n]
        return plots.differences(comparison, figure, width=width, font=font)
    draw: dict[str, Callable[..., Figure]] = {
        "curve": plots.curve, "bars": plots.bars, "clients": plots.clients,
        "traffic": plots.traffic,
    }  # fmt: skip
    return draw[kind](_groups(runs, names, notes), **options, width=width, font=font)


def _only(kind: str, runs: Sequence[Run]) -> Run:
    from protofl.errors import UsageError

    if len(runs) > 1:
        raise UsageError(
            f"{kind} shows one run, and {len(runs)} were given",
            f"{', '.join(str(run.folder) for run in runs[:4])}{', …' * (len(runs) > 4)}",
            "give the folder of one run",
        )
    return runs[0]


def _groups(runs: Sequence[Run], names: Naming, notes: list[str]) -> list[Group]:
    """Return the groups with the given labels; notes name them, and the runs that are left out."""
    from protofl_workbench.comparing.run_groups import (
        grouped,
        label_notes,
        new_labels,
        no_rounds_error,
        with_labels,
        without_copies,
    )

    groups = without_copies(grouped(runs, names.by), notes)
    if not any(group.trials for group in groups):
        raise no_rounds_error(runs)
    group_names = [group.label for group in groups]
    renamed = new_labels(names.labels, group_names)
    notes += label_notes(renamed)
    return with_labels(groups, renamed)
