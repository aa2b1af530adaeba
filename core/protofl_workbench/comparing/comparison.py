"""The result of a comparison, and its text: Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from protofl.errors import unknown
from protofl.system.files.tables import finite
from protofl_workbench.comparing.figure_table import (
    NONE,
    Difference,
    FigureTable,
    GroupFigure,
    csv_text,
    json_text,
    number,
    tex,
    tex_comments,
    tex_table,
)
from protofl_workbench.comparing.figure_table import markdown as md
from protofl_workbench.comparing.statistics import interval
from protofl_workbench.comparing.trial_figures import ACCURACIES, CHANCE, ROUNDS
from protofl_workbench.recorded.row_tables import frame_of

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = 4
"""Figures in one table."""


@dataclass(frozen=True)
class Comparison:
    """The result of `protofl.compare`.

    Attributes:
        tables: A table for each figure and each setting.
        notes: Remarks about the tables.
        shown: Figures whose differences are part of the text; the others are only in `lines`.
    """

    tables: tuple[FigureTable, ...]
    notes: tuple[str, ...]
    shown: tuple[str, ...]

    def text(self, format: str = "md") -> str:
        """Return the comparison as text.

        Args:
            format: ``md``, ``tex`` (booktabs), ``csv`` (a line for each group and figure) or
                ``json``.

        Raises:
            UsageError: The format is unknown.
        """
        if format not in FORMATS:
            raise unknown("format", format, FORMATS)
        return FORMATS[format](self)

    def lines(self) -> list[dict[str, Any]]:
        """Return a flat mapping for each group and figure; None stands for NaN."""
        return [_line(table, row) for table in self.tables for row in table.rows]

    def frame(self) -> pd.DataFrame:
        """Return `lines` as a pandas frame.

        Raises:
            UsageError: pandas is not installed.
        """
        return frame_of(self.lines(), "Comparison.lines has the same")

    def to_values(self) -> dict[str, Any]:
        """Return the lines with the figure of each seed, and the notes, as JSON values."""
        rows = [row for table in self.tables for row in table.rows]
        figures = [
            {**line, "seeds": list(row.seeds), "values": [finite(value) for value in row.values]}
            for line, row in zip(self.lines(), rows, strict=True)
        ]
        return {"figures": figures, "notes": list(self.notes)}

    def __str__(self) -> str:
        return self.text("md")

    def _repr_markdown_(self) -> str:
        """Return the tables as a notebook shows them."""
        return str(self)


_NO_DIFFERENCE = dict.fromkeys(Difference.__dataclass_fields__)


def _line(table: FigureTable, row: GroupFigure) -> dict[str, Any]:
    d = asdict(row.difference) if row.difference else _NO_DIFFERENCE
    line = {
        "setting": table.setting,
        "figure": table.name,
        "method": row.label,
        "trials": len(row.values),
        "found": len(row.found),
        "mean": row.mean,
        "std": row.std,
        "guess": table.guess.mean if table.guess else None,
        "baseline": table.baseline,
        "pairs": d["count"],
        "difference": d["mean"],
        "difference_std": d["std"],
        **{key: d[key] for key in ("low", "high", "p")},
        "p_holm": d["holm"],
        **{key: d[key] for key in ("better", "worse")},
        "machines_differ": table.machines,
    }
    return {k: finite(v) if isinstance(v, float) else v for k, v in line.items()}


@dataclass(frozen=True)
class Sheet:
    """A table for a reader.

    Attributes:
        title: Line above the table.
        columns: Headings; the first column has the names of groups.
        rows: Cells.
        best: Positions (row, column) of the best value of each column, and of values that do not
            differ from it.
        about: What the caption of a paper adds to the title.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    about: str = ""


def sheets(comparison: Comparison) -> list[Sheet]:
    """Return the tables for a reader: for each setting the figures, then the differences."""
    result = []
    settings = dict.fromkeys(table.setting for table in comparison.tables)
    for setting in settings:
        setting_tables = [table for table in comparison.tables if table.setting == setting]
        result += [_figures(setting, tables) for tables in _parts(setting_tables)]
        where = f"{setting}: " if len(settings) > 1 else ""
        result += [
            _differences(table, where)
            for table in setting_tables
            if table.baseline and table.name in comparison.shown
        ]
    return result


