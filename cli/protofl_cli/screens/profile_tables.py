"""Tables of ``--profile``: the time of a run's rounds by stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protofl.system.formatting import count, shortened
from protofl_cli.screens import render

Row = tuple[str, ...]

STAGES = ("setup", "train", "prototypes", "payload", "evaluate", "checkpoint")
PARTS = {"train": "training", "payload": "payload"}
"""{stage: key of the seconds of its parts}."""

SHOWN = 12
"""Largest number of operators and architectures in a table; the files have all."""


def show_profile(profile: dict[str, Any], folder: str) -> None:
    """Print the tables of a profile, and the place of its trace."""
    for title, columns, rows in profile_tables(profile):
        render.table(columns, rows, title=title, right=columns[1:])
    if line := start_line(profile):
        render.text(line)
    render.line(f"trace: {folder}/trace.json (open it in https://ui.perfetto.dev)")


def profile_tables(profile: dict[str, Any]) -> Iterator[tuple[str, Row, list[Row]]]:
    """Yield tables as title, headings and rows."""
    yield headline(profile), ("stage", "seconds", "share"), stage_rows(profile)
    headings: Row = ("architecture", "clients", "steps", "ms a step", "seconds")
    yield "Training steps", headings, architecture_rows(profile)
    headings = ("operator", "share", "seconds", "sampled calls")
    for key, title in (("operators", "Operators"), ("kernels", "GPU kernels")):
        if rows := operator_rows(profile[key]):
            yield f"{title} by their own time, from a sample of each architecture", headings, rows


def headline(profile: dict[str, Any]) -> str:
    """Return the title with the time that the shares refer to."""
    rounds, workers = profile["rounds"], profile["workers"]
    several = f"{workers} workers × " if workers > 1 else ""
    return f"Where the time went: {count(rounds, 'round')}, {several}{profile['seconds']:.2f} s"


def stage_rows(profile: dict[str, Any]) -> list[Row]:
    """Return stages of the workers, their waiting, and the time of the run and the server."""
    wall = profile["seconds"]
    whole = wall * max(1, profile["workers"])
    stages, waiting, server = profile["stages"], profile["waiting"], profile["server"]
    rows: list[Row] = []
    for stage in (*STAGES, *sorted(stages.keys() - {*STAGES})):
        if stage in stages:
            rows.append(_row(stage, stages[stage], whole))
        parts = profile[PARTS[stage]] if stage in PARTS else {}
        rows += [_row(f"  {substage}", seconds, whole) for substage, seconds in parts.items()]
    if profile["profiler"]:
        rows.append(_row("the profiler itself", profile["profiler"], whole))
    rows.append(_row("waiting", sum(waiting.values()), whole))
    rows += [_row(f"  {name}", seconds, whole) for name, seconds in waiting.items()]
    rows.append(("", "", ""))
    rows.append(_row("run and server", wall, wall))
    rows += [_row(f"  {name}", seconds, wall) for name, seconds in server.items()]
    return rows


def start_line(profile: dict[str, Any]) -> str:
    """Return the seconds before the first round."""
    parts = [f"{name} {seconds:.2f} s" for name, seconds in profile["start"].items()]
    return f"before the rounds: {', '.join(parts)}" if parts else ""


def architecture_rows(profile: dict[str, Any]) -> list[Row]:
    """Return training steps by architecture, the slowest first."""
    return [
        (
            a["name"],
            f"{a['clients']:,}",
            f"{a['steps']:,}",
            f"{1e3 * a['seconds'] / a['steps']:.2f}",
            f"{a['seconds']:.2f}",
        )
        for a in profile["architectures"][:SHOWN]
    ]


def operator_rows(operators: list[dict[str, Any]]) -> list[Row]:
    """Operators by their own time."""
    rows: list[Row] = [
        (
            shortened(o["name"], 60),
            f"{o['share']:.1%}",
            f"{o['seconds']:.2f}",
            f"{o['sampled_calls']:,}",
        )
        for o in operators[:SHOWN]
    ]
    rest = operators[SHOWN:]
    if rest:
        share, seconds = (sum(o[key] for o in rest) for key in ("share", "seconds"))
        calls = sum(o["sampled_calls"] for o in rest)
        rows.append((f"{len(rest)} more", f"{share:.1%}", f"{seconds:.2f}", f"{calls:,}"))
    return rows


def _row(name: str, seconds: float, whole: float) -> Row:
    share = seconds / whole if whole else 0.0
    return (name, f"{seconds:.3f}" if seconds < 1 else f"{seconds:.2f}", f"{share:.1%}")
