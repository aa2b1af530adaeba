"""What ``protofl bench`` prints: the cases, their speed, and their seconds by stage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protofl.bench.cases import Case

STAGES = ("setup", "train", "prototypes", "payload", "server", "evaluate", "total", "cpu")

Rows = tuple[list[str], list[list[str]]]


def case_rows(cases: Iterable[Case]) -> list[list[str]]:
    """The table of ``--list``."""
    return [
        [
            case.name,
            case.method + "".join(f" {key}={value}" for key, value in case.options.items()),
            case.models,
            case.data,
            f"{case.clients} × {case.samples}",
            case.part,
            f"{case.target:g}×" if case.target else "",
        ]
        for case in cases
    ]


def speed_rows(result: dict[str, Any]) -> Rows:
    """Seconds a round with their spread, and beside another loop the ratio and its target."""
    columns = ["case", "protofl, s", f"{result['against']}, s", "ratio", "target", "peak memory"]
    rows = []
    for row in result["cases"]:
        cells = [row["name"], spread(row["protofl"]["seconds"]["total"])]
        if result["against"]:
            ratio, target = row["ratio"], row["target"]
            cells += [
                spread(row["against"]["seconds"]["total"]),
                f"{ratio['median']:.2f} ({ratio['min']:.2f} … {ratio['max']:.2f})",
                f"{target:g}" if target else "",
                "",
            ]
        else:
            cells += ["", "", "", size(row["protofl"]["memory"]["host"])]
        rows.append(cells)
    return _used(columns, rows)


def agreement_rows(result: dict[str, Any]) -> Rows:
    """Whether both loops reach the same, how far apart they are, and what memory each takes."""
    columns = ["case", "equal", "in float64", "in float32", "protofl, peak"]
    columns.append(f"{result['against']}, peak")
    rows = []
    for row in result["cases"]:
        found = row["equality"]
        rows.append(
            [
                row["name"],
                found["unchecked"] if found["equal"] is None else "yes" if found["equal"] else "NO",
                _largest(found["float64"]),
                _largest(found["float32"]),
                *(size(row[side]["memory"]["host"]) for side in ("protofl", "against")),
            ]
        )
    return _used(columns, rows)


def _largest(found: dict[str, Any] | None) -> str:
    """The largest relative difference, and how many clients' accuracies differ."""
    if found is None:
        return ""
    largest, others = found["largest"], found["accuracies_apart"]
    text = "no common tensors" if largest is None else f"{largest:.0e}"
    return text + (f", {others} accuracies" if others else "")


def stage_rows(result: dict[str, Any]) -> Rows:
    """Medians by stage, a row for protofl and one for the other loop."""
    found = []
    for row in result["cases"]:
        for side in ("protofl", "against"):
            if row[side] is None:
                continue
            start = row[side]["start"]
            seconds = row[side]["seconds"]
            cells = [row["name"] if side == "protofl" else f"  {result['against']}"]
            cells.append(number(start["launch"]["median"] + start["clients"]["median"]))
            cells += [number(seconds[s]["median"]) if s in seconds else "" for s in STAGES]
            found.append(cells)
    return _used(["case", "start", *STAGES], found)


def _used(columns: list[str], rows: list[list[str]]) -> Rows:
    """The columns that hold something."""
    used = [i for i in range(len(columns)) if any(cells[i] not in ("", "·") for cells in rows)]
    return [columns[i] for i in used], [[cells[i] for i in used] for cells in rows]


def spread(values: dict[str, float]) -> str:
    """``2.31 (2.28 … 2.40)``: the median, the smallest and the largest."""
    low, middle, high = (number(values[key]) for key in ("min", "median", "max"))
    return f"{middle} ({low} … {high})"


def number(seconds: float) -> str:
    """Seconds with three digits that mean something; a dot for nothing."""
    if seconds < 0.0005:
        return "·"
    return (
        f"{seconds:.3f}"
        if seconds < 1
        else f"{seconds:.3g}"
        if seconds < 100
        else f"{seconds:,.0f}"
    )


def size(count: float) -> str:
    """Bytes as GB."""
    return f"{count / 1e9:.2f} GB"


def machine_line(result: dict[str, Any]) -> str:
    """On what it was measured."""
    gpu = f", {result['gpu']}" if result["gpu"] else ""
    return (
        f"{result['processor']}, {result['cores']} cores{gpu}; torch {result['torch']}, Python "
        f"{result['python']}; {result['repeats']} measures of {result['rounds']} round"
        + ("s" if result["rounds"] > 1 else "")
    )
