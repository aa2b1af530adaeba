"""Results of reproductions as text: Markdown, CSV and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl_workbench.comparing.figure_table import (
    csv_text,
    json_text,
)
from protofl_workbench.comparing.figure_table import markdown as md
from protofl_workbench.reproductions.reproduction import EMPTY
from protofl_workbench.reproductions.reproduction_result import CellResult, ReproductionResult

FORMATS = ("md", "csv", "json")
PICTURES = ("png", "pdf", "svg")


def format_of(path: Path | None, requested: str | None) -> str:
    """Return the format that the user or the ending of a file asks for; empty for the screen.

    Raises:
        UsageError: The format is unknown.
    """
    name = requested or (path.suffix.removeprefix(".").lower() if path else "")
    if name in ("", "table", *FORMATS, *PICTURES):
        return "" if name == "table" else name
    flag = f"--format {requested}" if requested else f"--out {path}"
    raise UsageError(
        f"{flag}: unknown format", f"formats: table, {', '.join((*FORMATS, *PICTURES))}"
    )


def as_text(result: ReproductionResult, form: str) -> str:
    """Return a result in one of `FORMATS`."""
    return {"md": markdown, "csv": comma_separated, "json": as_json}[form](result)


def lines_of(entry: CellResult) -> list[str]:
    """Return our figure, the published figure and the difference; empty texts for missing ones."""
    ours = entry.ours or {"missing": "no data", "failed": "failed"}.get(entry.state, "")
    return [ours, entry.text if entry.published else "", entry.apart]


def markdown(result: ReproductionResult) -> str:
    """Return a table with ours / published / difference in each cell; texts are escaped."""
    columns = [result.reproduction.columns[name] for name in result.columns]
    table = ["", *(" ".join(filter(None, (c.group, c.label))) or "ours" for c in columns)]
    rows = [
        [
            result.reproduction.rows[row].label,
            *(_in_one(result[row, column]) for column in result.columns),
        ]
        for row in result.rows
    ]
    lines = [f"**{md(result.title)}**", ""]
    lines += (
        [md(f"ours / {result.origin} / {result.difference_words}"), ""]
        if result.has_published
        else []
    )
    lines += [_pipe(table), "|---" * len(table) + "|", *map(_pipe, rows)]
    lines += ["", *(f"- {md(note)}" for note in result.notes)] if result.notes else []
    return "\n".join(lines) + "\n"


def _in_one(entry: CellResult) -> str:
    if entry.state == "empty":
        return EMPTY
    ours, published, apart = lines_of(entry)
    return " / ".join(p for p in (ours or "·", published, apart) if p) if ours or published else ""


def _pipe(cells: list[str]) -> str:
    return f"| {' | '.join(map(md, cells))} |"


def comma_separated(result: ReproductionResult) -> str:
    """Return CSV with a line for each cell; for curves a line for each round."""
    records = result.records()
    if result.reproduction.kind == "curves":
        records = [
            {**record, "trial": trial, "round": number, "value": value}
            for record, entry in zip(records, result.entries.values(), strict=True)
            for trial, points in entry.curve.items()
            for number, value in points
        ] or records
    return csv_text(records)


def as_json(result: ReproductionResult) -> str:
    """Return the title, notes and cells."""
    return json_text(json_values(result))


def json_values(result: ReproductionResult) -> dict[str, Any]:
    """Return the title, notes and cells as JSON values."""
    return {
        "title": result.title,
        "conditions": result.conditions,
        "notes": result.notes,
        "cells": result.records(),
    }
