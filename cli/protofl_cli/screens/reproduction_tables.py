"""Tables of ``protofl reproduce``: results and plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from protofl_cli.screens import render
from protofl_cli.screens.tables import MEASURED, clock, shown_path

if TYPE_CHECKING:
    from protofl_workbench.reproductions.reproduction_plan import ReproductionPlan
    from protofl_workbench.reproductions.reproduction_result import CellResult, ReproductionResult


def show_result(result: ReproductionResult) -> None:
    """Print a result; each cell has our figure, the published figure and the difference.

    A table that is wider than the screen is divided, if possible by groups of columns.
    """
    labels = [result.reproduction.rows[row].label for row in result.rows]
    cells = {c: [_cell(result[row, c]) for row in result.rows] for c in result.columns}
    render.text()
    render.text(result.reproduction.heading, "bold")
    render.text("; ".join(result.facts), "dim")
    if result.conditions:
        render.text(result.conditions, "yellow")
    if any(entry.published for entry in result.entries.values()):
        legend = f"in each cell: our figure, the {result.origin} figure, and the"
        render.text(f"{legend} {result.difference_words}", "dim")
    render.text()
    room = render.console().width - max(map(len, labels)) - 1
    for group, columns in _parts(result, cells, room):
        names = [result.reproduction.columns[c].label or "ours" for c in columns]
        rows = [[label, *(cells[c][n] for c in columns)] for n, label in enumerate(labels)]
        render.table(["", *names], rows, right=names, keep=names, title=group)
    for note in result.notes:
        render.text(f"· {note}", "dim")


def _cell(entry: CellResult) -> str:
    from protofl_workbench.reproductions.reproduction_texts import lines_of

    if entry.state == "empty":
        return "–"
    ours, published, apart = lines_of(entry)
    if entry.remarks:  # on lines of its own, so that columns stay narrow
        ours = f"{entry.figures}\n(" + entry.remarks.replace(", ", ",\n") + ")"
    return "\n".join(line for line in (ours or "·", published, apart) if line)


def _parts(
    result: ReproductionResult, cells: Mapping[str, list[str]], room: int
) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and columns of each table."""
    about, columns, taken = result.reproduction.columns, list[str](), 0
    wide = {
        c: 2 + max(len(line) for text in (about[c].label, *cells[c]) for line in text.split("\n"))
        for c in result.columns
    }
    for c in result.columns:
        if columns and (about[c].group != about[columns[0]].group or taken + wide[c] > room):
            yield about[columns[0]].group, columns
            columns, taken = [], 0
        columns, taken = [*columns, c], taken + wide[c]
    yield about[columns[0]].group, columns


def show_plan(plan: ReproductionPlan) -> None:
    """Print the runs of a plan with finished rounds, steps and hours."""
    rows = []
    for run in plan.runs:
        state = "data not here" if run.missing else _state(run.done, run.rounds)
        state += ", diverged" * run.diverged
        hours = "" if run.seconds is None else clock(run.seconds)
        steps = f"{run.steps:,}" if run.steps else ""
        rows.append((run.name, str(run.cells), state, steps, hours))
    render.text()
    render.text(plan.reproduction.heading, "bold")
    render.text("; ".join(plan.facts), "dim")
    render.text()
    render.table(
        ("run", "cells", "rounds done", "steps", "time left"),
        rows,
        right=("cells", "steps", "time left"),
    )
    seconds = [run.seconds for run in plan.runs if run.seconds is not None]
    there = sum(run.finished for run in plan.runs)
    pairs = [
        ("runs", f"{len(plan.runs)}, {there} of them finished in {shown_path(plan.folder)}"),
        ("steps", f"{sum(run.steps for run in plan.runs):,} mini-batches in all"),
    ]
    if seconds:
        left = f"about {clock(sum(seconds))} in one process on {plan.device}"
        pairs.append(("time left", f"{left}, {MEASURED}"))
    pairs += [(n, row.label) for n, row in plan.reproduction.rows.items() if row.label.lower() != n]
    pairs += [("imported code", place) for place in plan.code]
    for name, about in plan.files.items():
        pairs.append((f"--file {name}", f"is not given: {about}"))
    if plan.accounts:
        pairs.append(("accounts", f"{plan.accounts}, without training"))
    pairs += [("note", text) for text in dict.fromkeys(run.missing for run in plan.runs) if text]
    render.pairs(pairs)


def plan_values(plan: ReproductionPlan) -> dict[str, Any]:
    """Return a plan as JSON values."""
    runs = [asdict(run) for run in plan.runs]
    return {
        "reproduction": plan.reproduction.name,
        "facts": plan.facts,
        "runs": [{"run": run.pop("name"), **run} for run in runs],
        "accounts": plan.accounts,
        "files": plan.files,
        "code": plan.code,
    }


def _state(finished: int, rounds: int) -> str:
    return f"{min(finished, rounds):,} of {rounds:,}"
