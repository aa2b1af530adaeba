"""``protofl plot``: a picture of runs, for a paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl_cli import observed_pictures, render
from protofl_cli.options import Debug, TrustCode
from protofl_cli.overwriting import Force, checked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofl.runs.recorded_run import Run
    from protofl_workbench.comparing.run_groups import Group

KINDS = {
    "curve": "a figure over rounds, MB, seconds or FLOPs, with bands over trials",
    "bars": "a figure of each method with its deviation over trials",
    "differences": "differences to a baseline with intervals, as protofl compare counts them",
    "clients": "the accuracy of each client: sorted, boxes or points",
    "traffic": "bytes sent and received in a round",
    "time": "seconds of a round by stage",
    "confusion": "which class is taken for which (of a run with --metrics confusion)",
    "split": "samples of each class at each client",
    **observed_pictures.KINDS,
}
"""What can be drawn."""

TAKES = {
    "curve": ("y", "x", "band", "log_x", "target", "y_range"),
    "bars": ("figure",),
    "differences": ("figure", "baseline"),
    "clients": ("as_", "at"),
    "confusion": ("trial",),
    "split": ("trial",),
    **observed_pictures.TAKES,
}
"""The options of a kind that others don't have."""

ONE = ("confusion", "split", *observed_pictures.KINDS)
"""Kinds that show one run."""


def plot(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=", ".join(KINDS))],
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="A .pdf, .png or .svg file (default: KIND.png)"),
    ] = None,
    y: Annotated[
        str | None,
        typer.Option(
            "--y",
            metavar="FIGURE",
            help="curve: accuracy (the default), loss, worst, macro-f1, …, or as it stands in the "
            "record: loss_terms.align",
        ),
    ] = None,
    x: Annotated[
        str | None,
        typer.Option(
            "--x",
            metavar="WHAT",
            help="curve: rounds (the default), mb, upload-mb, seconds, flops or virtual",
        ),
    ] = None,
    log_x: Annotated[
        bool | None, typer.Option("--log-x", help="curve: a logarithmic x axis.")
    ] = None,
    band: Annotated[
        str | None,
        typer.Option(
            "--band", metavar="WHAT", help="curve: std (the default), range, trials or none"
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", metavar="SHARE", help="curve: a line at an accuracy, 0.8"),
    ] = None,
    y_range: Annotated[
        str | None,
        typer.Option(
            "--y-range", metavar="LOW,HIGH", help="curve: the part of y that is shown, 0.9,0.95"
        ),
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(
            "--figure",
            metavar="FIGURE",
            help="bars, differences: final (the default), best, validation, worst, macro-f1, …",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="METHOD",
            help="differences: the baseline (default: local, then fedavg, otherwise the first)",
        ),
    ] = None,
    as_: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="FORM",
            help="clients: sorted (the default), box or strip; similarity: pearson (the default), "
            "spearman or cka",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="ROUND",
            help="clients: final (the default), best (on test samples) or validation",
        ),
    ] = None,
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial", metavar="N", min=0, help="of kinds that show one run: which (default: 0)"
        ),
    ] = None,
    round_: Annotated[
        int | None,
        typer.Option(
            "--round",
            metavar="N",
            min=1,
            help="margins, similarity, prototypes, features, images: which (default: the last)",
        ),
    ] = None,
    group_by: Annotated[
        list[str] | None,
        typer.Option(
            "--group-by",
            metavar="OPTION",
            help="Group runs by method, lr, tau, …, or run for each by itself; repeatable "
            "(default: by what differs)",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="TEXT", help="A group's name, in their order; repeatable."),
    ] = None,
    width: Annotated[
        str,
        typer.Option("--width", metavar="WIDTH", help="column (3.3 in), page (6.9 in) or inches"),
    ] = "column",
    font: Annotated[str, typer.Option("--font", metavar="FONT", help="serif or sans")] = "serif",
    force: Force = False,
    trust_code: TrustCode = None,
    debug: Debug = False,
) -> None:
    """Draw runs for a paper.

    Kinds: curve, bars, differences, clients, traffic, time; of one run confusion, split, and of
    what it has observed margins, margin-curves, distances, alignment, drift, similarity,
    prototypes, features, images. Runs that differ in nothing but seeds are one group: a mean and a
    band. Trials of a run are that too.
    """
    given = {
        "y": y, "x": x, "log_x": log_x, "band": band, "target": target,
        "y_range": None if y_range is None else _range(y_range), "figure": figure,
        "baseline": baseline, "as_": as_, "at": at, "trial": trial,
        "round": round_ and round_ - 1,
    }  # fmt: skip
    options = _options(kind, given, bool(group_by or label))
    target_file = _target(kind, out, force)
    with render.waiting("drawing"):
        from protofl_workbench import plots
        from protofl_workbench.comparing.run_groups import runs_in, state_notes

        own = [run for folder in runs for run in runs_in(folder)]
        notes = state_notes(own)
        made = _draw(kind, own, options, group_by or (), label or (), _width(width), font, notes)
        plots.save(made, target_file)
    render.line(f"picture: {target_file}")
    for line in notes:
        render.text(line, "dim")


