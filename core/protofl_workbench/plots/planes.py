"""Prototypes and features in the plane, by t-SNE: FedTGP, Figs. 5 and 6."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from protofl_workbench.plots.observations import class_colours, names_of, observed_of
from protofl_workbench.plots.style import INK, SMALL, canvas, inches_of, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from protofl.runs.reuse.run import Run

MOST = 3000
"""Points of a t-SNE; of more, so many are drawn by the seed."""

NAMED = 20
"""Classes whose names stand in the picture, at most."""


def prototypes(
    run: Run | str | Path,
    round: int = -1,
    trial: int = 0,
    *,
    seed: int = 0,
    perplexity: float = 30.0,
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw the clients' and the server's prototypes in the plane (t-SNE): FedTGP, Fig. 5.

    Circles are clients' prototypes, triangles the server's, colours classes. Which groups there
    are can be read from it; distances between them, and their sizes, can't.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        round: The round, from 0; -1 for the last that was observed.
        trial: The trial.
        seed: Of the t-SNE.
        perplexity: About how many neighbours a point has.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: No prototypes were observed, or too few.
    """
    from protofl_workbench.plots.feature_space import in_the_plane

    seen = observed_of(run).prototypes(round, trial)
    none = seen.rows[:0], seen.classes[:0]
    own, classes = seen.server.get("prototypes", none)
    if own.shape[1:] != seen.rows.shape[1:]:
        own, classes = none
    rows, kinds = np.concatenate([seen.rows, own]), np.concatenate([seen.classes, classes])
    plane = in_the_plane(rows, seed, perplexity)
    of_clients, of_server = plane[: len(seen.rows)], plane[len(seen.rows) :]
    colours = np.array(class_colours(seen.num_classes), object)
    made, axes = _blank(width, font)
    axes.scatter(
        of_clients[:, 0], of_clients[:, 1], s=14, c=list(colours[seen.classes]), linewidths=0,
        alpha=0.75, label="client prototypes",
    )  # fmt: skip
    axes.scatter(
        of_server[:, 0], of_server[:, 1], s=42, c=list(colours[classes]), marker="^",
        edgecolors=INK, linewidths=0.8, label="server's prototypes",
    )  # fmt: skip
    named = names_of(run, trial)
    if len(own) and len(own) <= NAMED:
        for c, point in zip(classes.tolist(), of_server, strict=True):
            _write(axes, named[c], point, font, above=5)
    elif not len(own):
        _name(axes, plane, kinds, named, font)
    return made


def features(
    run: Run | str | Path,
    round: int = -1,
    trial: int = 0,
    *,
    seed: int = 0,
    perplexity: float = 30.0,
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw the features of all clients' test samples in the plane (t-SNE): FedTGP, Fig. 6.

    Args:
        run: A run with ``--observe features``, or its folder.
        round: The round, from 0; -1 for the last that was observed.
        trial: The trial.
        seed: Of the t-SNE.
        perplexity: About how many neighbours a point has.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: No features were observed, or too few.
    """
    from protofl_workbench.plots.feature_space import in_the_plane

    seen = observed_of(run).features(round, trial)
    chosen = np.arange(len(seen.rows))
    if len(chosen) > MOST:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, MOST, replace=False))
    plane, labels = in_the_plane(seen.rows[chosen], seed, perplexity), seen.labels[chosen]
    colours = np.array(class_colours(seen.num_classes), object)
    made, axes = _blank(width, font)
    size = 7 if len(chosen) < 800 else 4
    axes.scatter(plane[:, 0], plane[:, 1], s=size, c=list(colours[labels]), linewidths=0, alpha=0.7)
    _name(axes, plane, labels, names_of(run, trial), font)
    return made


def _blank(width: str | float, font: str) -> tuple[Figure, Axes]:
    """Axes without ticks: coordinates of a t-SNE mean nothing."""
    made, axes = canvas(width, 0.9 * inches_of(width), font)
    axes.grid(visible=False)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    return made, axes


def _name(
    axes: Axes,
    plane: npt.NDArray[np.float64],
    classes: npt.NDArray[np.int64],
    names: list[str],
    font: str,
) -> None:
    """Write the name of each class at that of its points which is nearest to all of them."""
    shown = sorted({*classes.tolist()})
    for c in shown if len(shown) <= NAMED else ():
        own = plane[classes == c]
        apart = np.linalg.norm(own[:, None] - own[None], axis=2).sum(1)
        _write(axes, names[c], own[apart.argmin()], font)


def _write(
    axes: Axes, name: str, point: npt.NDArray[np.float64], font: str, above: float = 0.0
) -> None:
    """A class's name at a point, or so many points of type above it."""
    from matplotlib import patheffects

    text = axes.annotate(
        name[:16], (point[0], point[1]), (0, above), textcoords="offset points", ha="center",
        va="bottom" if above else "center", zorder=5, **words(font, SMALL),
    )  # fmt: skip
    text.set_path_effects([patheffects.withStroke(linewidth=1.6, foreground="white")])
