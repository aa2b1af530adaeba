"""Matrices: confusion of classes, models on clients' data, and samples of classes at clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from protofl.data.task_names import STRATA, task_name
from protofl.errors import UsageError
from protofl.system.formatting import shortened
from protofl_workbench.comparing.run_groups import RunLike, run_in
from protofl_workbench.plots.style import (
    COLOURS,
    GROUND,
    INK,
    Style,
    StyleOptions,
    shades,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofl_workbench.recorded.recorded_run import Run

METRIC = "confusion"
"""The metric that records confusion matrices (``--metrics confusion``)."""


def confusion(run: RunLike, trial: int = 0, **style: Unpack[StyleOptions]) -> Figure:
    """Draw the confusion matrix over the test samples of all clients in the last evaluation.

    Args:
        run: A run with ``--metrics confusion`` or ``--record-predictions last``, or its folder.
        trial: The trial.
        **style: ``width``: ``column``, ``page`` or inches; ``font``: ``serif`` or ``sans``.

    Returns:
        Rows are true classes, columns are predictions; numbers are shares of a row in %. Rows of
        classes without test samples are grey.

    Raises:
        UsageError: The run has recorded neither the metric nor the predictions.
    """
    loaded_run = run_in(run)
    shares = _shares(confusion_counts(loaded_run, trial))
    axes = "predicted class", "class"
    return _matrix(shares, loaded_run.split(trial).classes, axes, style)


def cross(run: RunLike, trial: int = 0, **style: Unpack[StyleOptions]) -> Figure:
    """Draw the accuracy of each client's model on the test samples of each client.

    Args:
        run: A run with the weights of its last round, or its folder.
        trial: The trial.
        **style: See `confusion`.

    Returns:
        Rows are models, columns are test samples; numbers are accuracies in %.

    Raises:
        UsageError: See `protofl.Run.cross`.
    """
    loaded_run = run_in(run)
    accuracies = loaded_run.cross(trial=trial)
    names = loaded_run.split(trial).client_names or [*map(str, range(len(accuracies)))]
    return _matrix(accuracies, names, ("test samples of", "model of"), style, least=0)


def confusion_counts(run: Run, trial: int = 0) -> npt.NDArray[np.float64]:
    """Return the confusion matrix of all clients in the last evaluation, [C, C].

    Rows are true classes, columns are predictions; numbers are samples.

    Raises:
        UsageError: The run has recorded neither the metric nor the predictions.
    """
    rows = [row for row in run.rows_of(trial) if METRIC in row.metrics]
    if rows:
        return np.array(rows[-1].metrics[METRIC]["all"], dtype=np.float64)
    try:
        found = run.predictions("last", trial)
    except UsageError:
        raise UsageError(
            f"{run.folder} has no confusion matrix of trial {trial}",
            do="record it with --metrics confusion, or --record-predictions last",
        ) from None
    C = len(run.split(trial).classes)
    cells = found.true.astype(np.int64) * C + found.predicted
    return np.bincount(cells, minlength=C * C).reshape(C, C).astype(np.float64)


def _shares(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return counts [C, C] as shares of their row; NaN in rows without counts."""
    totals = counts.sum(1, keepdims=True)
    shares = np.full(counts.shape, np.nan)
    np.divide(counts, totals, out=shares, where=totals > 0)
    return shares


def _matrix(
    shares: npt.NDArray[np.float64],
    names: Sequence[str],
    labels: tuple[str, str],
    style: StyleOptions,
    least: float = 0.5,
) -> Figure:
    """Draw shares [C, C] in %, with the labels of the axes (x, y); NaN is grey.

    Cells below ``least`` % have no number.
    """
    look, count, shares = Style(**style), len(shares), 100 * shares
    made, axes = look.canvas(0.95 * look.inches)
    axes.grid(visible=False)
    axes.imshow(shares, cmap=shades(GROUND, COLOURS[0]), vmin=0, vmax=100, interpolation="nearest")
    cell = 72 * look.inches * 0.72 / count
    for row, column in np.argwhere(shares >= least) if cell >= 11 else ():
        share = shares[row, column]
        text_style = look.text(min(look.small, cell * 0.42)) | {
            "color": GROUND if share > 90 else INK  # from here on, white has more contrast
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
    axes.set_xlabel(labels[0], fontsize=look.large)
    axes.set_ylabel(labels[1], fontsize=look.large)
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
