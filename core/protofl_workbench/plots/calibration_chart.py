"""The reliability diagram: accuracy of predictions by their confidence (Guo et al., ICML 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np
import numpy.typing as npt

from protofl.errors import UsageError
from protofl_workbench.comparing.run_groups import RunLike, run_in
from protofl_workbench.plots.style import COLOURS, GROUND, INK, Style, StyleOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "calibration"
"""The metric that records the counts (``--metrics calibration``)."""


def calibration(run: RunLike, trial: int = 0, **style: Unpack[StyleOptions]) -> Figure:
    """Draw accuracy over confidence for the test samples of all clients in the last evaluation.

    Args:
        run: A run with ``--metrics calibration``, or its folder.
        trial: The trial.
        **style: ``width``: ``column``, ``page`` or inches; ``font``: ``serif`` or ``sans``.

    Returns:
        Bars are the accuracy of the samples in each interval of confidence; points are their mean
        confidence, at the diagonal of a calibrated model. A paler bar has fewer samples. The title
        has the expected calibration error (ECE), the mean gap over samples.

    Raises:
        UsageError: The run has not recorded the counts.
    """
    counts = calibration_counts(run, trial)
    look, error = Style(**style), calibration_error(counts)
    made, axes = look.canvas(0.85 * min(look.inches, 4.0))
    samples, M = counts[:, 0], len(counts)
    known = samples > 0
    middles, accuracy = (np.arange(M) + 0.5) / M, np.full(M, np.nan)
    accuracy[known] = counts[known, 2] / samples[known]
    confidence = counts[known, 1] / samples[known]
    bars = axes.bar(
        middles[known], accuracy[known], width=0.94 / M, color=COLOURS[0], edgecolor=GROUND,
        linewidth=0,
    )  # fmt: skip
    for bar, share in zip(bars, samples[known] / samples.max(), strict=True):
        bar.set_alpha(0.3 + 0.7 * float(share))
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
    axes.plot(
        middles[known], confidence, linestyle="none", marker="D", markersize=3.6, color=COLOURS[1],
        markeredgecolor=GROUND, markeredgewidth=0.4,
    )  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy (bars), mean confidence (points)")
    axes.set_title(f"ECE = {error:.3f}, {int(samples.sum()):,} samples", **look.text(look.large))
    return made


def calibration_counts(run: RunLike, trial: int = 0) -> npt.NDArray[np.float64]:
    """Return samples, summed confidence and right predictions by interval of confidence, [M, 3].

    They are over all clients in the last evaluation.

    Raises:
        UsageError: The run has not recorded them.
    """
    loaded_run = run_in(run)
    rows = [row for row in loaded_run.rows_of(trial) if METRIC in row.metrics]
    if not rows:
        raise UsageError(
            f"{loaded_run.folder} has no counts of confidence in trial {trial}",
            do="record them with --metrics calibration",
        )
    return np.array(rows[-1].metrics[METRIC]["all"], dtype=np.float64)


def calibration_error(counts: npt.NDArray[np.float64]) -> float:
    """Return ECE = Σ_m |right_m − confidence_m| / n (Guo et al., Eq. 5)."""
    return float(np.abs(counts[:, 2] - counts[:, 1]).sum() / counts[:, 0].sum())
