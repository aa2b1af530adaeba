"""Tables of ``protofl reproduce`` for benchmarks: standings and plans."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from protofl.system.formatting import count
from protofl_cli.screens import render
from protofl_cli.screens.tables import clock

if TYPE_CHECKING:
    from protofl_workbench.reproductions.benchmark.benchmark_execution import BenchmarkProgress
    from protofl_workbench.reproductions.benchmark.benchmark_plan import BenchmarkPlan


SHORT = (
    "method",
    "accuracy %",
    "interval",
    "worse off (chance)",
    "lr",
    "weight",
    "mean rank",
    "groups",
)
"""The columns of standings that fit on a screen."""


def show_benchmark(progress: BenchmarkProgress) -> None:
    """Print a table for each setting, refused methods with their reasons, and what is missing."""
    from protofl_workbench.reproductions.benchmark.standings import settings_of
    from protofl_workbench.reproductions.benchmark.standings_tables import cells

    render.text()
    render.text(progress.reproduction.heading, "bold")
    for setting in settings_of(progress.reproduction.columns, progress.records.values()):
        label = progress.reproduction.columns[setting.name].label
        if setting.standings:
            render.text()
            rows = [cells(standing, SHORT) for standing in setting.standings]
            render.table(SHORT, rows, right=SHORT[1:], keep=SHORT[1:3], title=label)
        for method, reason in setting.refused.items():
            render.text(f"· {setting.name}: {method} does not fit: {reason}", "dim")
        for method, reason in setting.failed.items():
            render.text(f"· {setting.name}: {method}: {reason}", "yellow")
        for note in setting.notes:
            render.text(f"· {setting.name}: {note}", "dim")
    for column, error in progress.missing.items():
        render.text(f"· {column} is left out: {error.what}", "yellow")
    if progress.others:
        render.text(f"· other shards have {count(progress.others, 'entry', 'entries')} left", "dim")


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
                "label": progress.reproduction.columns[setting.name].label,
                "standings": [asdict(standing) for standing in setting.standings],
                "refused": setting.refused,
                "failed": setting.failed,
                "notes": setting.notes,
            }
            for setting in settings
        ],
        "missing": {column: error.what for column, error in progress.missing.items()},
        "others": progress.others,
    }


def plan_values(plan: BenchmarkPlan) -> dict[str, Any]:
    """Return a plan as JSON values, without the name of the benchmark."""
    left = [
        {"method": method, "setting": setting, "seconds": seconds}
        for (method, setting), seconds in plan.left.items()
    ]
    values: dict[str, Any] = {"finished": plan.finished, "left": left, "runs": plan.runs}
    for name, reasons in (("refused", plan.refused), ("failed", plan.failed)):
        by_setting: dict[str, dict[str, str]] = {}
        for (method, setting), reason in reasons.items():
            by_setting.setdefault(setting, {})[method] = reason
        values[name] = by_setting
    return values


def show_plan(plan: BenchmarkPlan) -> None:
    """Print the entries of a plan with their estimated time."""
    render.text()
    render.text(plan.title, "bold")
    render.text(plan.search, "dim")
    rows = [
        (method, setting, clock(seconds) if not math.isnan(seconds) else "")
        for (method, setting), seconds in plan.left.items()
    ]
    if rows:
        render.text()
        render.table(("method", "setting", "at most, one host"), rows, right=("at most, one host",))
    pairs = [("finished", f"{sum(plan.finished.values())} methods in settings")]
    pairs += [
        ("to run", f"{count(plan.runs, 'run')} of {count(len(plan.left), 'entry', 'entries')}")
    ]
    pairs += [("time", f"at most {sum(plan.left.values()) / 3600:,.1f} hours with one host")]
    render.pairs(pairs)
    for (method, setting), reason in plan.refused.items():
        render.text(f"· {setting}: {method} does not fit: {reason}", "dim")
    for (method, setting), reason in plan.failed.items():
        render.text(f"· {setting}: {method} cannot be planned: {reason}", "red")
