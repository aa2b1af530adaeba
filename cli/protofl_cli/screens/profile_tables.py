"""Table of ``--profile``: the time of a run's rounds by stage."""

from __future__ import annotations

from typing import Any

from protofl.system.formatting import count
from protofl_cli.screens import render

Row = tuple[str, ...]


def show_profile(profile: dict[str, Any]) -> None:
    """Print the table of a profile."""
    columns = ("stage", "seconds", "share")
    render.table(columns, stage_rows(profile), title=headline(profile), right=columns[1:])
    if start := [f"{name} {seconds:.2f} s" for name, seconds in profile["start"].items()]:
        render.text(f"before the rounds: {', '.join(start)}")


def headline(profile: dict[str, Any]) -> str:
    """Return the title with the time that the shares refer to."""
    rounds, workers = profile["rounds"], profile["workers"]
    several = f"{workers} workers × " if workers > 1 else ""
    return f"Where the time went: {count(rounds, 'round')}, {several}{profile['seconds']:.2f} s"


def stage_rows(profile: dict[str, Any]) -> list[Row]:
    """Return stages of the workers, their waiting, and the time of the run and the server."""
    wall = profile["seconds"]
    whole = wall * max(1, profile["workers"])
    rows: list[Row] = []
    for stage, seconds in sorted(profile["stages"].items(), key=lambda item: -item[1]):
        rows.append(_row(stage, seconds, whole))
        if stage == "train":
            rows += [_row(f"  {phase}", part, whole) for phase, part in profile["training"].items()]
    rows.append(_row("waiting", profile["waiting"], whole))
    rows.append(("", "", ""))
    rows.append(_row("run and server", wall, wall))
    return rows + [_row(f"  {name}", part, wall) for name, part in profile["server"].items()]


def _row(name: str, seconds: float, whole: float) -> Row:
    share = seconds / whole if whole else 0.0
    return (name, f"{seconds:.3f}" if seconds < 1 else f"{seconds:.2f}", f"{share:.1%}")
