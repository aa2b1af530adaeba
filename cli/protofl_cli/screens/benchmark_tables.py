"""Tables of ``protofl reproduce`` for benchmarks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl_workbench.reproductions.benchmark.benchmark_execution import BenchmarkProgress

SHORT = ("method", "gap", "accuracy %", "p", "worst client %", "lr", "weight", "seeds")
"""The columns of standings that fit on a screen."""


def show_benchmark(progress: BenchmarkProgress) -> None:
    """Print a table for each setting, refused methods with their reasons, and what is missing."""
    from protofl_workbench.reproductions.benchmark.standings import settings_of
    from protofl_workbench.reproductions.benchmark.standings_tables import cells

    render.text()
    render.text(progress.reproduction.heading, "bold")
    for setting in settings_of(progress.reproduction.columns, progress.records.values()):
        label = progress.reproduction.columns[setting.name].title
        if setting.standings:
            render.text()
            rows = [cells(standing, SHORT) for standing in setting.standings]
            render.table(SHORT, rows, right=SHORT[1:], keep=SHORT[1:2], title=label)
        for method, reason in setting.refused.items():
            render.text(f"· {setting.name}: {method} does not fit: {reason}", "dim")
        for method, reason in setting.failed.items():
            render.text(f"· {setting.name}: {method}: {reason}", "yellow")
    for column, error in progress.missing.items():
        render.text(f"· {column} is left out: {error.what}", "yellow")


def benchmark_values(progress: BenchmarkProgress) -> dict[str, Any]:
    """Return the standings of a benchmark as JSON values."""
    from protofl_workbench.reproductions.benchmark.standings import settings_of

    settings = settings_of(progress.reproduction.columns, progress.records.values())
    return {
        "reproduction": progress.reproduction.name,
        "scale": progress.scale,
        "settings": [
            {
                "setting": setting.name,
                "label": progress.reproduction.columns[setting.name].title,
                "visible": setting.visible,
                "standings": [asdict(standing) for standing in setting.standings],
                "refused": setting.refused,
                "failed": setting.failed,
            }
            for setting in settings
        ],
        "missing": {column: error.what for column, error in progress.missing.items()},
    }
