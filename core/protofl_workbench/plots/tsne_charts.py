"""Prototypes and features in the plane, by t-SNE: FedTGP, Figs. 5 and 6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from protofl_workbench.comparing.run_groups import RunLike, run_in
from protofl_workbench.plots.style import (
    INK,
    SMALL,
    Style,
    StyleOptions,
    class_colours,
    hide_frame,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from typing_extensions import Unpack

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
    from protofl_workbench.plots.feature_space import in_the_plane

    source = run_in(run)
    seen = source.observed.prototypes(round, trial)
    none = seen.rows[:0], seen.classes[:0]
    own, classes = seen.server.get("prototypes", none)
    if own.shape[1:] != seen.rows.shape[1:]:
        own, classes = none
    rows, kinds = np.concatenate([seen.rows, own]), np.concatenate([seen.classes, classes])
    plane = in_the_plane(rows, seed, perplexity)
    of_clients, of_server = plane[: len(seen.rows)], plane[len(seen.rows) :]
    colours = np.array(class_colours(seen.num_classes), object)
    look = Style(**style)
    made, axes = _plane(look)
    axes.scatter(
        of_clients[:, 0], of_clients[:, 1], s=14, c=list(colours[seen.classes]), linewidths=0,
        alpha=0.75, label="client prototypes",
    )  # fmt: skip
    axes.scatter(
        of_server[:, 0], of_server[:, 1], s=42, c=list(colours[classes]), marker="^",
        edgecolors=INK, linewidths=0.8, label="server's prototypes",
    )  # fmt: skip
    names = source.split(trial).classes
    if not len(own):
        _name_classes(axes, plane, kinds, names, look)
    for c, point in zip(classes.tolist(), of_server, strict=True):
        if len(own) <= NAMED:
            _write(axes, names[c], point, look, above=5)
    return made


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
    from protofl_workbench.plots.feature_space import in_the_plane

    source = run_in(run)
    seen = source.observed.features(round, trial)
    chosen = np.arange(len(seen.rows))
    if len(chosen) > MOST:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, MOST, replace=False))
    plane, labels = in_the_plane(seen.rows[chosen], seed, perplexity), seen.labels[chosen]
    colours = np.array(class_colours(seen.num_classes), object)
    look = Style(**style)
    made, axes = _plane(look)
    size = 7 if len(chosen) < 800 else 4
    axes.scatter(plane[:, 0], plane[:, 1], s=size, c=list(colours[labels]), linewidths=0, alpha=0.7)
    _name_classes(axes, plane, labels, source.split(trial).classes, look)
    return made


def _plane(look: Style) -> tuple[Figure, Axes]:
    """Return axes without ticks, because coordinates of a t-SNE have no meaning."""
    made, axes = look.canvas(0.9 * look.inches)
    hide_frame(axes)
    return made, axes


def _name_classes(
    axes: Axes, plane: Floats, classes: npt.NDArray[np.int64], names: Sequence[str], look: Style
) -> None:
    """Write the name of each class at its medoid."""
    shown = sorted({*classes.tolist()})
    for c in shown if len(shown) <= NAMED else ():
        own = plane[classes == c]
        distances = np.linalg.norm(own[:, None] - own[None], axis=2).sum(1)
        _write(axes, names[c], own[distances.argmin()], look)


def _write(axes: Axes, name: str, point: Floats, look: Style, above: float = 0.0) -> None:
    """Write the name of a class at a point, or some points of type above it."""
    from matplotlib import patheffects

    text = axes.annotate(
        name[:16], (point[0], point[1]), (0, above), textcoords="offset points", ha="center",
        va="bottom" if above else "center", zorder=5, **look.text(SMALL),
    )  # fmt: skip
    text.set_path_effects([patheffects.withStroke(linewidth=1.6, foreground="white")])
