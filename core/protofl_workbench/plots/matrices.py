"""Matrices: confusion of classes, samples at clients, similarity between clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from protofl.data.task_names import STRATA, task_name
from protofl.errors import TooLittle, UsageError, unknown
from protofl.system.formatting import shortened
from protofl_workbench.comparing.run_groups import RunLike, run_in
from protofl_workbench.plots.style import (
    COLOURS,
    GROUND,
    INK,
    Style,
    StyleOptions,
    lines_of,
    shades,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "confusion"
"""The metric that records confusion matrices (``--metrics confusion``)."""

SIMILARITIES = {"pearson": "Pearson's r", "spearman": "Spearman's ρ", "cka": "linear CKA"}
"""Measures of similarity with their titles."""


def confusion(
    run: RunLike,
    trial: int = 0,
    *,
    at: str = "last",
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw the confusion matrix over the test samples of all clients.

    Args:
        run: A run with ``--metrics confusion`` or ``--record-predictions last``, or its folder. For
            another round than the last evaluated one, a run that has recorded its predictions.
        trial: The trial.
        at: ``last``, ``best`` (on test samples) or ``validation``: the round.
        **style: ``width``: ``column``, ``page`` or inches; ``font``: ``serif`` or ``sans``.

    Returns:
        Rows are true classes, columns are predictions; numbers are shares of a row in %. Rows of
        classes without test samples are grey.

    Raises:
        UsageError: The run has not recorded a confusion matrix, or not the predictions.
    """
    loaded_run = run_in(run)
    names = list(loaded_run.split(trial).classes)
    if at == "last":
        counts = confusion_counts(loaded_run, trial)
    else:
        counts = np.asarray(sum(confusion_by_client(loaded_run, at, trial).values()))
    return _matrix(counts, names, style)


def confusion_counts(run: RunLike, trial: int = 0) -> npt.NDArray[np.float64]:
    """Return the confusion matrix of all clients in the last evaluation, [C, C].

    Rows are true classes, columns are predictions; numbers are samples.

    Raises:
        UsageError: The run has recorded neither the metric nor the predictions.
    """
    loaded_run = run_in(run)
    rows = [row for row in loaded_run.rows_of(trial) if METRIC in row.metrics]
    if rows:
        return np.array(rows[-1].metrics[METRIC]["all"], dtype=np.float64)
    try:
        return np.asarray(sum(confusion_by_client(loaded_run, "last", trial).values()))
    except UsageError:
        raise UsageError(
            f"{loaded_run.folder} has no confusion matrix of trial {trial}",
            do="record it with --metrics confusion, or --record-predictions last",
        ) from None


def confusion_by_client(
    run: RunLike, at: str = "last", trial: int = 0
) -> dict[int, npt.NDArray[np.float64]]:
    """Return the confusion matrix of each client, from recorded predictions.

    Args:
        run: A run with ``--record-predictions``, or its folder.
        at: ``last``, ``best`` (on test samples) or ``validation``: the round.
        trial: The trial.

    Returns:
        {client: samples of each class (row) that are predicted as each class (column), [C, C]} of
        the clients with test samples.

    Raises:
        UsageError: The run has not recorded the predictions of this round.
    """
    loaded_run = run_in(run)
    found = loaded_run.predictions(at, trial)
    C = len(loaded_run.split(trial).classes)
    cells = found.true.astype(np.int64) * C + found.predicted
    return {
        int(client): np.bincount(cells[found.clients == client], minlength=C * C)
        .reshape(C, C)
        .astype(np.float64)
        for client in np.unique(found.clients)
    }


MOST_MATRICES, ORDERED = 24, 10
"""Largest number of clients whose confusion matrices are in one figure, and of named classes."""