def _parts(tables: Sequence[FigureTable]) -> list[list[FigureTable]]:
    """Group tables of one kind into parts of at most `COLUMNS`, equally wide if possible."""
    kinds: dict[str, list[FigureTable]] = {}
    for table in tables:
        kinds.setdefault(_kind(table), []).append(table)
    result = []
    for same_kind in kinds.values():
        wide = -(-len(same_kind) // -(-len(same_kind) // COLUMNS))
        result += [same_kind[n : n + wide] for n in range(0, len(same_kind), wide)]
    return result


def _kind(table: FigureTable) -> str:
    if "-to-" in table.name:
        return "target"
    return "accuracy" if table.name in ACCURACIES else "at" if "@" in table.name else "further"


def _best_rows(table: FigureTable) -> set[int]:
    """Return the row with the best mean, and those that do not differ from it.

    They do not differ if the 95 % interval of the paired differences has 0.
    """
    known = [row for row in table.rows if row.found]
    if len(known) < 2 or table.name == CHANCE:
        return set()
    top = (min if table.lower else max)(known, key=lambda row: row.mean)
    best = set()
    for n, row in enumerate(table.rows):
        low, high = interval(table.pairs(row, top))
        if row.mean == top.mean or low <= 0 <= high:
            best.add(n)
    return best


def _figures(setting: str, tables: Sequence[FigureTable]) -> Sheet:
    best = {(n, column) for column, table in enumerate(tables, 2) for n in _best_rows(table)}
    rows = [
        (row.label, str(len(row.values)), *(_spread(table.rows[n], table) for table in tables))
        for n, row in enumerate(tables[0].rows)
    ]
    if any(table.guess for table in tables):
        guesses = (_spread(table.guess, table) if table.guess else NONE for table in tables)
        rows.append(("majority guess", "", *guesses))
    first = tables[0]
    what = {"further": ": in the last round"}
    if first.name in ROUNDS:  # test accuracy, or the score of another task
        what["accuracy"] = f": {first.title.replace(f', {ROUNDS[first.name]}', '')}"
    title = setting + what.get(_kind(first), "")
    heads = ("method", "trials", *map(_head, tables))
    spreads = "± is the population standard deviation over trials. " * ("±" in str(rows))
    bold = "Bold: the best, and what does not differ from it (from three pairs on: 0 is in the 95 %"
    about = f"{spreads}{bold} interval of the paired differences)." if best else spreads
    return Sheet(title, heads, tuple(rows), frozenset(best), about)


def _head(table: FigureTable) -> str:
    """Return a column's heading without the words of the title above the table."""
    title = ROUNDS.get(table.name) or table.title.replace(f", {ROUNDS['final']}", "")
    return title + " †" * table.machines


def _differences(table: FigureTable, where: str) -> Sheet:
    pairs = [(row.label, row.difference) for row in table.rows if row.difference is not None]
    several = len(pairs) > 1
    rows = [
        (
            label,
            str(d.count),
            _difference(d, table.share),
            _interval(d, table.share),
            _p(d.p),
            *([_p(d.holm)] if several else []),
            f"{d.better} / {d.worse}",
        )
        for label, d in pairs
    ]
    heads = ["method", "pairs", "difference", "interval", "p"]
    heads += ["Holm"] * several + ["better / worse"]
    title = f"{where}{table.title.removesuffix(' (%)')}: difference to {table.baseline}"
    title += " in percentage points" * table.share
    about = (
        "± is the population standard deviation over pairs with the same seed and split, p that of "
        "the exact two-sided Wilcoxon signed-rank test."
    )
    return Sheet(title, tuple(heads), tuple(rows), about=about)


def _spread(row: GroupFigure, table: FigureTable) -> str:
    """Return mean ± deviation, and the number of trials with the figure if some have none."""
    missing = len(row.values) - len(row.found)
    if not row.found:
        return "never" if missing and "-to-" in table.name else NONE
    text = number(row.mean, table.share)
    if len(row.found) > 1:
        text += f" ± {number(row.std, table.share, row.mean)}"
    return text + (f" ({len(row.found)}/{len(row.values)})" if missing else "")


def _difference(d: Difference, share: bool) -> str:
    text = _signed(d.mean, share)
    return text if math.isnan(d.std) or d.count < 2 else f"{text} ± {number(d.std, share, d.mean)}"


def _interval(d: Difference, share: bool) -> str:
    return NONE if math.isnan(d.low) else f"[{_signed(d.low, share)}, {_signed(d.high, share)}]"


def _signed(value: float, share: bool) -> str:
    text = number(abs(value), share)
    return text if text == NONE else f"{'−' if value < 0 else '+'}{text}"


def _p(value: float) -> str:
    return NONE if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


# --- formats -----------------------------------------------------------------------------------


def _markdown(comparison: Comparison) -> str:
    """Return Markdown tables with a line above each, and the notes."""
    parts = []
    for sheet in sheets(comparison):
        rows = [
            [f"**{md(c)}**" if (n, m) in sheet.best else md(c) for m, c in enumerate(row)]
            for n, row in enumerate(sheet.rows)
        ]
        marks = ["---", *["---:"] * (len(sheet.columns) - 1)]
        lines = [[md(c) for c in sheet.columns], marks, *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"{md(sheet.title)}\n\n{table}")
    parts.append("\n".join(f"- {md(note)}" for note in comparison.notes))
    return "\n\n".join(filter(None, parts)) + "\n"


def _latex(comparison: Comparison) -> str:
    """Return booktabs tables with the best of each column in bold; notes are comments."""
    parts = tex_comments(comparison.notes)
    for place, sheet in enumerate(sheets(comparison), 1):
        rows = []
        for n, row in enumerate(sheet.rows):
            cells = [tex(cell) for cell in row]
            rows.append(
                [rf"\textbf{{{c}}}" if (n, m) in sheet.best else c for m, c in enumerate(cells)]
            )
        heads = [" & ".join(map(tex, sheet.columns)) + r" \\"]
        body = [" & ".join(cells) + r" \\" for cells in rows]
        caption, label = tex(f"{sheet.title}. {sheet.about}".strip()), f"tab:compared-{place}"
        parts += tex_table(caption, label, f"l{'r' * (len(sheet.columns) - 1)}", heads, body)
    return "\n".join(parts) + "\n"


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "md": _markdown,
    "tex": _latex,
    "csv": lambda comparison: csv_text(comparison.lines()),
    "json": lambda comparison: json_text(comparison.to_values()),
}
