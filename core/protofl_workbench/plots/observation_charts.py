"""Observed prototypes and features: FedTGP, Figs. 1, 5 and 6. All need a run with ``--observe``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np
import numpy.typing as npt
import torch

from protofl.errors import TooLittle
from protofl.functional.margins import class_margins, largest_margins
from protofl_workbench.comparing.run_groups import RunLike, run_in
from protofl_workbench.plots.curves import Curve, curve_chart
from protofl_workbench.plots.image_grids import images
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

    from protofl_workbench.recorded.observed import Observed

FEWEST, MOST = 4, 3000
"""Smallest and largest number of points of a t-SNE; of more points, a random part is drawn."""

NAMED = 20
"""Largest number of classes whose names are in the figure."""

PERPLEXITY = 30.0
"""Approximate number of neighbours of a point in a t-SNE."""

Floats = npt.NDArray[np.float64]


def margins(run: RunLike, trial: int = 0, **style: Unpack[StyleOptions]) -> Figure:
    """Draw the clients' largest margin and the server's margin over rounds: FedTGP, Fig. 1.

    Curves are means over the classes that have a margin.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        trial: The trial.
        **style: ``width``: ``column``, ``page`` or inches; ``font``: ``serif`` or ``sans``.

    Raises:
        UsageError: No prototypes were observed, or no class has a margin.
    """
    rounds, clients, server = margins_by_class(run_in(run).observed, trial)
    curves = {}
    for name, table in {"clients (largest)": clients, "server": server}.items():
        known = np.isfinite(table).any(1)
        if known.any():
            mean = np.nanmean(table[known], axis=1)
            curves[name] = Curve(np.array(rounds, np.float64)[known] + 1, mean[None])
    if not curves:
        raise TooLittle("no class has a margin", do="more classes")
    return curve_chart(curves, "margin", "round", whole=True, band="none", **style)


def margins_by_class(observed: Observed, trial: int = 0) -> tuple[list[int], Floats, Floats]:
    """Return the observed rounds, and margins of clients (the largest) and server.

    Args:
        observed: Observations of a run.
        trial: The trial.

    Returns:
        The R rounds from 0, and two tables [R, C]; NaN for a class without a margin.

    Raises:
        UsageError: No prototypes were observed.
    """
    rounds = [n for n in observed.rounds(trial) if "prototypes" in observed.kinds(n, trial)]
    server, clients = [], []
    for number in rounds or [-1]:
        seen = observed.prototypes(number, trial)
        server.append(class_margins(*map(torch.from_numpy, seen.server_table())).numpy())
        P, known = map(torch.from_numpy, seen.table())
        none = np.full(seen.num_classes, np.nan)
        clients.append(largest_margins(P, known).numpy() if len(P) else none)
    return rounds, np.stack(clients), np.stack(server)


def prototypes(
    run: RunLike, trial: int = 0, *, perplexity: float = PERPLEXITY, **style: Unpack[StyleOptions]
) -> Figure:
    """Draw the clients' and the server's prototypes of the last observed round: FedTGP, Fig. 5.

    Circles are prototypes of clients, triangles those of the server, colours are classes. The
    t-SNE shows which groups exist; distances between groups and their sizes have no meaning.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        trial: The trial.
        perplexity: Approximate number of neighbours of a point.
        **style: ``width`` and ``font``, see `margins`.

    Raises:
        UsageError: No prototypes were observed, or too few.
    """
    loaded_run = run_in(run)
    seen = loaded_run.observed.prototypes(-1, trial)
    none = seen.rows[:0], seen.classes[:0]
    centres, kinds = seen.server.get("prototypes", none)
    if centres.shape[1:] != seen.rows.shape[1:]:
        centres, kinds = none
    plane = in_the_plane(np.concatenate([seen.rows, centres]), perplexity)
    colours = np.array(class_colours(seen.num_classes), object)
    made, axes, look = _empty_plane(style)
    x, y = plane[: len(seen.rows)].T
    axes.scatter(x, y, s=14, c=list(colours[seen.classes]), linewidths=0, alpha=0.75)
    x, y = plane[len(seen.rows) :].T
    if len(centres):
        axes.scatter(x, y, s=42, c=list(colours[kinds]), marker="^", edgecolors=INK, linewidths=0.8)
    names = loaded_run.split(trial).classes
    if len(centres) <= NAMED:
        for c, point in zip(kinds.tolist(), plane[len(seen.rows) :], strict=True):
            _write(axes, names[c], point, look, above=5)
    return made


def features(run: RunLike, trial: int = 0, **style: Unpack[StyleOptions]) -> Figure:
    """Draw the test features of all clients in the last observed round: FedTGP, Fig. 6.

    Args:
        run: A run with ``--observe features``, or its folder.
        trial: The trial.
        **style: ``width`` and ``font``, see `margins`.

    Raises:
        UsageError: No features were observed, or too few.
    """
    loaded_run = run_in(run)
    seen = loaded_run.observed.features(-1, trial)
    rows, labels = seen.rows, seen.labels
    if len(rows) > MOST:
        chosen = np.random.default_rng(0).choice(len(rows), MOST, replace=False)
        rows, labels = rows[np.sort(chosen)], labels[np.sort(chosen)]
    plane, colours = in_the_plane(rows), np.array(class_colours(seen.num_classes), object)
    made, axes, look = _empty_plane(style)
    size = 7 if len(rows) < 800 else 4
    x, y = plane.T
    axes.scatter(x, y, s=size, c=list(colours[labels]), linewidths=0, alpha=0.7)
    names, shown = loaded_run.split(trial).classes, sorted({*labels.tolist()})
    for c in shown if len(shown) <= NAMED else ():
        class_points = plane[labels == c]  # the name is at their medoid
        distances = np.linalg.norm(class_points[:, None] - class_points[None], axis=2).sum(1)
        _write(axes, names[c], class_points[distances.argmin()], look)
    return made


CHARTS: dict[str, Callable[..., Figure]] = {
    "margins": margins,
    "prototypes": prototypes,
    "features": features,
    "images": images,
}
"""{kind of ``protofl plot``, or name of ``draw`` in a reproduction: function of a run}."""


def in_the_plane(rows: npt.NDArray[np.float32], perplexity: float = PERPLEXITY) -> Floats:
    """Return the points of a t-SNE (van der Maaten and Hinton, JMLR 2008), initialized with PCA.

    The same rows and version of scikit-learn give the same points on one machine.

    Args:
        rows: Prototypes or features, [n, K].
        perplexity: Approximate number of neighbours of a point, at most a third of the points.

    Returns:
        [n, 2].

    Raises:
        TooLittle: There are fewer than four points.
    """
    if len(rows) < FEWEST:
        raise TooLittle(f"a t-SNE needs {FEWEST} points, got {len(rows)}")
    from sklearn.manifold import TSNE  # takes a second to import
    from threadpoolctl import threadpool_limits

    near = min(perplexity, (len(rows) - 1) / 3)
    method = "exact" if len(rows) < 200 else "barnes_hut"
    plane = TSNE(perplexity=near, init="pca", learning_rate="auto", random_state=0, method=method)
    # On shared cores several threads take ten times as long.
    with threadpool_limits(1):
        return np.asarray(plane.fit_transform(np.asarray(rows, np.float64)))


def _empty_plane(style: StyleOptions) -> tuple[Figure, Axes, Style]:
    """Return axes without ticks, because coordinates of a t-SNE have no meaning."""
    look = Style(**style)
    made, axes = look.canvas(0.9 * look.inches)
    hide_frame(axes)
    return made, axes, look


def _write(axes: Axes, name: str, point: Sequence[float], look: Style, above: float = 0.0) -> None:
    """Write the name of a class at a point, or some points of type above it."""
    from matplotlib import patheffects

    text = axes.annotate(
        name[:16], (point[0], point[1]), (0, above), textcoords="offset points", ha="center",
        va="bottom" if above else "center", zorder=5, **look.text(),
    )  # fmt: skip
    text.set_path_effects([patheffects.withStroke(linewidth=1.6, foreground="white")])
