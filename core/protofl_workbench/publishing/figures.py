"""Figures of a published folder, as ``protofl plot`` draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from protofl.errors import UsageError, unknown
from protofl_workbench import plots
from protofl_workbench.plots.figure_files import FORMATS
from protofl_workbench.recorded.recorded_run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_RUNS: dict[str, Callable[[Sequence[Run]], Figure]] = {
    "curve": lambda runs: plots.curve(runs),
    "bars": lambda runs: plots.bars(runs),
    "differences": lambda runs: plots.differences(runs),
    "clients": lambda runs: plots.clients(runs),
    "traffic": lambda runs: plots.traffic(runs),
}
"""Figures of all runs together."""

OF_ONE: dict[str, Callable[[Run], Figure]] = {
    "split": lambda run: plots.split(run),
    "confusion": lambda run: plots.confusion(run),
}
"""Figures of one run; each run has its own."""

SEVERAL, ONE = ("curve", "bars", "clients", "traffic"), ("curve", "clients", "split", "traffic")
"""Figures that are drawn by default of several runs, and of one run."""

NONE = "none"


def check_figures(asked: Sequence[str]) -> None:
    """Check names of figures: ``KIND`` or ``KIND.FORMAT``.

    Raises:
        UsageError: A kind or a format is unknown.
    """
    for name in asked:
        kind, _, form = name.partition(".")
        if kind != NONE and kind not in OF_RUNS | OF_ONE:
            raise unknown("figure", kind, [*OF_RUNS, *OF_ONE, NONE], "see: protofl plot --help")
        if form not in ("", *FORMATS):
            raise unknown("format of a figure", form, FORMATS)


def draw_figures(
    runs: Sequence[Run], folder: Path, asked: Sequence[str], note: Callable[[str], None]
) -> None:
    """Draw figures into a folder, which is made if there is a figure.

    Args:
        runs: The runs.
        folder: The folder.
        asked: Names as in `check_figures`; empty for the default ones.
        note: Takes a line for each default figure that the runs cannot have.

    Raises:
        UsageError: The runs do not have what a figure needs that was asked for.
    """
    names = [name for name in asked if name != NONE]
    if not asked:
        names = [*(SEVERAL if len(runs) > 1 else ONE)]
    for name in dict.fromkeys(names):
        kind, _, form = name.partition(".")
        made: dict[str, Callable[[], Figure]] = {}
        if kind in OF_RUNS:
            made[kind] = partial(OF_RUNS[kind], runs)
        for run in runs if kind in OF_ONE else ():
            stem = kind if len(runs) == 1 else f"{kind}-{run.folder.name}"
            made[stem] = partial(OF_ONE[kind], run)
        for stem, draw in made.items():
            try:
                figure = draw()
            except UsageError as problem:
                if asked:
                    raise
                note(f"figure {stem} is left out: {problem.what}")
                continue
            folder.mkdir(exist_ok=True)
            plots.save(figure, folder / f"{stem}.{form or 'png'}")
