"""Squares: confusion matrices, splits, similarities between clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from protofl.errors import TooLittle, UsageError, unknown
from protofl.system.formatting import shortened
from protofl_workbench.comparing.groups import runs_in
from protofl_workbench.plots.observations import observed_of
from protofl_workbench.plots.style import (
    COLOURS,
    GROUND,
    INK,
    SMALL,
    TEXT,
    canvas,
    inches_of,
    shades,
    words,
)

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from protofl.records.folder.result import Result
    from protofl.runs.reuse.run import Run


METRIC = "confusion"
"""The metric that records which class is taken for which (``--metrics confusion``)."""


def confusion(
    run: Run | Result | str | Path,
    trial: int = 0,
    *,
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw which class the test samples of all clients are taken for, in the last evaluation.

    Args:
        run: A run with ``--metrics confusion``, or its folder.
        trial: Its trial.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Returns:
        Rows are true classes, columns what is predicted; shades and numbers are shares of a row
        in %.

    Raises:
        UsageError: The run has not recorded it.
    """
    own = _run(run)
    rows = [row for row in own.rows_of(trial) if METRIC in row.metrics]
    if not rows:
        raise UsageError(
            f"{own.folder} has no confusion matrix of trial {trial}",
            do="it is recorded by a run with --metrics confusion",
        )
    counts = np.array(rows[-1].metrics[METRIC]["all"], dtype=np.float64)
    return matrix(
        counts, list(own.split(trial).classes), "predicted class", "class", width=width, font=font
    )


def matrix(
    counts: npt.NDArray[np.float64],
    names: list[str],
    across: str,
    down: str,
    *,
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw a square table of counts as shares of its rows, in %.

    Args:
        counts: [C, C], ≥ 0.
        names: What the C rows and columns are.
        across: What columns are.
        down: What rows are.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.
    """
    count = len(counts)
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    made, axes = canvas(width, 0.95 * inches_of(width), font)
    axes.grid(visible=False)
    axes.imshow(shares, cmap=shades(GROUND, COLOURS[0]), vmin=0, vmax=100, interpolation="nearest")
    cell = 72 * made.get_figwidth() * 0.72 / count
    if cell >= 11:
        size = min(SMALL, cell * 0.42)
        for row, column in np.argwhere(shares >= 0.5):
            share = shares[row, column]
            axes.text(
                column, row, f"{share:.0f}", ha="center", va="center_baseline",
                **{**words(font, size), "color": GROUND if share > 55 else INK},
            )  # fmt: skip
    short = [shortened(name, 14) for name in names]
    every = max(1, int(np.ceil(SMALL * 1.25 / cell)))
    places = range(0, count, every)
    shown = [short[place] for place in places]
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    straight = max(map(len, shown)) * SMALL * 0.5 <= cell * every
    axes.set_xticks(places, shown, parse_math=False, **({} if straight else turned))
    axes.set_yticks(places, shown, parse_math=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set(visible=True, color=INK, linewidth=0.6)
    axes.set_xlabel(across, fontsize=TEXT)
    axes.set_ylabel(down, fontsize=TEXT)
    return made


def split(run: Run | Result | str | Path, trial: int = 0) -> Figure:
    """Draw how many samples of each class each client had: a bubble's area is their number.

    Args:
        run: A run, or its folder.
        trial: Its trial.

    Raises:
        UsageError: The run has no such trial.
    """
    from protofl.data.picture import split_figure

    own = _run(run)
    held = own.split(trial)
    counts = held.train_counts + held.test_counts
    about = [str(own.config.get(key)).partition(":")[0] for key in ("dataset", "partition")]
    title = " · ".join([*about, f"{len(counts)} clients", f"seed {own.config['seed'] + trial}"])
    return split_figure(counts, list(held.classes), title)


def _run(given: Run | Result | str | Path) -> Run:
    runs = runs_in(given)
    if len(runs) > 1:
        raise UsageError(
            f"{given} holds {len(runs)} runs, and the picture is of one",
            do="give the folder of one",
        )
    return runs[0]


MEASURES = ("pearson", "spearman", "cka")
"""How alike two clients' prototypes are."""


def similarity(
    run: Run | str | Path,
    kind: str = "pearson",
    round: int = -1,
    trial: int = 0,
    *,
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw how alike the prototypes of each pair of clients are.

    Clients of one architecture stand behind each other, with a line between architectures.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        kind: ``pearson``, ``spearman`` or ``cka``, see `functional.client_similarity`.
        round: The round, from 0; -1 for the last that was observed.
        trial: The trial.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: No prototypes were observed, or there is no such measure.
    """
    from protofl_workbench.plots import feature_space as figures

    if kind not in MEASURES:
        raise unknown("measure of similarity", kind, MEASURES)
    seen = observed_of(run).prototypes(round, trial)
    if not seen.who:
        raise TooLittle(f"no client sent prototypes in round {seen.round}")
    who, found = figures.similarity(seen, kind)  # type: ignore[arg-type]  # one of these, as seen
    made, axes = canvas(width, 0.86 * inches_of(width), font)
    axes.grid(visible=False)
    low = 0.0 if kind == "cka" else -1.0  # what is not known, of too few shared classes, is grey
    colours = shades(*((COLOURS[1],) if low < 0 else ()), GROUND, COLOURS[0])
    picture = axes.imshow(found, cmap=colours, vmin=low, vmax=1, interpolation="nearest")
    groups = [seen.architecture_of(client) for client in who]
    for place in range(1, len(who)):
        if groups[place] != groups[place - 1] and len(set(groups)) < len(who):
            axes.axhline(place - 0.5, color=INK, linewidth=0.5)
            axes.axvline(place - 0.5, color=INK, linewidth=0.5)
    every = max(1, len(who) // 20)
    places = range(0, len(who), every)
    axes.set_xticks(places, [str(who[place]) for place in places])
    axes.set_yticks(places, [str(who[place]) for place in places])
    axes.tick_params(length=0)
    axes.set_xlabel("client", fontsize=TEXT)
    axes.set_ylabel("client", fontsize=TEXT)
    bar = made.colorbar(picture, ax=axes, shrink=0.85, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(
        width=0.6, length=2, labelsize=SMALL, labelfontfamily=words(font)["fontfamily"]
    )
    title = {"pearson": "Pearson's r", "spearman": "Spearman's ρ", "cka": "linear CKA"}[kind]
    bar.set_label(title, **words(font, TEXT))
    return made
