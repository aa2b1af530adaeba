"""A comparison as text: tables for a reader, lines for a program."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protofl_workbench.comparing.selection import WHEN

if TYPE_CHECKING:
    from protofl_workbench.comparing.differences import Difference, Found, Row, Table

COLUMNS = 4
"""Figures beside each other in a table."""


@dataclass(frozen=True)
class Sheet:
    """A table for a reader.

    Attributes:
        title: A line above it.
        columns: Headings; the first column names groups.
        rows: Cells.
        best: Places (row, column) of each column's best.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()


def sheets(comparison: Found) -> list[Sheet]:
    """The tables that a reader sees: on each data figures of groups, then differences."""
    found = []
    settings = dict.fromkeys(table.setting for table in comparison.tables)
    for setting in settings:
        own = [table for table in comparison.tables if table.setting == setting]
        for part in _parts(own):
            found.append(_figures(setting, part))
        for table in own:
            if table.baseline and (table.name in comparison.shown):
                where = f"{setting}: " if len(settings) > 1 else ""
                found.append(_differences(table, comparison.paired, where))
    return found


def _parts(tables: Sequence[Table]) -> list[list[Table]]:
    """Tables that stand beside each other: of one kind, and no more than fit."""
    kinds: dict[str, list[Table]] = {}
    for table in tables:
        kinds.setdefault(_kind(table), []).append(table)
    found = []
    for own in kinds.values():
        wide = -(-len(own) // -(-len(own) // COLUMNS))  # equally wide, as far as they can be
        found += [own[n : n + wide] for n in range(0, len(own), wide)]
    return found


def _kind(table: Table) -> str:
    if "-to-" in table.name:
        return "reaching"
    return "accuracy" if table.name in WHEN else "at" if "@" in table.name else "further"


def _figures(setting: str, tables: Sequence[Table]) -> Sheet:
    rows, best = [], set()
    for number, row in enumerate(tables[0].rows):
        cells = [_spread(table.rows[number], table) for table in tables]
        rows.append((row.label, str(len(row.values)), *cells))
    for column, table in enumerate(tables):
        means = [row.mean for row in table.rows]
        there = [mean for mean in means if not math.isnan(mean)]
        if len(there) > 1:
            top = min(there) if table.lower else max(there)
            best |= {(n, column + 2) for n, mean in enumerate(means) if mean == top}
    heads = [_head(table) + (" †" if table.machines else "") for table in tables]
    about = {"accuracy": "test accuracy (%)", "further": "in the last round"}.get(_kind(tables[0]))
    return Sheet(
        setting + (f": {about}" if about else ""),
        ("method", "trials", *heads),
        tuple(rows),
        frozenset(best),
    )


def _head(table: Table) -> str:
    """A column's heading, without what stands above the table."""
    if table.name in WHEN:
        return WHEN[table.name]
    return table.title.replace(f", {WHEN['final']}", "")


def _differences(table: Table, paired: bool, where: str) -> Sheet:
    rows = []
    several = sum(row.difference is not None for row in table.rows) > 1
    for row in table.rows:
        d = row.difference
        if d is None:
            continue
        cells = [row.label, str(d.count), _difference(d, table), _interval(d, table), _p(d.p)]
        cells += [_p(d.holm)] if several else []
        cells += [f"{d.better} / {d.worse}"] if paired else []
        rows.append(tuple(cells))
    heads = ["method", "pairs" if paired else "trials", "difference", "interval", "p"]
    heads += ["Holm"] if several else []
    heads += ["better / worse"] if paired else []
    title = f"{where}{table.title}: difference to {table.baseline}"
    return Sheet(title, tuple(heads), tuple(rows))


def number(value: float, share: bool, like: float | None = None) -> str:
    """A figure as it is shown: a share in % with two decimals, others as large ones need.

    Args:
        value: The figure.
        share: Whether it is a share.
        like: What it is shown beside, with as many decimals; itself where None.
    """
    if math.isnan(value):
        return "–"
    if share:
        return f"{value * 100:.2f}"
    size = abs(value if like is None else like)
    if not size and not value:
        return "0"
    if size >= 1e5:
        return f"{value:.2e}"
    return f"{value:.{1 if size >= 100 else 2 if size >= 1 else 4}f}"


def _spread(row: Row, table: Table) -> str:
    """Mean ± deviation, and how many of the trials have the figure where not all do."""
    missing = len(row.values) - len(row.found)
    if not row.found:
        return "never" if missing and "-to-" in table.name else "–"
    text = number(row.mean, table.share)
    if len(row.found) > 1:
        text += f" ± {number(row.std, table.share, row.mean)}"
    return text + (f" ({len(row.found)}/{len(row.values)})" if missing else "")


def _difference(d: Difference, table: Table) -> str:
    text = _signed(d.mean, table.share)
    if math.isnan(d.std) or d.count < 2:
        return text
    return f"{text} ± {number(d.std, table.share, d.mean)}"


def _signed(value: float, share: bool) -> str:
    if math.isnan(value):
        return "–"
    text = number(abs(value), share)
    return f"{'−' if value < 0 else '+'}{text}"


def _interval(d: Difference, table: Table) -> str:
    if math.isnan(d.low):
        return "–"
    return f"[{_signed(d.low, table.share)}, {_signed(d.high, table.share)}]"


def _p(value: float) -> str:
    if math.isnan(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


# --- formats -----------------------------------------------------------------------------------


def markdown(comparison: Found) -> str:
    """Tables with a line above each, and notes."""
    parts = []
    for sheet in sheets(comparison):
        rows = [
            [f"**{_md(c)}**" if (n, m) in sheet.best else _md(c) for m, c in enumerate(row)]
            for n, row in enumerate(sheet.rows)
        ]
        marks = ["---", *["---:"] * (len(sheet.columns) - 1)]
        lines = [[_md(c) for c in sheet.columns], marks, *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"{_md(sheet.title)}\n\n{table}")
    parts.append("\n".join(f"- {_md(note)}" for note in comparison.notes))
    return "\n\n".join(filter(None, parts)) + "\n"


def _md(text: str) -> str:
    for sign in "\\|*_<`":
        text = text.replace(sign, f"\\{sign}")
    return text


def latex(comparison: Found) -> str:
    """Tables with booktabs, each column's best in bold; notes are comments."""
    parts = [f"% {note}" for note in comparison.notes]
    for sheet in sheets(comparison):
        lines = []
        for n, row in enumerate(sheet.rows):
            cells = [_tex(cell) for cell in row]
            cells = [rf"\textbf{{{c}}}" if (n, m) in sheet.best else c for m, c in enumerate(cells)]
            lines.append(" & ".join(cells) + r" \\")
        parts += [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex(sheet.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(sheet.columns) - 1)}}}",
            r"\toprule",
            " & ".join(map(_tex, sheet.columns)) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    return "\n".join(parts) + "\n"


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": "$-$", "†": r"$\dagger$", "–": "--", "<": "$<$", ">": "$>$",
    "β": r"$\beta$", "×": r"$\times$", "…": r"\dots{}",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in text)


