"""Tables of ``protofl sweep``: axes, plan and results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.system.formatting import count
from protofl_cli.screens import render
from protofl_cli.screens.tables import MEASURED, clock, shown_path

if TYPE_CHECKING:
    from protofl_workbench.batch.batch_events import CheckedRun
    from protofl_workbench.sweeps.sweep import Sweep
    from protofl_workbench.sweeps.sweep_results import PointResult, SweepResult


def _name(sweep: Sweep) -> str:
    options = sweep.base.options
    parts = [options.get("method"), options.get("models"), options.get("dataset") or "digits"]
    swept = {axis.option for axis in sweep.axes if not axis.owner}
    return " · ".join(str(name) for name in parts if name and name not in swept)


def show_head(sweep: Sweep, folder: Path) -> None:
    """Print the axes and the number of runs."""
    seeds = sweep.seeds
    over = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    render.heading(f"sweep: {_name(sweep)}")
    rows = [(axis.key, axis.text.replace(",", ", ")) for axis in sweep.axes]
    points = count(sweep.points, "point")
    rows += [
        ("runs", f"{points}, {over}: {count(sweep.all_runs, 'run')}"),
        ("folder of runs", shown_path(sweep.runs)),
        ("sweep folder", shown_path(folder)),
    ]
    render.pairs(rows)
    render.text()


def show_results(results: SweepResult, sweep: Sweep, folder: Path) -> None:
    """Print the points, best first."""
    keys = [axis.key for axis in sweep.axes]
    by_validation = results.chosen_on == "validation"
    columns = [*keys, "validation accuracy" if by_validation else "accuracy"]
    columns += ["test accuracy there"] * by_validation
    rounds = results.figure.startswith("best")
    columns += ["after rounds"] * rounds
    states = not all(line.is_complete for line in results.lines)
    columns += [""] + ["state"] * states
    rows = []
    for line in results.lines:
        row = [_shown(line, key) for key in keys] + [_spread(line, "value")]
        row += [_spread(line, "test")] * by_validation
        row += [_rounds(line)] * rounds
        rank = "best" if line is results.best else "tie" if line in results.ties else ""
        rows.append([*row, rank, *[line.state] * states])
    render.text()
    numbers = columns[len(keys) : len(keys) + 1 + by_validation + rounds]
    title = f"{_name(sweep)}: {results.words}" + ", mean ± std" * (sweep.trials > 1)
    render.table(columns, rows, title=title, right=numbers)
    pairs = [("results", shown_path(folder / "results.csv") + ", results.json")]
    if results.ties:
        of = f" of {results.samples}" if results.samples else ""
        explanation = "differ from the best by less than 1.96 standard errors"
        pairs.insert(0, ("ties", f"{count(len(results.ties), 'point')} {explanation}{of}"))
    if results.best and results.best.runs[0].folder:
        config = shown_path(results.best.runs[0].folder / "config.json")
        pairs.insert(0, ("repeat the best", f"protofl run --config {config}"))
    render.pairs(pairs)


def _shown(line: PointResult, key: str) -> str:
    from protofl_workbench.sweeps.sweep_points import shown

    return shown(line.point[key])


def _spread(line: PointResult, key: str) -> str:
    mean, std = line.mean(key), line.std(key)
    if mean is None or std is None:
        return ""
    return f"{mean:.2%}" + (f" ± {std:.2%}" if len(line.values(key)) > 1 else "")


def _rounds(line: PointResult) -> str:
    rounds = sorted({run.figure["round"] + 1 for run in line.runs if run.figure})
    return " … ".join(map(str, dict.fromkeys((rounds[0], rounds[-1])))) if rounds else ""


def show_plan(checked: Sequence[CheckedRun], at_once: int | None) -> None:
    """Print the runs of a plan, and the estimated time."""
    from protofl_workbench.batch.batch_tasks import shared_cores

    shown = [
        [
            one.batch_run.name,
            f"{one.rounds:,}",
            f"{one.steps:,}",
            "all" if one.finished else f"{one.done} rounds" if one.done else "",
            "" if one.seconds is None else clock(one.seconds),
        ]
        for one in checked
    ]
    columns = ["run", "rounds", "mini-batches", "done", "core time"]
    render.table(columns, shown, right=columns[1:3] + columns[4:])
    runs = len(checked)
    seconds = sum(one.seconds or 0.0 for one in checked)
    steps = sum(one.steps for one in checked)
    todo = runs - sum(one.finished for one in checked)
    on_gpu = any(one.device != "cpu" for one in checked)
    most, hosts = shared_cores(
        [one.batch_run.request for one in checked][:todo], at_once, on_gpu=on_gpu
    )
    rows = [
        ("runs", f"{runs:,}, {todo:,} to do; {steps:,} mini-batches in all"),
        ("at once", f"{count(most, 'run')}" + f", each with {hosts} hosts" * (hosts > 1)),
        ("estimate", f"about {clock(seconds / (most * max(1, hosts)))}, {MEASURED}"),
    ]
    render.pairs(rows)


def plan_values(sweep: Sweep, checked: Sequence[CheckedRun]) -> dict[str, Any]:
    """Return a plan as JSON values."""
    runs = [
        {
            "run": one.batch_run.name,
            "rounds": one.rounds,
            "steps": one.steps,
            "done": one.done,
            "finished": one.finished,
            "folder": one.folder,
            "seconds": one.seconds,
        }
        for one in checked
    ]
    return {"runs": runs, "all_runs": sweep.all_runs}
