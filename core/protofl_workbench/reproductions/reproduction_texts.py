"""Results of reproductions as text: Markdown, CSV, JSON and LaTeX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl_workbench.comparing.figure_table import (
    csv_text,
    json_text,
    tex,
    tex_comments,
    tex_table,
)
from protofl_workbench.comparing.figure_table import markdown as md
from protofl_workbench.reproductions.reproduction import EMPTY
from protofl_workbench.reproductions.reproduction_result import CellResult, ReproductionResult

FORMATS = ("md", "csv", "tex", "json")
PICTURES = ("png", "pdf", "svg")
PAGE = "html"
"""The format of `protofl.report`, which is always written to a file."""


def format_of(path: Path | None, requested: str | None) -> str:
    """Return the format that the user or the ending of a file asks for; empty for the screen.

    Raises:
        UsageError: The format is unknown.
    """
    name = requested or (path.suffix.removeprefix(".").lower() if path else "")
    if name in ("", "table", *FORMATS, *PICTURES) or (name == PAGE and path):
        return "" if name == "table" else name
    flag = f"--format {requested}" if requested else f"--out {path}"
    raise UsageError(
        f"{flag}: unknown format",
        f"formats: table, {', '.join((*FORMATS, *PICTURES))}; html with --out",
    )


def as_text(result: ReproductionResult, form: str) -> str:
    """Return a result in one of `FORMATS`."""
    return {"md": markdown, "csv": comma_separated, "tex": latex, "json": as_json}[form](result)


def headings(result: ReproductionResult) -> list[str]:
    """Return the headings of the columns."""
    columns = [result.reproduction.columns[name] for name in result.columns]
    return [" ".join(text for text in (c.group, c.label) if text) or "ours" for c in columns]


def lines_of(entry: CellResult) -> list[str]:
    """Return our figure, the published figure and the difference; empty texts for missing ones."""
    ours = entry.ours or {"missing": "no data", "failed": "failed"}.get(entry.state, "")
    return [ours, entry.text if entry.published else "", entry.apart]


def markdown(result: ReproductionResult) -> str:
    """Return a table with ours / published / difference in each cell; texts are escaped."""
    table = ["", *headings(result)]
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


# --- LaTeX ----------------------------------------------------------------------------------------


def latex(result: ReproductionResult) -> str:
    r"""Return a table with booktabs: a row of our figures, below it the published ones in grey.

    The table needs ``\usepackage{booktabs}`` and ``\usepackage{xcolor}``.
    """
    columns = [result.reproduction.columns[name] for name in result.columns]
    groups = [column.group for column in columns]
    head = _groups(groups) if any(groups) else []
    head.append(" & ".join(["", *(_tex(column.label) for column in columns)]) + r" \\")
    body: list[str] = []
    for row in result.rows:
        entries = [result[row, column] for column in result.columns]
        ours = [_tex(lines_of(entry)[0]) for entry in entries]
        body.append(" & ".join([_tex(result.reproduction.rows[row].label), *ours]) + r" \\")
        if any(entry.published for entry in entries):
            body.append(" & ".join(["", *map(_published, entries)]) + r" \\")
    grey = (
        f" Grey: {result.origin}, and the {result.difference_words}."
        if result.has_published
        else ""
    )
    lines = [
        r"% \usepackage{booktabs}, \usepackage{xcolor}",
        *tex_table(
            f"{_tex(result.title.removesuffix('.'))}.{grey}", f"l{'c' * len(columns)}", head, body
        ),
    ]
    return "\n".join([*lines, *tex_comments(result.notes)]) + "\n"


def _groups(groups: list[str]) -> list[str]:
    spans: list[tuple[str, int, int]] = []
    for number, group in enumerate(groups, 2):
        if spans and spans[-1][0] == group:
            spans[-1] = (group, spans[-1][1], number)
        else:
            spans.append((group, number, number))
    cells = [rf"\multicolumn{{{b - a + 1}}}{{c}}{{{_tex(name)}}}" for name, a, b in spans]
    rules = " ".join(rf"\cmidrule(lr){{{a}-{b}}}" for name, a, b in spans if name)
    return [" & ".join(["", *cells]) + r" \\", rules]


def _published(entry: CellResult) -> str:
    _, published, apart = lines_of(entry)
    text = f"{published} ({apart})" if apart else published
    return rf"\textcolor{{gray}}{{\footnotesize {_tex(text)}}}" if text else ""


def _tex(text: str) -> str:
    return tex(text).replace("$$", "")