def flat(comparison: Found) -> list[dict[str, Any]]:
    """A mapping for each group and figure; None for what there is not."""
    found = []
    for table in comparison.tables:
        for row in table.rows:
            d = row.difference
            line = {
                "setting": table.setting,
                "figure": table.name,
                "method": row.label,
                "trials": len(row.values),
                "found": len(row.found),
                "mean": row.mean,
                "std": row.std,
                "baseline": table.baseline,
                "pairs": d.count if d else None,
                "difference": d.mean if d else None,
                "difference_std": d.std if d else None,
                "low": d.low if d else None,
                "high": d.high if d else None,
                "p": d.p if d else None,
                "p_holm": d.holm if d else None,
                "better": d.better if d else None,
                "worse": d.worse if d else None,
                "machines_differ": table.machines,
            }
            found.append({key: _plain(value) for key, value in line.items()})
    return found


def as_csv(comparison: Found) -> str:
    """A line for each group and figure, shares as shares."""
    lines, text = flat(comparison), io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def as_json(comparison: Found) -> str:
    """The same as a list of objects, with each seed's figure, and the notes."""
    lines = flat(comparison)
    rows = [row for table in comparison.tables for row in table.rows]
    whole = [
        {**line, "seeds": list(row.seeds), "values": [_plain(value) for value in row.values]}
        for line, row in zip(lines, rows, strict=True)
    ]
    found = {"paired": comparison.paired, "figures": whole, "notes": list(comparison.notes)}
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:  # noqa: ANN401 - a cell of any type
    return None if isinstance(value, float) and not math.isfinite(value) else value


FORMATS: dict[str, Callable[[Found], str]] = {
    "md": markdown,
    "tex": latex,
    "csv": as_csv,
    "json": as_json,
}
"""How a comparison can be written."""
