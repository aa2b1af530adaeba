"""What ``protofl reproduce`` prints: a result on the screen, and a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofl_cli import render
from protofl_cli.tables import clock, shown_path

if TYPE_CHECKING:
    from protofl.studies.planning import StudyPlan
    from protofl.studies.result import StudyResult


def show_result(result: StudyResult) -> None:
    """Ours in the first line of a cell, below it the published figure and the difference."""
    from protofl.studies.texts import headings, lines_of

    columns = ["", *headings(result)]
    rows = []
    for row in result.rows:
        cells = [result.study.rows[row].label]
        for column in result.columns:
            entry = result[row, column]
            if entry.state == "empty":
                cells.append("–")
                continue
            ours, published, apart = lines_of(entry)
            below = "  ".join(part for part in (published, apart) if part)
            cells.append("\n".join(part for part in (ours or "·", below) if part))
        rows.append(cells)
    render.text()
    render.text(result.study.heading, "bold")
    render.text("; ".join(result.facts), "dim")
    if any(entry.published for entry in result.entries.values()):
        render.text("in each cell: ours; below it the published figure, and the difference", "dim")
    render.text()
    render.table(columns, rows, right=columns[1:])
    for note in result.notes:
        render.text(f"· {note}", "dim")


def show_plan(plan: StudyPlan) -> None:
    """The runs, what is there of them, steps and hours."""
    rows = []
    for run in plan.runs:
        state = run.missing or _state(run.done, run.rounds)
        hours = "" if run.seconds is None else clock(run.seconds)
        steps = f"{run.steps:,}" if run.steps else ""
        rows.append((run.name, str(run.cells), state, steps, hours))
    render.text()
    render.text(plan.study.heading, "bold")
    render.text("; ".join(plan.facts), "dim")
    render.text()
    render.table(
        ("run", "cells", "rounds done", "steps", "left, one host"),
        rows,
        right=("cells", "steps", "left, one host"),
    )
    total = sum(run.steps for run in plan.runs)
    seconds = [run.seconds for run in plan.runs if run.seconds is not None]
    there = sum(run.finished for run in plan.runs)
    pairs = [
        ("runs", f"{len(plan.runs)}, {there} of them finished in {shown_path(plan.folder)}"),
        ("steps", f"{total:,} mini-batches in all"),
    ]
    if seconds:
        left = sum(seconds) / 3600
        pairs.append(
            ("left", f"about {left:,.1f} hours with one host on {plan.device}, by measured steps")
        )
    if plan.accounts:
        pairs.append(("accounts", f"{plan.accounts}, without training"))
    render.pairs(pairs)


def _state(done: int, rounds: int) -> str:
    return f"{min(done, rounds):,} of {rounds:,}"
