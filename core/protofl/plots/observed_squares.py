"""What a run has observed as squares: similarities between clients, and generated images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protofl.errors import UsageError, unknown
from protofl.plots.observations import names_of, observed_of
from protofl.plots.style import (
    COLOURS,
    FAINT,
    GROUND,
    INK,
    SMALL,
    TEXT,
    canvas,
    inches_of,
    words,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofl.recorded.run import Run

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
    from protofl.observing import figures

    if kind not in MEASURES:
        raise unknown("measure of similarity", kind, MEASURES)
    seen = observed_of(run).prototypes(round, trial)
    if not seen.who:
        raise UsageError(f"no client sent prototypes in round {seen.round}")
    who, found = figures.similarity(seen, kind)  # type: ignore[arg-type]  # one of these, as seen
    made, axes = canvas(width, 0.86 * inches_of(width), font)
    axes.grid(visible=False)
    low = 0.0 if kind == "cka" else -1.0  # what is not known, of too few shared classes, is grey
    shades = _shades(*((COLOURS[1],) if low < 0 else ()), GROUND, COLOURS[0])
    picture = axes.imshow(found, cmap=shades, vmin=low, vmax=1, interpolation="nearest")
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


def images(
    run: Run | str | Path,
    rounds: list[int] | None = None,
    trial: int = 0,
    *,
    width: str | float = "page",
    font: str = "serif",
) -> Figure:
    """Draw the images that the server has sent: a row for each round, a column for each class.

    Args:
        run: A run with ``--observe images``, or its folder.
        rounds: The rounds, from 0; five over the run where None.
        trial: The trial.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: No images were observed in one of them.
    """
    observed = observed_of(run)
    have = [r for r in observed.rounds(trial) if "images" in observed.kinds(r, trial)]
    if rounds is None:
        steps = np.linspace(0, len(have) - 1, min(5, len(have))).round().astype(int)
        rounds = [have[step] for step in steps] or [-1]
    found = [observed.images(round, trial) for round in rounds]
    names = names_of(run, trial)
    columns = sorted({int(c) for seen in found for c in seen.classes})
    inches = inches_of(width)
    cell = (inches - 0.55) / len(columns)
    made, first = canvas(width, (cell + 0.04) * len(found) + 0.22, font)
    first.remove()
    axes = made.subplots(len(found), len(columns), squeeze=False)
    for row, seen in zip(axes, found, strict=True):
        pictures = dict(zip(seen.classes.tolist(), seen.images, strict=True))
        for axis, c in zip(row, columns, strict=True):
            axis.set(xticks=[], yticks=[])
            for spine in axis.spines.values():
                spine.set_visible(False)
            if c in pictures:
                shown = pictures[c].transpose(1, 2, 0)
                grey = {"cmap": "gray", "vmin": 0, "vmax": 255} if shown.shape[2] == 1 else {}
                axis.imshow(shown.squeeze() if grey else shown, interpolation="nearest", **grey)
        row[0].set_ylabel(f"round {seen.round + 1}", **words(font, SMALL))
    for axis, c in zip(axes[0], columns, strict=True):
        axis.set_title(names[c][:12], pad=2, **words(font, SMALL))
    return made


def _shades(*colours: str) -> Any:  # noqa: ANN401 - a map of colours
    """From colour to colour; grey where there is no number."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shades", list(colours)).with_extremes(bad=FAINT)
