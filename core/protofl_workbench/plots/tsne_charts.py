"""Prototypes and features in the plane, by t-SNE: FedTGP, Figs. 5 and 6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np
import numpy.typing as npt

from protofl_workbench.comparing.run_groups import RunLike, run_in
from protofl_workbench.plots.style import (
    INK,
    Style,
    StyleOptions,
    class_colours,
    hide_frame,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 3000
"""Largest number of points; of more points, a random part is drawn."""

NAMED = 20
"""Largest number of classes whose names are in the figure."""

Floats = npt.NDArray[np.float64]


def prototypes(
    run: RunLike,
    round: int = -1,
    trial: int = 0,
    *,
    seed: int = 0,
    perplexity: float = 30.0,
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw the clients' and the server's prototypes in the plane (t-SNE): FedTGP, Fig. 5.

    Circles are prototypes of clients, triangles those of the server, colours are classes. The
    figure shows which groups exist; distances between groups and their sizes have no meaning.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        round: The round, from 0; -1 for the last observed round.
        trial: The trial.
        seed: Seed of the t-SNE.
        perplexity: Approximate number of neighbours of a point.
        **style: ``width``: ``column``, ``page`` or inches; ``font``: ``serif`` or ``sans``.

    Raises:
        UsageError: No prototypes were observed, or too few.
    """
    loaded_run = run_in(run)
    seen = loaded_run.observed.prototypes(round, trial)
    none = seen.rows[:0], seen.classes[:0]
    centres, kinds = seen.server.get("prototypes", none)
    if centres.shape[1:] != seen.rows.shape[1:]:
        centres, kinds = none
    rows, classes = np.concatenate([seen.rows, centres]), np.concatenate([seen.classes, kinds])
    markers = ["o"] * len(seen.rows) + ["^"] * len(centres)
    names = loaded_run.split(trial).classes
    return _plane(rows, classes, markers, names, seen.num_classes, seed, perplexity, style)


def features(
    run: RunLike,
    round: int = -1,
    trial: int = 0,
    *,
    seed: int = 0,
    perplexity: float = 30.0,
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw the features of all clients' test samples in the plane (t-SNE): FedTGP, Fig. 6.

    Args:
        run: A run with ``--observe features``, or its folder.
        round: The round, from 0; -1 for the last observed round.
        trial: The trial.
        seed: Seed of the t-SNE.
        perplexity: Approximate number of neighbours of a point.
        **style: ``width`` and ``font``, see `prototypes`.

    Raises:
        UsageError: No features were observed, or too few.
    """
    loaded_run = run_in(run)
    seen = loaded_run.observed.features(round, trial)
    rows, labels = seen.rows, seen.labels
    if len(rows) > MOST:
        chosen = np.random.default_rng(seed).choice(len(rows), MOST, replace=False)
        rows, labels = rows[np.sort(chosen)], labels[np.sort(chosen)]
    markers, names = ["."] * len(rows), loaded_run.split(trial).classes
    return _plane(rows, labels, markers, names, seen.num_classes, seed, perplexity, style)


def _plane(
    rows: npt.NDArray[np.float32],
    classes: npt.NDArray[np.int64],
    markers: Sequence[str],
    names: Sequence[str],
    num_classes: int,
    seed: int,
    perplexity: float,
    style: StyleOptions,
) -> Figure:
    """Draw a t-SNE of rows with a marker each, and the names of up to `NAMED` classes.

    Names are above triangles if there are any, otherwise at the medoids of the classes. The axes
    have no ticks, because coordinates of a t-SNE have no meaning.
    """
    from protofl_workbench.plots.feature_space import in_the_plane

    plane = in_the_plane(rows, seed, perplexity)
    look, colours = Style(**style), np.array(class_colours(num_classes), object)
    made, axes = look.canvas(0.9 * look.inches)
    hide_frame(axes)
    small = 7 if len(rows) < 800 else 4
    for marker, size, about in (
        (".", small, {"linewidths": 0, "alpha": 0.7}),
        ("o", 14, {"linewidths": 0, "alpha": 0.75, "label": "client prototypes"}),
        ("^", 42, {"edgecolors": INK, "linewidths": 0.8, "label": "server's prototypes"}),
    ):
        has_marker = np.array(markers) == marker
        if has_marker.any():
            x, y = plane[has_marker].T
            shape = "o" if marker == "." else marker
            axes.scatter(x, y, s=size, c=list(colours[classes[has_marker]]), marker=shape, **about)
    named = np.array(markers) == "^"
    if named.any():
        for c, point in zip(classes[named].tolist(), plane[named], strict=True):
            if named.sum() <= NAMED:
                _write(axes, names[c], point, look, above=5)
        return made
    shown = sorted({*classes.tolist()})
    for c in shown if len(shown) <= NAMED else ():
        class_points = plane[classes == c]
        distances = np.linalg.norm(class_points[:, None] - class_points[None], axis=2).sum(1)
        _write(axes, names[c], class_points[distances.argmin()], look)
    return made


def _write(axes: Axes, name: str, point: Floats, look: Style, above: float = 0.0) -> None:
    """Write the name of a class at a point, or some points of type above it."""
    from matplotlib import patheffects

    text = axes.annotate(
        name[:16], (point[0], point[1]), (0, above), textcoords="offset points", ha="center",
        va="bottom" if above else "center", zorder=5, **look.text(),
    )  # fmt: skip
    text.set_path_effects([patheffects.withStroke(linewidth=1.6, foreground="white")])
