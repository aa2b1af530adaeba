"""Tables of ``protofl reproduce`` for benchmarks: standings and plans."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from protofl.system.formatting import count
from protofl_cli import render
from protofl_cli.tables import clock

if TYPE_CHECKING:
    from protofl_workbench.reproductions.benchmark.benchmark_execution import BenchmarkProgress
    from protofl_workbench.reproductions.benchmark.benchmark_plan import BenchmarkPlan


def show_benchmark(progress: BenchmarkProgress) -> None:
    """Print a table for each setting, refused methods with their reasons, and what is missing."""
    from protofl_workbench.reproductions.benchmark.benchmark_page import (
        HEADINGS,
        SHORT,
        cells_of,
        settings_of,
    )

    render.text()
    render.text(progress.reproduction.heading, "bold")
    for setting in settings_of(progress):
        label = progress.reproduction.columns[setting.name].label
        if setting.standings:
            render.text()
            shown = [HEADINGS[0], *SHORT]
            places = [HEADINGS.index(heading) for heading in shown]
            cells = [cells_of(standing) for standing in setting.standings]
            rows = [[row[place] for place in places] for row in cells]
            render.table(shown, rows, right=SHORT, keep=SHORT[:2], title=label)
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
