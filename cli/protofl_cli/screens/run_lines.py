"""States of runs for ``protofl watch``: a table on a terminal, otherwise lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from protofl.system.formatting import size_text
from protofl_cli import standard_streams
from protofl_cli.screens import render
from protofl_cli.screens.tables import clock

if TYPE_CHECKING:
    from protofl_workbench.recorded.monitor import RunStatus

CURVE, WIDE = 24, 110
"""Characters of a curve, and width of a terminal below which it is half as long."""

BLOCKS, PLAIN = "▁▂▃▄▅▆▇█", "_.-=+*#@"
"""Characters of a curve from low to high, and their replacements in ASCII."""


COLUMNS = ("run", "state", "round", "accuracy", "last", "best", "left", "traffic", "absent")
RIGHT = ("round", "last", "best", "left", "traffic", "absent")


def board(seen: Sequence[RunStatus], folder: Path, width: int, height: int = 0) -> render.Board:
    """Return the runs as a table that fits a terminal.

    Args:
        seen: The runs, the most important first.
        folder: Folder of the runs.
        width: Columns of the terminal.
        height: Lines of the terminal; 0 for no limit.
    """
    shown = seen[: max(1, height - 5)] if height else seen
    rows = [_cells(run, folder, CURVE if width >= WIDE else CURVE // 2) for run in shown]
    count = len(COLUMNS) - (not any(run.absent for run in shown))
    columns = COLUMNS[: count if width >= WIDE else COLUMNS.index("traffic")]
    caption = f"{_counts(seen)} in {folder}" if seen else f"no runs in {folder} yet"
    caption += f"; {len(seen) - len(shown)} are hidden" if len(shown) < len(seen) else ""
    return columns, [row[: len(columns)] for row in rows], caption


def _cells(run: RunStatus, folder: Path, width: int = CURVE) -> list[str]:
    entry = run.entry
    trial = f"trial {run.trial + 1}/{entry.trials} " if entry.trials > 1 else ""
    return [
        _name(run, folder),
        run.state,
        f"{trial}{run.round}/{entry.rounds}",
        curve(run.curve, width),
        f"{run.curve[-1]:.1%}" if run.curve else "",
        f"{max(run.curve):.1%}" if run.curve else "",
        "" if run.left is None else clock(run.left),
        size_text(run.megabytes * 1e6) if run.megabytes else "",
        str(run.absent or ""),
    ]


def _name(run: RunStatus, folder: Path) -> str:
    name = run.path.relative_to(folder).as_posix()
    return run.path.absolute().name if name == "." else name


def _counts(seen: Sequence[RunStatus]) -> str:
    states = Counter(run.state for run in seen)
    order = ("going on", "finished", "unfinished", "diverged", "damaged")
    return ", ".join(f"{states[state]:,} {state}" for state in order if states[state])


def curve(values: Sequence[float], width: int = CURVE) -> str:
    """Return numbers as a line of blocks, one for each number or for the mean of several.

    The lowest block is the smallest value and the highest block the largest.
    """
    if not values:
        return ""
    step = max(1.0, len(values) / width)
    edges = [round(n * step) for n in range(min(len(values), width) + 1)]
    parts = [values[a:b] for a, b in pairwise(edges) if b > a]
    means = [sum(window) / len(window) for window in parts]
    low, high = min(means), max(means)
    signs = BLOCKS if standard_streams.encodes(BLOCKS) else PLAIN
    scale = (len(signs) - 1) / (high - low) if high > low else 0.0
    return "".join(signs[round((mean - low) * scale)] for mean in means)


class RunLines:
    """Lines about changes of runs, for output that is not a terminal.

    Args:
        folder: Folder of the runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._said: dict[Path, tuple[str, int, int]] = {}

    def new(self, seen: Sequence[RunStatus]) -> Iterator[str]:
        """Yield a line for each run that has changed."""
        for run in seen:
            now = (run.state, run.trial, run.round)
            if self._said.get(run.path) == now:
                continue
            self._said[run.path] = now
            name, state, rounds, _, accuracy, best, left, *_ = _cells(run, self._folder)
            parts = [f"{name}: {state}, round {rounds}"]
            parts += [f"accuracy {accuracy}, best {best}"] if accuracy else []
            parts += [f"{left} left"] if left else []
            yield ", ".join(parts)