def _options(kind: str, given: dict[str, Any], groups: bool) -> dict[str, Any]:
    """What was given for a kind; what belongs to another one is an error."""
    from protofl.errors import UsageError, unknown

    if kind not in KINDS:
        raise unknown("kind of picture", kind, KINDS, "see protofl plot --help")
    there = {key: value for key, value in given.items() if value is not None}
    for key in there.keys() - {*TAKES.get(kind, ())}:
        flag = "--" + key.rstrip("_").replace("_", "-")
        whose = [name for name, keys in TAKES.items() if key in keys]
        raise UsageError(
            f"{flag} is none of {kind}", f"it belongs to {' and '.join(whose)}", "leave it out"
        )
    if kind in ONE and groups:
        raise UsageError(f"--group-by and --label are none of {kind}", do="leave them out")
    return there


def _target(kind: str, out: Path | None, force: bool) -> Path:
    """The picture's file, checked before anything takes time."""
    from protofl_workbench.plots.figure_files import format_of

    path = out or Path(f"{kind}.png")
    format_of(path)
    return checked("--out", path, force=force)


def _width(text: str) -> Any:  # noqa: ANN401 - a word or inches
    from protofl.errors import UsageError

    try:
        inches = float(text)
    except ValueError:
        return text
    if not 1 <= inches <= 40:
        raise UsageError(f"--width {text}", "1 to 40 inches", "or column, or page")
    return inches


def _range(text: str) -> tuple[float, float]:
    from protofl.errors import UsageError

    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise UsageError(f"--y-range {text}", "it is LOW,HIGH", "write: 0.9,0.95") from None
    return low, high


def _draw(
    kind: str,
    runs: Sequence[Run],
    options: dict[str, Any],
    by: Sequence[str],
    labels: Sequence[str],
    width: Any,  # noqa: ANN401 - a word or inches
    font: Any,  # noqa: ANN401 - checked where it is used
    notes: list[str],
) -> Figure:
    from protofl_workbench import plots

    if kind in ONE:
        own = _only(kind, runs)
        if kind == "split":
            return plots.split(own, **options)
        if kind in observed_pictures.KINDS:
            return observed_pictures.draw(kind, own, options, width, font)
        return plots.confusion(own, **options, width=width, font=font)
    if kind == "differences":
        groups = _groups(runs, by, labels, notes) if labels else []
        named = {group.label: group.runs for group in groups}
        return plots.differences(named or runs, by=by, **options, width=width, font=font)
    names = {"log_x": "log", "as_": "kind", "at": "when"}
    asked = {names.get(key, key): value for key, value in options.items()}
    draw: dict[str, Callable[..., Figure]] = {
        "curve": plots.curve, "bars": plots.bars, "clients": plots.clients,
        "traffic": plots.traffic, "time": plots.stages,
    }  # fmt: skip
    return draw[kind](_groups(runs, by, labels, notes), **asked, width=width, font=font)


def _only(kind: str, runs: Sequence[Run]) -> Run:
    from protofl.errors import UsageError

    if len(runs) > 1:
        raise UsageError(
            f"{kind} shows one run, and {len(runs)} were given",
            f"they are {', '.join(str(run.folder) for run in runs[:4])}"
            + (", …" if len(runs) > 4 else ""),
            "give the folder of one",
        )
    return runs[0]


def _groups(
    runs: Sequence[Run], by: Sequence[str], labels: Sequence[str], notes: list[str]
) -> list[Group]:
    """The runs by groups, with the names that were given for them; what is left out is noted."""
    from dataclasses import replace

    from protofl.errors import UsageError
    from protofl_workbench.comparing.run_groups import grouped, no_rounds_error, without_copies

    found = without_copies(grouped(runs, by), notes)
    if not any(group.trials for group in found):
        raise no_rounds_error(runs)
    if labels and len(labels) != len(found):
        raise UsageError(
            f"{len(labels)} --label, and there are {len(found)} groups",
            f"they are: {'; '.join(group.label for group in found)}",
            "give a label for each, in this order",
        )
    named = [replace(group, label=own) for group, own in zip(found, labels, strict=False)]
    return named or found
