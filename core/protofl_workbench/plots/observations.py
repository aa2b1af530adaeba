"""What a run has observed, drawn: margins, distances and drift of prototypes.

Each takes a run with ``--observe``; `protofl_workbench.plots.feature_space` computes the figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from protofl.errors import TooLittle
from protofl_workbench.plots.curves import Curve, curve_chart
from protofl_workbench.plots.style import (
    COLOURS,
    SMALL,
    canvas,
    height_of,
    words,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofl.records.recorded.observed import Observed
    from protofl.runs.reuse.run import Run

Floats = npt.NDArray[np.float64]


def margins(
    run: Run | str | Path,
    round: int = -1,
    trial: int = 0,
    *,
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw what becomes of each class's margin on the server: FedTGP, Fig. 1.

    At the left the largest of the clients' margins, at the right that of the server's prototypes
    made of them, both divided by the largest there is. Lines that fall are margins that shrink.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        round: The round, from 0; -1 for the last that was observed.
        trial: The trial.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: No prototypes were observed.
    """
    from protofl_workbench.plots import feature_space as figures

    found = figures.margins(observed_of(run), trial, round)
    both = np.concatenate([found.clients, found.server])
    known = np.isfinite(both).all(0)
    if not known.any():
        raise TooLittle("no class has a margin on clients and on the server", do="more classes")
    shares = both / both[:, known].max()
    names, colours = names_of(run, trial), class_colours(both.shape[1])
    edge = max(0.02, 0.08 * (1 - shares[:, known].min()))
    low, high = max(0.0, shares[:, known].min() - edge), 1 + edge
    made, axes = canvas(width, height_of(width) * 1.25, font)
    for own in np.flatnonzero(known):
        axes.plot(
            (0, 1), shares[:, own], color=colours[own], marker="o", markersize=3, linewidth=1.2
        )
    shown = np.flatnonzero(known).tolist() if known.sum() <= 20 else []
    for place_of, side, sign in ((0, "right", -1), (1, "left", 1)):
        for c, y in _apart(shown, shares[place_of], (low, high)):
            axes.text(
                place_of + sign * 0.05, y, names[c], ha=side, va="center", **words(font, SMALL - 1)
            )
    axes.set_xticks((0, 1), ("clients (largest)", "server"))
    axes.set_xlim(-0.45, 1.45)
    axes.set_ylim(low, high)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("margin / largest margin")
    return made


def margin_curves(
    run: Run | str | Path, trial: int = 0, *, width: str | float = "column", font: str = "serif"
) -> Figure:
    """Draw margins over rounds: mean over classes, the clients' largest and the server's.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        trial: The trial.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: No prototypes were observed.
    """
    from protofl_workbench.plots import feature_space as figures

    found = figures.margins(observed_of(run), trial)
    curves = {
        "clients (largest)": _curve(found.rounds, found.clients),
        "server": _curve(found.rounds, found.server),
    }
    return _over_rounds(curves, "margin", width, font)


def distances(
    run: Run | str | Path, trial: int = 0, *, width: str | float = "column", font: str = "serif"
) -> Figure:
    """Draw over rounds how far prototypes lie apart, within classes and between them.

    Within a class it is the mean distance of the clients' prototypes to their mean; between
    classes that of the server's, and of each client's own on average.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        trial: The trial.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: No prototypes were observed.
    """
    from protofl_workbench.plots import feature_space as figures

    observed = observed_of(run)
    rounds, within = figures.intra_class(observed, trial)
    between = figures.inter_class(observed, trial)
    curves = {
        "between classes, server": _curve(rounds, between.server),
        "between classes, clients": _curve(rounds, between.clients),
        "within classes, over clients": _curve(rounds, within),
    }
    return _over_rounds(curves, "distance of prototypes", width, font)


def alignment(
    run: Run | str | Path, trial: int = 0, *, width: str | float = "column", font: str = "serif"
) -> Figure:
    """Draw over rounds how far clients' prototypes lie from the server's, by architecture.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        trial: The trial.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: No prototypes were observed.
    """
    from protofl_workbench.plots import feature_space as figures

    rounds, found = figures.alignment(observed_of(run), trial)
    curves = {name: _curve(rounds, values[:, None]) for name, values in found.items()}
    return _over_rounds(curves, "distance to the server's prototypes", width, font)


def drift(
    run: Run | str | Path, trial: int = 0, *, width: str | float = "column", font: str = "serif"
) -> Figure:
    """Draw how far the server's prototypes or anchors move from one observed round to the next.

    A thin line for each class, and their mean.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        trial: The trial.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: Prototypes of fewer than two rounds were observed.
    """
    from protofl_workbench.plots import feature_space as figures

    rounds, moved = figures.drift(observed_of(run), trial)
    if not len(rounds):
        raise TooLittle("prototypes of two rounds are needed", "one was observed", "more rounds")
    made = _over_rounds({"mean": _curve(rounds, moved)}, "distance moved", width, font)
    (axes,) = made.axes
    for c, values in enumerate(moved.T):
        colour = class_colours(moved.shape[1])[c]
        axes.plot(np.array(rounds) + 1, values, color=colour, linewidth=0.5, alpha=0.6, zorder=1)
    axes.set_ylim(bottom=0)
    return made


# --- what these share -----------------------------------------------------------------------------


def observed_of(run: Run | str | Path) -> Observed:
    """What a run has observed."""
    from protofl.runs.reuse.run import Run, load_run

    return run.observed if isinstance(run, Run) else load_run(run).observed


def names_of(run: Run | str | Path, trial: int) -> list[str]:
    """The names of a run's classes."""
    from protofl.runs.reuse.run import Run, load_run

    own = run if isinstance(run, Run) else load_run(run)
    return [str(name) for name in own.split(trial).classes]


def class_colours(count: int) -> list[Any]:
    """A colour for each class: ten that are apart for the colour-blind, or a wheel of more."""
    ten = (*COLOURS, "#999933", "#882255", "#44aa99")
    if count <= len(ten):
        return list(ten[:count])
    import matplotlib

    return list(matplotlib.colormaps["turbo"](np.linspace(0.03, 0.97, count)))


def _curve(rounds: list[int], values: Any) -> Curve:  # noqa: ANN401 - an array [R, C]
    """The mean over what there is of each round, of rounds that have anything."""
    table = np.asarray(values, np.float64)
    there = np.isfinite(table).any(1)
    mean = np.array([np.nanmean(row) for row in table[there]])
    return Curve(np.array(rounds, np.float64)[there] + 1, mean[None])


def _over_rounds(curves: dict[str, Curve], y: str, width: str | float, font: str) -> Figure:
    kept = {name: curve for name, curve in curves.items() if len(curve.x)}
    if not kept:
        raise TooLittle("there is nothing to draw: no class is known on both sides")
    return curve_chart(kept, y, "round", whole=True, band="none", width=width, font=font)


def _apart(
    classes: list[int], heights: Floats, bounds: tuple[float, float]
) -> list[tuple[int, float]]:
    """Heights of labels, moved as little as needed to stand above each other within bounds."""
    order = sorted(classes, key=lambda c: heights[c])
    places = np.array([heights[c] for c in order])
    least = 0.048 * (bounds[1] - bounds[0])
    for _ in range(200):
        short = np.clip(least - np.diff(places), 0, None) / 2
        if short.max(initial=0) < 1e-3:
            break
        places[:-1] -= short
        places[1:] += short
    if len(places):
        places -= max(0.0, places[-1] - bounds[1]) + min(0.0, places[0] - bounds[0])
    return list(zip(order, places.tolist(), strict=True))
