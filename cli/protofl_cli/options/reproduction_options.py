"""Options of all commands with reproductions: selected cells and changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from protofl_cli.options.options import option

if TYPE_CHECKING:
    from protofl_workbench.reproductions.cells import Change


which = partial(option, rich_help_panel="Selection and changes of a reproduction")
"""Returns an option of reproductions."""

SCALE = which("--scale", "NAME", "Scale: paper, or a smaller one (see: protofl reproduce --list)")
VARIANT = which(
    "--variant",
    "NAME",
    "paper: the equations; official: the published code; or another variant of the reproduction "
    "(default: of the reproduction)",
)
ONLY = which("--only", "ROW,…", "Only these rows.")
COLUMNS = which("--columns", "COLUMN,…", "Only these columns.")
TRIALS = which("--trials", "N", "Trials of every run (≥ 1; default: of the reproduction)", min=1)
DATASET = which(
    "--dataset",
    "NAME=NAME[:PATH]",
    "Replace a data set of the reproduction: cifar10=npz:FILE; repeatable.",
)
FILE = which(
    "--file",
    "NAME=PATH",
    "Path of a file that the reproduction needs, such as a generator's weights; repeatable.",
)
SET = which(
    "--set", "[NAME.]KEY=VALUE", "Option of a plugin in all runs, as for protofl run; repeatable."
)


def change_of(
    options: Mapping[str, Any],
    *,
    scale: str | None,
    variant: str | None,
    only: str | None,
    columns: str | None,
    rounds: int | None,
    trials: int | None,
    dataset: list[str] | None,
    file: list[str] | None,
    set_: list[str] | None,
) -> Change:
    """Return the changes of a reproduction from the options of a command as they are typed.

    Raises:
        UsageError: The form of an option is wrong.
    """
    from protofl.system.options.parsing import assignments
    from protofl_workbench.reproductions.cells import Change

    assigned = assignments("--set", set_ or (), "[NAME.]KEY=VALUE")
    options = {key: value for key, value in options.items() if value is not None}
    return Change(
        scale=scale or "paper",
        variant=variant,
        only=_names(only),
        columns=_names(columns),
        rounds=rounds,
        trials=trials,
        datasets=assignments("--dataset", dataset or [], "NAME=NAME[:PATH]"),
        files=assignments("--file", file or [], "NAME=PATH"),
        options=options | ({"set": assigned} if assigned else {}),
    )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
