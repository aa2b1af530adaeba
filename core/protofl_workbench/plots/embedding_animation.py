"""Features of test samples with prototypes over rounds, as frames of an animation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from protofl.errors import TooLittle
from protofl.system.formatting import shortened
from protofl_workbench.comparing.run_groups import RunLike, run_in
from protofl_workbench.plots.style import INK, Style, StyleOptions, class_colours, hide_frame
from protofl_workbench.plots.tsne_charts import NAMED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofl_workbench.recorded.recorded_run import Run

FRAMES, POINTS = 12, 1500
"""Largest number of frames, and of points in all frames together."""

FEATURE, CLIENT, SERVER = range(3)
"""Kinds of points."""

KINDS: dict[int, tuple[str, str, dict[str, Any]]] = {
    FEATURE: ("feature", "o", {"s": 7, "linewidths": 0, "alpha": 0.55}),
    CLIENT: (
        "client's prototype", "o",
        {"s": 16, "linewidths": 0.4, "edgecolors": "white", "alpha": 0.9},
    ),
    SERVER: (
        "server's prototype", "^",
        {"s": 44, "linewidths": 0.8, "edgecolors": INK, "zorder": 4},
    ),
}  # fmt: skip
"""{kind: its name in the legend, marker, and how it is drawn}."""

Floats = npt.NDArray[np.float64]


class _Legend(NamedTuple):
    """Entries (label, marker, colour) of a legend, and the colours of the classes [C]."""

    entries: list[tuple[str, str, Any]]
    colours: npt.NDArray[np.object_]


@dataclass(frozen=True)
class _Points:
    """The points of a round: rows [n, K], their classes [n] and kinds [n]."""

    round: int
    rows: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]


def embedding(
    run: RunLike,
    trial: int = 0,
    *,
    seed: int = 0,
    perplexity: float = 30.0,
    **style: Unpack[StyleOptions],
) -> list[Figure]:
    """Draw features of test samples with prototypes in the plane, a figure for each round.

    All rounds are in one t-SNE, so positions of different rounds can be compared. Dots are
    features, circles clients' prototypes and triangles the server's, with a line from their
    place in the frame before. Colours are classes. `save_animation` writes the figures as a GIF.

    Args:
        run: A run with ``--observe features``, ``prototypes`` or both, or its folder.
        trial: The trial.
        seed: Seed of the t-SNE, and of the choice of samples if there are many.
        perplexity: Approximate number of neighbours of a point.
        **style: ``width``: ``column``, ``page`` or inches; ``font``: ``serif`` or ``sans``.

    Returns:
        At most 12 observed rounds, evenly spaced, with the first and the last.

    Raises:
        UsageError: Fewer than two rounds were observed, or too few points.
    """
    from protofl_workbench.plots.feature_space import in_the_plane

    loaded_run = run_in(run)
    frames = _frames(loaded_run, trial, seed)
    plane = in_the_plane(np.concatenate([f.rows for f in frames]), seed, perplexity)
    places = np.split(plane, np.cumsum([len(f.rows) for f in frames])[:-1])
    low, high = plane.min(0), plane.max(0)
    margin = 0.06 * (high - low)
    legend = _legend(frames, loaded_run.split(trial).classes)
    result: list[Figure] = []
    before: dict[int, Floats] = {}
    for frame, points in zip(frames, places, strict=True):
        made, before = _draw(frame, points, before, legend, Style(**style))
        axes = made.axes[0]
        axes.set(
            xlim=(low[0] - margin[0], high[0] + margin[0]),
            ylim=(low[1] - margin[1], high[1] + margin[1]),
        )
        result.append(made)
    return result


def _frames(run: Run, trial: int, seed: int) -> list[_Points]:
    """Return the points of evenly spaced observed rounds.

    Raises:
        UsageError: Fewer than two rounds have features or prototypes.
    """
    kinds = {"features", "prototypes"}
    rounds = [n for n in run.observed.rounds(trial) if kinds & {*run.observed.kinds(n, trial)}]
    if len(rounds) < 2:
        raise TooLittle(
            f"{run.folder} has observations of {len(rounds)} round{'s' * (len(rounds) != 1)} of "
            f"trial {trial}, and an animation needs two",
            do="record more: --observe prototypes,features --observe-every 1",
        )
    chosen = np.linspace(0, len(rounds) - 1, min(FRAMES, len(rounds))).round().astype(int)
    shown = [rounds[place] for place in [*dict.fromkeys(chosen.tolist())]]
    frames = [_points(run, trial, number, POINTS // len(shown), seed) for number in shown]
    width = max(frames, key=lambda frame: len(frame.rows)).rows.shape[1]
    return [frame for frame in frames if frame.rows.shape[1] == width]


def _points(run: Run, trial: int, number: int, most: int, seed: int) -> _Points:
    """Return the points of a round: prototypes, and a part of the features if they are many."""
    tables: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], int]] = []
    observed, kinds = run.observed, {*run.observed.kinds(number, trial)}
    if "features" in kinds:
        features = observed.features(number, trial)
        count = len(features.rows)
        # the same samples in each round, as long as the same clients are evaluated
        draw = np.random.default_rng(seed)
        part = np.sort(draw.permutation(count)[:most])
        tables.append((features.rows[part], features.labels[part], FEATURE))
    if "prototypes" in kinds:
        seen = observed.prototypes(number, trial)
        tables.append((seen.rows, seen.classes, CLIENT))
        if "prototypes" in seen.server:
            tables.append((*seen.server["prototypes"], SERVER))
    width = max(tables, key=lambda table: len(table[0]))[0].shape[1]
    alike = [table for table in tables if table[0].shape[1] == width]
    return _Points(
        number,
        np.concatenate([rows for rows, _, _ in alike]),
        np.concatenate([classes for _, classes, _ in alike]).astype(np.int64),
        np.concatenate([np.full(len(rows), kind) for rows, _, kind in alike]),
    )


def _legend(frames: list[_Points], names: Sequence[str]) -> _Legend:
    """Return the legend of all frames: kinds of points that occur, and up to `NAMED` classes."""
    kinds = sorted({kind for frame in frames for kind in frame.kinds.tolist()})
    colours = class_colours(len(names))
    entries = [(*KINDS[kind][:2], INK) for kind in kinds]
    if len(names) <= NAMED:
        entries += [(shortened(name, 16), "s", c) for name, c in zip(names, colours, strict=True)]
    return _Legend(entries, np.array(colours, object))


def _draw(
    frame: _Points, points: Floats, before: dict[int, Floats], legend: _Legend, look: Style
) -> tuple[Figure, dict[int, Floats]]:
    """Draw a round; return its figure, and the places of the server's prototypes by class."""
    from matplotlib.lines import Line2D

    labels = [label for label, _, _ in legend.entries]
    made, axes = look.canvas(0.95 * look.inches, labels)
    hide_frame(axes)
    for kind, (_, marker, about) in KINDS.items():
        own = frame.kinds == kind
        if own.any():
            x, y = points[own].T
            axes.scatter(x, y, c=list(legend.colours[frame.classes[own]]), marker=marker, **about)
    own = frame.kinds == SERVER
    now = dict(zip(frame.classes[own].tolist(), points[own], strict=True))
    for c, place in now.items():
        if c in before:
            axes.plot(*zip(before[c], place, strict=True), color=INK, linewidth=0.8, zorder=3)
    sizes = {name: about["s"] ** 0.5 for name, _, about in KINDS.values()}
    handles = [
        Line2D([], [], linestyle="none", marker=marker, markersize=sizes.get(label, 4), color=c)
        for label, marker, c in legend.entries
    ]
    look.legend(made, handles, labels)
    axes.set_title(f"after round {frame.round + 1}", pad=2, **look.text(look.large))
    return made, now
