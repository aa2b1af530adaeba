"""Which cells of a study, and how: options that its commands share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from protofl_workbench.studies.cells import Change


def option(panel: str, flag: str, metavar: str, text: str, **extra: Any) -> Any:  # noqa: ANN401
    """An option of a command, in a panel of its help."""
    return typer.Option(f"--{flag}", metavar=metavar, help=text, rich_help_panel=panel, **extra)


def which(flag: str, metavar: str, text: str, **extra: Any) -> Any:  # noqa: ANN401
    """An option that says which cells of a study, and how they are run."""
    return option("Which cells of a study, and how", flag, metavar, text, **extra)


SCALE = which("scale", "NAME", "paper, or a smaller one: fast, smoke (protofl reproduce --list)")
VARIANT = which(
    "variant",
    "NAME",
    "How the paper is read: paper, by its equations; official, as its published code does; or "
    "another that the study has (default: the study's)",
)
ONLY = which("only", "ROW,…", "These rows alone.")
COLUMNS = which("columns", "COLUMN,…", "These columns alone.")
TRIALS = which("trials", "N", "Trials of every run (≥ 1; default: the study's)", min=1)
DATASET = which(
    "dataset",
    "NAME=NAME[:PATH]",
    "What takes the place of a data set of the study: cifar10=npz:FILE; repeatable.",
)
FILE = which(
    "file",
    "NAME=PATH",
    "A file of yours that the study names, such as a generator's weights; repeatable.",
)
SET = which(
    "set", "[NAME.]KEY=VALUE", "An option of a plugin in all runs, as for protofl run; repeatable."
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
    """What these options change in all cells of a study.

    Args:
        options: Options of all runs; None for what is not given.
        scale: ``--scale``, and so on: as they are typed.
        variant: ``--variant``.
        only: ``--only``.
        columns: ``--columns``.
        rounds: ``--rounds``.
        trials: ``--trials``.
        dataset: ``--dataset``.
        file: ``--file``.
        set_: ``--set``.

    Raises:
        UsageError: One is not written as it should be.
    """
    from protofl.system.options.parsing import assignments
    from protofl_workbench.studies.cells import Change

    given = assignments("--set", set_ or (), "[NAME.]KEY=VALUE")
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
        options=options | ({"set": given} if given else {}),
    )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
