"""``protofl plot``: figures of runs for papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from protofl_cli.options.options import Debug, Label, Order, TrustCode, option
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.screens import observed_pictures, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofl_workbench.comparing.run_groups import Group
    from protofl_workbench.recorded.recorded_run import Run

KINDS = {
    "curve": "figure over rounds, MB, seconds or FLOPs, with bands over trials",
    "bars": "figure of each method with its deviation over trials",
    "differences": "differences to a baseline with intervals, as in protofl compare",
    "clients": "accuracy of each client: sorted, boxes or points",
    "traffic": "bytes sent and received in a round",
    "time": "seconds of a round by stage",
    "confusion": "confusion matrix (of a run with --metrics confusion or --record-predictions "
    "last), of all clients or of each client (with --record-predictions last)",
    "calibration": "accuracy by confidence (of a run with --metrics calibration)",
    "split": "samples of each class at each client",
    **observed_pictures.KINDS,
}
"""Kinds of pictures."""

TAKES = {
    "curve": ("y", "x", "band", "log_x", "target", "y_range"),
    "bars": ("figure",),
    "differences": ("figure", "baseline"),
    "clients": ("at",),
    "confusion": ("trial", "as_", "at"),
    "calibration": ("trial",),
    "split": ("trial",),
    **observed_pictures.TAKES,
}
"""{kind: its own options}."""

ONE = ("confusion", "calibration", "split", *observed_pictures.KINDS)
"""Kinds that show a single run."""


class Naming(NamedTuple):
    """Values of --group-by, --label and --order."""

    by: Sequence[str]
    labels: Sequence[str]
    order: str


def plot(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=", ".join(KINDS))],
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, or folders of runs."),
    ],
    out: Annotated[
        Path | None,
        option("--out", "FILE", "File: .pdf, .png or .svg; embedding: .gif (default: KIND.png)"),
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
    log_x: Annotated[
        bool | None, typer.Option("--log-x", help="curve: Use a logarithmic x axis.")
    ] = None,
    band: Annotated[
        str | None, option("--band", "WHAT", "curve: std, range, trials or none (default: std)")
    ] = None,
    target: Annotated[
        float | None, option("--target", "SHARE", "curve: Draw a line at this accuracy: 0.8")
    ] = None,
    y_range: Annotated[
        str | None, option("--y-range", "LOW,HIGH", "curve: Visible part of the y axis: 0.9,0.95")
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
    as_: Annotated[
        str | None,
        option(
            "--as",
            "FORM",
            "similarity: pearson, spearman or cka; confusion: all or each client (default: the "
            "first)",
        ),
    ] = None,
    at: Annotated[
        str | None,
        option(
            "--at",
            "ROUND",
            "clients: final, best (on test samples) or validation; confusion: last, best or "
            "validation (default: final or last)",
        ),
    ] = None,
    trial: Annotated[
        int | None, option("--trial", "N", "Kinds with a single run: Trial (default: 0)", min=0)
    ] = None,
    round_: Annotated[
        int | None,
        option(
            "--round",
            "N",
            "margins, similarity, prototypes, features, images: Round (default: the last)",
            min=1,
        ),
    ] = None,
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
    width: Annotated[
        str | None,
        option(
            "--width", "WIDTH", "Width: column (3.3 in), page (6.9 in) or inches (default: column)"
        ),
    ] = None,
    for_: Annotated[
        str | None,
        option(
            "--for",
            "PAPER",
            "Width and sizes of letters of a paper: icml-column, icml-text, neurips-text, "
            "iclr-text, cvpr-column, cvpr-text, eccv-text, ieee-column, ieee-text, acm-column, "
            "acm-text, aaai-column, aaai-text, jmlr-text or tmlr-text",
        ),
    ] = None,
    font: Annotated[str, option("--font", "FONT", "Font: serif or sans")] = "serif",
    force: Force = False,
    trust_code: TrustCode = None,
    debug: Debug = False,
) -> None:
    """Draw a figure of runs for a paper.

    Trials, and runs that differ only in their seeds, are one group with a mean and a band. The
    kinds confusion and split show a single run, and so do the kinds for runs with --observe:
    margins, margin-curves, distances, alignment, drift, similarity, prototypes, features, images.
    """
    arguments = {
        "y": y, "x": x, "log_x": log_x, "band": band, "target": target,
        "y_range": None if y_range is None else _range(y_range), "figure": figure,
        "baseline": baseline, "as_": as_, "at": at, "trial": trial,
        "round": round_ and round_ - 1,
    }  # fmt: skip
    options = _options(kind, arguments, bool(group_by or label or order))
    size, target_file = _width(width, for_), _target(kind, out, force)
    with render.waiting("drawing"):
        from protofl_workbench.comparing.run_groups import runs_in, sound_runs, state_notes
        from protofl_workbench.plots.figure_files import save, save_animation

        if kind == "embedding":
            from protofl_workbench.plots.embedding_animation import embedding

            run = _only(kind, [run for folder in runs for run in runs_in(folder)])
            frames = embedding(run, **options, width=size, font=font)
            save_animation(frames, target_file)
            render.line(f"animation: {target_file} ({len(frames)} rounds)")
            return
        damaged: list[str] = []
        usable = sound_runs((run for folder in runs for run in runs_in(folder)), damaged)
        notes = damaged + state_notes(usable)
        names = Naming(group_by or (), label or (), order)
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
        flag = "--" + key.rstrip("_").replace("_", "-")
        whose = [name for name, keys in TAKES.items() if key in keys]
        raise UsageError(
            f"{kind} has no option {flag}", f"it belongs to {' and '.join(whose)}", "leave it out"
        )
    if kind in ONE and groups:
        raise UsageError(
            f"{kind} has no options --group-by, --label and --order", do="leave them out"
        )
    return there


def _target(kind: str, out: Path | None, force: bool) -> Path:
    """Check the file before any long step."""
    from protofl_workbench.plots.figure_files import check_is_gif, format_of

    path = out or Path(f"{kind}.{'gif' if kind == 'embedding' else 'png'}")
    (check_is_gif if kind == "embedding" else format_of)(path)
    return checked("--out", path, force=force)


def _width(text: str | None, paper: str | None) -> Any:  # noqa: ANN401 - a word or inches
    """Return the width of ``--width`` or ``--for``.

    Raises:
        UsageError: Both are given, the paper is unknown, or the inches are not possible.
    """
    from protofl.errors import UsageError, unknown
    from protofl_workbench.plots.style import PAPERS

    if paper is not None:
        if text is not None:
            raise UsageError(
                f"--for {paper} and --width {text} both set the width", do="leave one of them out"
            )
        if paper not in PAPERS:
            venue = paper.partition("-")[0]
            known = [name for name in PAPERS if name.startswith(f"{venue}-")] or PAPERS
            raise unknown("paper of --for", paper, known, "or give the inches: --width 3.4")
        return paper
    if text is None:
        return "column"
    try:
        inches = float(text)
    except ValueError:
        return text
    if not 1 <= inches <= 40:
        raise UsageError(f"--width {text}", "expected 1 to 40 inches, column or page")
    return inches


def _range(text: str) -> tuple[float, float]:
    from protofl.errors import UsageError

    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise UsageError(f"--y-range {text}", "expected LOW,HIGH", "write: 0.9,0.95") from None
    return low, high


def _draw(
    kind: str,
    runs: Sequence[Run],
    options: dict[str, Any],
    names: Naming,
    width: Any,  # noqa: ANN401 - a word or inches
    font: Any,  # noqa: ANN401 - checked where it is used
    notes: list[str],
) -> Figure:
    from protofl_workbench import plots

    if kind in ONE:
        run = _only(kind, runs)
        if kind == "split":
            return plots.split(run, **options)
        if kind in observed_pictures.KINDS:
            return observed_pictures.draw(kind, run, options, width, font)
        if kind == "calibration":
            from protofl_workbench.plots.calibration_chart import calibration

            return calibration(run, **options, width=width, font=font)
        return _confusion(run, options, width, font)
    if kind == "differences":
        from protofl_workbench.comparing.compare import compare

        figure, baseline = options.get("figure", "final"), options.get("baseline", "")
        comparison = compare(
            runs, figure, baseline=baseline, by=names.by, labels=names.labels, order=names.order
        )
        notes += [line for line in comparison.notes if line.startswith(("label: ", "order: "))]
        return plots.differences(comparison, figure, width=width, font=font)
    from protofl_workbench.plots.bar_charts import stages

    keywords = {"log_x": "log", "at": "when"}
    asked = {keywords.get(key, key): value for key, value in options.items()}
    draw: dict[str, Callable[..., Figure]] = {
        "curve": plots.curve, "bars": plots.bars, "clients": plots.clients,
        "traffic": plots.traffic, "time": stages,
    }  # fmt: skip
    return draw[kind](_groups(runs, names, notes), **asked, width=width, font=font)


def _confusion(run: Run, options: dict[str, Any], width: Any, font: Any) -> Figure:  # noqa: ANN401 - as in _draw
    """Draw the confusion of all clients, or of each."""
    from protofl.errors import unknown
    from protofl_workbench.plots.matrices import confusion, confusions

    form = options.pop("as_", "all")
    if form not in ("all", "each"):
        raise unknown("form of --as", form, ("all", "each"))
    draw = confusion if form == "all" else confusions
    return draw(run, **options, width=width, font=font)


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
        in_order,
        label_notes,
        new_labels,
        no_rounds_error,
        places_in,
        with_labels,
        without_copies,
    )

    groups = without_copies(grouped(runs, names.by), notes)
    if not any(group.trials for group in groups):
        raise no_rounds_error(runs)
    group_names = [group.label for group in groups]
    renamed = new_labels(names.labels, group_names)
    if names.order:
        groups = in_order(groups, places_in(group_names, names.order, renamed, notes))
    notes += label_notes(renamed)
    return with_labels(groups, renamed)
