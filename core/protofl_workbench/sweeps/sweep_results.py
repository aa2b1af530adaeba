"""Results of a sweep by points, and their files."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.records.row import Row
from protofl.system.files.atomic import write_file, write_json
from protofl_workbench.batch.batch_events import Outcome
from protofl_workbench.comparing.figure_table import csv_text
from protofl_workbench.recorded.row_tables import frame_of
from protofl_workbench.sweeps.axes import Point
from protofl_workbench.sweeps.sweep import Sweep
from protofl_workbench.sweeps.sweep_points import points_of

if TYPE_CHECKING:
    import pandas as pd

    from protofl_workbench.recorded.recorded_split import RecordedSplit

CSV, JSON = "results.csv", "results.json"


def figure_of(rows: Sequence[Row], figure: str) -> dict[str, Any] | None:
    """Return the figure of a trial, and the samples on which the round was chosen.

    With validation samples, rounds and points are chosen on them.

    Args:
        rows: Lines of the trial by rounds.
        figure: One of `protofl_workbench.sweeps.sweep.FIGURES`.

    Returns:
        ``value``, by which points are compared, ``test``: the accuracy on test samples in the same
        round, ``round`` and ``chosen_on`` (``validation`` or ``test``); None if no line has the
        figure.
    """
    read = _server if figure.endswith("-server") else _clients
    readings = [(read(row), row) for row in rows]
    scored = [(shares, row.round) for shares, row in readings if shares is not None]
    if not scored:
        return None
    (chosen, test, on), round = (
        scored[-1] if figure.startswith("final") else max(scored, key=lambda s: (s[0][0], -s[1]))
    )
    return {"value": chosen, "test": test, "round": round, "chosen_on": on}


def _clients(row: Row) -> tuple[float, float, str] | None:
    test = row.test_accuracy
    if test is None:
        return None
    validation = row.validation_accuracy
    return (test, test, "test") if validation is None else (validation, test, "validation")


def _server(row: Row) -> tuple[float, float, str] | None:
    test = row.extra.get("server_test_accuracy")
    return None if test is None else (test, test, "test")


@dataclass
class PointRun:
    """A run of a point.

    Attributes:
        seed: Seed.
        state: ``finished``, ``failed``, or ``missing``.
        rounds: Finished rounds.
        folder: Run folder.
        figure: Result of `figure_of`.
        error: Why the run failed.
    """

    seed: int
    state: str = "missing"
    rounds: int = 0
    folder: Path | None = None
    figure: dict[str, Any] | None = None
    error: str = ""
    samples: int = 0
    """Samples on which points are compared: validation or test samples; 0 if not recorded."""


@dataclass
class PointResult:
    """A point and its runs.

    Attributes:
        point: {key of ``--grid``: value as the user wrote it}.
        runs: The runs by their seeds.
    """

    point: Point
    runs: list[PointRun] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """True if all runs are finished."""
        return all(run.state == "finished" and run.figure for run in self.runs)

    @property
    def state(self) -> str:
        """``finished``, or the states of the runs."""
        if self.is_complete:
            return "finished"
        states = [run.state for run in self.runs]
        numbers = {state: states.count(state) for state in ("failed", "missing", "finished")}
        if len(states) == 1:
            return next(state for state, number in numbers.items() if number)
        return ", ".join(f"{number} {state}" for state, number in numbers.items() if number)

    @property
    def samples(self) -> int:
        """Samples of all trials on which the point is compared; 0 if one did not record them."""
        scored = [run.samples for run in self.runs if run.figure]
        return sum(scored) if all(scored) else 0

    def variance(self) -> float:
        """Return the variance of the mean figure, as far as it is known.

        The larger of two estimates: that of a share of `samples` independent samples, p(1 − p) / n,
        and that of the mean over trials, s² / trials.
        """
        mean, values = self.mean("value") or 0.0, self.values("value")
        binomial = mean * (1 - mean) / self.samples if self.samples else 0.0
        trials = statistics.variance(values) / len(values) if len(values) > 1 else 0.0
        return max(binomial, trials)

    def values(self, key: str) -> list[float]:
        """Return a figure (``value`` or ``test``) of all runs that have it."""
        return [run.figure[key] for run in self.runs if run.figure]

    def mean(self, key: str) -> float | None:
        """Return the mean of a figure over trials; None if there is none."""
        values = self.values(key)
        return statistics.fmean(values) if values else None

    def std(self, key: str) -> float | None:
        """Return the population standard deviation of a figure over trials."""
        values = self.values(key)
        return statistics.pstdev(values) if values else None


@dataclass
class SweepResult:
    """The result of a sweep.

    Attributes:
        figure: The figure by which points are compared.
        lines: The points, best first; incomplete points are last.
        folder: Folder of the sweep, if any.
    """

    figure: str
    lines: list[PointResult]
    folder: Path | None = None

    def __post_init__(self) -> None:
        """Sort the points; equal points keep the order of the grid."""
        self.lines.sort(key=lambda line: (not line.is_complete, -(line.mean("value") or 0.0)))

    @property
    def best(self) -> PointResult | None:
        """The best complete point, if any."""
        return self.lines[0] if self.lines and self.lines[0].is_complete else None

    def margin(self, line: PointResult) -> float:
        """Return the largest difference to the best point that chance explains (95 %, two points).

        1.96 standard errors of the difference of two independent means. Points are scored on the
        same samples, so the true margin is often smaller.
        """
        best = self.best
        return 0.0 if best is None else 1.96 * math.sqrt(best.variance() + line.variance())

    @property
    def ties(self) -> list[PointResult]:
        """Complete points that do not differ from the best one, without the best."""
        best = self.best
        if best is None:
            return []
        top = best.mean("value") or 0.0
        return [
            line
            for line in self.lines[1:]
            if line.is_complete and top - (line.mean("value") or 0.0) <= self.margin(line)
        ]

    @property
    def samples(self) -> str:
        """The samples of a trial in words, ``180 validation samples``; empty if not recorded."""
        counts = sorted({run.samples for line in self.lines for run in line.runs if run.figure})
        if not counts or not counts[0]:
            return ""
        number = " to ".join(f"{n:,}" for n in dict.fromkeys((counts[0], counts[-1])))
        return f"{number} {self.chosen_on} samples"

    @property
    def chosen_on(self) -> str:
        """``validation`` or ``test``: the samples on which points were compared."""
        samples = {
            run.figure["chosen_on"] for line in self.lines for run in line.runs if run.figure
        }
        return "validation" if samples == {"validation"} else "test"

    @property
    def words(self) -> str:
        """Description of the figure and the samples."""
        which, _, server = self.figure.partition("-")
        whose = "the server's accuracy" if server else "accuracy"
        best = which == "best"
        when = "in the best round" if best else "in the last round"
        what = "round and point" if best else "point"
        return f"{whose} {when}; {what} chosen on {self.chosen_on} samples"

    def records(self) -> list[dict[str, Any]]:
        """Return a mapping for each run: point, seed, state, figure and folder."""
        return [
            {**{key: _number(value) for key, value in line.point.items()}, **_run(run, None)}
            for line in self.lines
            for run in line.runs
        ]

    def frame(self) -> pd.DataFrame:
        """Return the records as a pandas frame.

        Raises:
            UsageError: pandas is not installed.
        """
        return frame_of(self.records(), "SweepResult.records() has the same as plain values")

    def to_values(self, folder: Path) -> dict[str, Any]:
        """Return the content of ``results.json``, with relative run folders."""
        return {
            "figure": self.figure,
            "chosen_on": self.chosen_on,
            "words": self.words,
            "best": dict(self.best.point) if self.best else None,
            "ties": [dict(line.point) for line in self.ties],
            "points": [
                {
                    "point": dict(line.point),
                    "state": line.state,
                    "mean": line.mean("value"),
                    "std": line.std("value"),
                    "test_mean": line.mean("test"),
                    "test_std": line.std("test"),
                    "runs": [_run(run, folder) for run in line.runs],
                }
                for line in self.lines
            ],
        }

    def write(self, folder: Path) -> None:
        """Write ``results.json``, and ``results.csv`` with a line for each run."""
        write_json(folder / JSON, self.to_values(folder))
        runs = [{**line.point, **_run(run, folder)} for line in self.lines for run in line.runs]
        write_file(folder / CSV, csv_text(runs))


def _number(value: Any) -> Any:  # noqa: ANN401 - options are of many types
    """Return the number that a text is, or the value itself."""
    for read in (int, float) if isinstance(value, str) else ():
        with suppress(ValueError):
            return read(value)
    return value


def _run(run: PointRun, folder: Path | None) -> dict[str, Any]:
    """Return a run as a mapping; its folder is relative to `folder` if given."""
    figure = run.figure or dict.fromkeys(("value", "test", "round", "chosen_on"))
    place = None if run.folder is None else str(run.folder)
    place = os.path.relpath(place, folder) if place and folder else place
    return {
        "seed": run.seed,
        "state": run.state,
        **figure,
        "rounds": run.rounds,
        "samples": run.samples,
        "folder": place,
        "error": run.error,
    }


def point_results(sweep: Sweep, outcomes: Sequence[Outcome]) -> list[PointResult]:
    """Return the results of a grid by points.

    Args:
        sweep: The sweep.
        outcomes: Outcomes in the order of points and seeds.
    """
    rest = iter(outcomes)
    return [
        PointResult(point, [point_run(next(rest), seed, sweep.figure) for seed in sweep.seeds])
        for point in points_of(sweep.axes)
    ]


def point_run(outcome: Outcome, seed: int, figure: str) -> PointRun:
    """Return a run of a point with its figure."""
    error = outcome.error.what if outcome.error else ""
    result = PointRun(seed, outcome.state, folder=outcome.folder, error=error)
    if outcome.state != "failed" and outcome.folder is not None:
        rows = outcome.run.rows_of(0)
        result.rounds, result.figure = len(rows), figure_of(rows, figure)
        if result.figure and outcome.run.has_split:
            result.samples = _samples(outcome.run.split(0), result.figure["chosen_on"], figure)
    return result


def _samples(split: RecordedSplit, chosen_on: str, figure: str) -> int:
    """Return the number of samples on which a figure is computed."""
    if figure.endswith("-server"):
        return split.global_test_samples
    counts = split.validation_counts if chosen_on == "validation" else split.test_counts
    return int(counts.sum())
