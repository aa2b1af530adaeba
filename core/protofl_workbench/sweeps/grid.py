"""The runs of a grid, point for point."""

from __future__ import annotations

from collections.abc import Sequence

from protofl_workbench.batch.wanted import Outcome
from protofl_workbench.sweeps.axes import points_of
from protofl_workbench.sweeps.results import Done, PointResult, figure_of
from protofl_workbench.sweeps.sweep import Sweep


def lines_of(sweep: Sweep, outcomes: Sequence[Outcome]) -> list[PointResult]:
    """What the runs of a grid came to, by points.

    Args:
        sweep: The sweep.
        outcomes: Of all points in their order, of each point by its seeds.
    """
    rest = iter(outcomes)
    return [
        PointResult(point, [done_of(next(rest), seed, sweep.figure) for seed in sweep.seeds])
        for point in points_of(sweep.axes)
    ]


def done_of(outcome: Outcome, seed: int, figure: str) -> Done:
    """What became of a run, with its figure."""
    error = outcome.error.what if outcome.error else ""
    found = Done(seed, outcome.state, folder=outcome.folder, error=error)
    if outcome.state != "failed" and outcome.folder is not None:
        rows = outcome.run.rows_of(0)
        found.rounds, found.figure = len(rows), figure_of(rows, figure)
    return found
