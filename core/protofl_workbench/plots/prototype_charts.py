"""Observed prototypes: their margins, distances and drift.

All charts need a run with ``--observe``; `protofl_workbench.plots.feature_space` computes the
figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from protofl.errors import TooLittle
from protofl_workbench.comparing.run_groups import RunLike, run_in
from protofl_workbench.plots.curves import Curve, curve_chart
from protofl_workbench.plots.style import Style, StyleOptions, class_colours

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def margins(run: RunLike, round: int = -1, trial: int = 0, **style: Unpack[StyleOptions]) -> Figure:
    """Draw the margin of each class on clients and on the server: FedTGP, Fig. 1.

    On the left the largest margin of the clients, on the right the margin of the server's
    prototypes, both divided by the largest of all. Falling lines are margins that shrink.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        round: The round, from 0; -1 for the last observed round.
        trial: The trial.
        **style: ``width``: ``column``, ``page`` or inches; ``font``: ``serif`` or ``sans``.

    Raises:
        UsageError: No prototypes were observed.
    """
    from protofl_workbench.plots import feature_space

    loaded_run = run_in(run)
    by_class = feature_space.margins(loaded_run.observed, trial, round)
    both = np.concatenate([by_class.clients, by_class.server])
    known = np.isfinite(both).all(0)
    if not known.any():
        raise TooLittle("no class has a margin on clients and on the server", do="more classes")
    shares = both / both[:, known].max()
    names, colours = loaded_run.split(trial).classes, class_colours(both.shape[1])
    edge = max(0.02, 0.08 * (1 - shares[:, known].min()))
    low, high = max(0.0, shares[:, known].min() - edge), 1 + edge
    look = Style(**style)
    made, axes = look.canvas(look.height * 1.25)
    for c in np.flatnonzero(known).tolist():
        axes.plot((0, 1), shares[:, c], color=colours[c], marker="o", markersize=3, linewidth=1.2)
    named = np.flatnonzero(known).tolist() if known.sum() <= 20 else []
    for place, side, sign in ((0, "right", -1), (1, "left", 1)):
        for c, y in _separated(named, shares[place], (low, high)):
            axes.text(
                place + sign * 0.05, y, names[c], ha=side, va="center", **look.text(look.small - 1)
            )
    axes.set_xticks((0, 1), ("clients (largest)", "server"))
    axes.set_xlim(-0.45, 1.45)
    axes.set_ylim(low, high)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("margin / largest margin")
    return made


def margin_curves(run: RunLike, trial: int = 0, **style: Unpack[StyleOptions]) -> Figure:
    """Draw margins over rounds as means over classes: the clients' largest, and the server's.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        trial: The trial.
        **style: ``width`` and ``font``, see `margins`.

    Raises:
        UsageError: No prototypes were observed.
    """
    from protofl_workbench.plots import feature_space

    by_class = feature_space.margins(run_in(run).observed, trial)
    tables = {"clients (largest)": by_class.clients, "server": by_class.server}
    return _over_rounds(by_class.rounds, tables, "margin", style)


def distances(run: RunLike, trial: int = 0, **style: Unpack[StyleOptions]) -> Figure:
    """Draw the distances of prototypes over rounds, within classes and between classes.

    Within a class: the mean distance of the clients' prototypes to their mean. Between classes: the
    distances of the server's prototypes, and of each client's own prototypes on average.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        trial: The trial.
        **style: ``width`` and ``font``, see `margins`.

    Raises:
        UsageError: No prototypes were observed.
    """
    from protofl_workbench.plots import feature_space

    observed = run_in(run).observed
    rounds, within = feature_space.intra_class(observed, trial)
    between = feature_space.inter_class(observed, trial)
    tables = {
        "between classes, server": between.server,
        "between classes, clients": between.clients,
        "within classes, over clients": within,
    }
    return _over_rounds(rounds, tables, "distance of prototypes", style)


def alignment(run: RunLike, trial: int = 0, **style: Unpack[StyleOptions]) -> Figure:
    """Draw the distance of the clients' prototypes to the server's over rounds, by architecture.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        trial: The trial.
        **style: ``width`` and ``font``, see `margins`.

    Raises:
        UsageError: No prototypes were observed.
    """
    from protofl_workbench.plots import feature_space

    rounds, distances = feature_space.alignment(run_in(run).observed, trial)
    tables = {name: values[:, None] for name, values in distances.items()}
    return _over_rounds(rounds, tables, "distance to the server's prototypes", style)


def drift(run: RunLike, trial: int = 0, **style: Unpack[StyleOptions]) -> Figure:
    """Draw how far the server's prototypes or anchors move between observed rounds.

    A thin line for each class, and their mean.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        trial: The trial.
        **style: ``width`` and ``font``, see `margins`.

    Raises:
        UsageError: Prototypes of fewer than two rounds were observed.
    """
    from protofl_workbench.plots import feature_space

    rounds, moved = feature_space.drift(run_in(run).observed, trial)
    if not rounds:
        raise TooLittle("expected prototypes of two rounds", "one was observed", "more rounds")
    made = _over_rounds(rounds, {"mean": moved}, "distance moved", style)
    (axes,) = made.axes
    for colour, values in zip(class_colours(moved.shape[1]), moved.T, strict=True):
        axes.plot(np.array(rounds) + 1, values, color=colour, linewidth=0.5, alpha=0.6, zorder=1)
    axes.set_ylim(bottom=0)
    return made


def _over_rounds(rounds: list[int], tables: dict[str, Any], y: str, style: StyleOptions) -> Figure:
    """Draw tables [R, C] as means over their known entries in each round."""
    curves = {}
    for name, values in tables.items():
        table = np.asarray(values, np.float64)
        known = np.isfinite(table).any(1)
        mean = np.array([np.nanmean(row) for row in table[known]])
        if len(mean):
            curves[name] = Curve(np.array(rounds, np.float64)[known] + 1, mean[None])
    if not curves:
        raise TooLittle("there is nothing to draw: no class is known on both sides")
    return curve_chart(curves, y, "round", whole=True, band="none", **style)


def _separated(
    classes: list[int], heights: npt.NDArray[np.float64], bounds: tuple[float, float]
) -> list[tuple[int, float]]:
    """Return heights of labels, moved as little as needed so that no two overlap."""
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