def confusions(
    run: RunLike, trial: int = 0, *, at: str = "last", **style: Unpack[StyleOptions]
) -> Figure:
    """Draw the confusion matrix of each client as a small table of shares of its rows.

    Args:
        run: A run with ``--record-predictions``, or its folder.
        trial: The trial.
        at: ``last``, ``best`` (on test samples) or ``validation``: the round.
        **style: ``width`` and ``font``, see `confusion`.

    Returns:
        Clients with test samples by their numbers, at most 24, with their accuracy. Grey rows are
        classes that a client has no test samples of. The text below names up to ten classes in the
        order of rows and columns.

    Raises:
        UsageError: The run has not recorded the predictions of this round.
    """
    loaded_run = run_in(run)
    each = confusion_by_client(loaded_run, at, trial)
    shown, look = [*each.items()][:MOST_MATRICES], Style(**style)
    rows = -(-len(shown) // max(2, int(look.inches / 1.05)))
    columns = -(-len(shown) // rows)
    side = look.inches / columns
    split = loaded_run.split(trial)
    about = "predicted class (columns) of each class (rows)"
    about += f": {', '.join(split.classes)}" if len(split.classes) <= ORDERED else ""
    if len(each) > len(shown):
        about += f"; {len(shown)} of {len(each)} clients"
    about = wrapped(about, look.inches, look.large)
    titles, below = 2.8 * look.small + 8, 1.25 * look.large * lines_of([about]) + 10
    made, first = look.canvas((side + titles / 72) * rows + below / 72)
    first.remove()
    colours = shades(GROUND, COLOURS[0])
    for place, (client, counts) in enumerate(shown):
        axes = made.add_subplot(rows, columns, place + 1)
        axes.imshow(_shares(counts), cmap=colours, vmin=0, vmax=1, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color=INK, linewidth=0.6)
        accuracy = counts.trace() / counts.sum()
        name = shortened(split.name_of(client), max(8, int(side * 11)))
        axes.set_title(f"{name}\n{accuracy:.0%}", pad=2, **look.text())
    made.supxlabel(about, **look.text(look.large))
    return made


def _shares(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return counts [C, C] as shares of their row; NaN in rows without counts."""
    totals = counts.sum(1, keepdims=True)
    shares = np.full(counts.shape, np.nan)
    np.divide(counts, totals, out=shares, where=totals > 0)
    return shares


def _matrix(counts: npt.NDArray[np.float64], names: Sequence[str], style: StyleOptions) -> Figure:
    """Draw counts [C, C] as shares of their rows, in %; rows without counts are grey."""
    look, count = Style(**style), len(counts)
    shares = 100 * _shares(counts)
    made, axes = look.canvas(0.95 * look.inches)
    axes.grid(visible=False)
    axes.imshow(shares, cmap=shades(GROUND, COLOURS[0]), vmin=0, vmax=100, interpolation="nearest")
    cell = 72 * look.inches * 0.72 / count
    for row, column in np.argwhere(shares >= 0.5) if cell >= 11 else ():
        share = shares[row, column]
        text_style = look.text(min(look.small, cell * 0.42)) | {
            "color": GROUND if share > 55 else INK
        }
        axes.text(column, row, f"{share:.0f}", ha="center", va="center_baseline", **text_style)
    every = max(1, int(np.ceil(look.small * 1.25 / cell)))
    places = range(0, count, every)
    shown = [shortened(names[place], 14) for place in places]
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    straight = max(map(len, shown)) * look.small * 0.5 <= cell * every
    axes.set_xticks(places, shown, parse_math=False, **({} if straight else turned))
    axes.set_yticks(places, shown, parse_math=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set(visible=True, color=INK, linewidth=0.6)
    axes.set_xlabel("predicted class", fontsize=look.large)
    axes.set_ylabel("class", fontsize=look.large)
    return made


def split(run: RunLike, trial: int = 0) -> Figure:
    """Draw the number of samples of each class at each client as the area of a bubble.

    Samples of other tasks are counted by their rarest label, or by ranges of the number.

    Args:
        run: A run, or its folder.
        trial: The trial.

    Raises:
        UsageError: The run has no such trial.
    """
    from protofl_workbench.plots.client_charts import split_figure

    loaded_run = run_in(run)
    held = loaded_run.split(trial)
    counts = held.train_counts + held.test_counts
    about = [str(loaded_run.config.get(key)).partition(":")[0] for key in ("dataset", "partition")]
    title = " · ".join(
        [*about, f"{len(counts)} clients", f"seed {loaded_run.config['seed'] + trial}"]
    )
    part, _ = STRATA[task_name(loaded_run.config)]
    return split_figure(counts, list(held.classes), title, held.client_names, part)


def similarity(
    run: RunLike,
    kind: str = "pearson",
    round: int = -1,
    trial: int = 0,
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw the similarity of the prototypes of each pair of clients.

    Clients of one architecture are next to each other, with a line between architectures.

    Args:
        run: A run with ``--observe prototypes``, or its folder.
        kind: ``pearson``, ``spearman`` or ``cka`` (`recorded.prototype_spreads.client_similarity`).
        round: The round, from 0; -1 for the last observed round.
        trial: The trial.
        **style: ``width`` and ``font``, see `confusion`.

    Raises:
        UsageError: No prototypes were observed, or the measure is unknown.
    """
    from protofl_workbench.plots import feature_space

    if kind not in SIMILARITIES:
        raise unknown("measure of similarity", kind, SIMILARITIES)
    loaded_run = run_in(run)
    seen = loaded_run.observed.prototypes(round, trial)
    if not seen.who:
        raise TooLittle(f"no client sent prototypes in round {seen.round}")
    who, similarities = feature_space.similarity(seen, kind)  # type: ignore[arg-type] # a key, as checked
    look = Style(**style)
    made, axes = look.canvas(0.86 * look.inches)
    axes.grid(visible=False)
    low = 0.0 if kind == "cka" else -1.0  # grey: unknown, because too few classes are shared
    colours = shades(*((COLOURS[1],) if low < 0 else ()), GROUND, COLOURS[0])
    picture = axes.imshow(similarities, cmap=colours, vmin=low, vmax=1, interpolation="nearest")
    groups = [seen.architecture_of(client) for client in who]
    for place in range(1, len(who)):
        if groups[place] != groups[place - 1] and len(set(groups)) < len(who):
            axes.axhline(place - 0.5, color=INK, linewidth=0.5)
            axes.axvline(place - 0.5, color=INK, linewidth=0.5)
    places = range(0, len(who), max(1, len(who) // 20))
    client_names = loaded_run.split(trial).client_names if loaded_run.has_split else ()
    names = [shortened(client_names[who[p]], 14) if client_names else str(who[p]) for p in places]
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(places, names, parse_math=False, **(turned if client_names else {}))
    axes.set_yticks(places, names, parse_math=False)
    axes.tick_params(length=0)
    axes.set_xlabel("client", fontsize=look.large)
    axes.set_ylabel("client", fontsize=look.large)
    bar = made.colorbar(picture, ax=axes, shrink=0.85, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(
        width=0.6, length=2, labelsize=look.small, labelfontfamily=look.text()["fontfamily"]
    )
    bar.set_label(SIMILARITIES[kind], **look.text(look.large))
    return made
