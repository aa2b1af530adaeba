"""What a run has observed as squares: similarities between clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.errors import TooLittle, unknown
from protofl.plots.observations import observed_of
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
        raise TooLittle(f"no client sent prototypes in round {seen.round}")
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


def _shades(*colours: str) -> Any:  # noqa: ANN401 - a map of colours
    """From colour to colour; grey where there is no number."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shades", list(colours)).with_extremes(bad=FAINT)
