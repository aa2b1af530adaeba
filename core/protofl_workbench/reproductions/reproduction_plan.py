"""The plan of a reproduction: runs, finished rounds, steps, and estimated hours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from protofl.errors import UsageError
from protofl.federation.plan.plan import Plan
from protofl.records.failure import repeated_failure
from protofl.system.consent import digest_of
from protofl.system.files.home import expand_user
from protofl_workbench.batch.estimate import pace, seconds_of, steps_in, workload
from protofl_workbench.reproductions.account import plan_of
from protofl_workbench.reproductions.cells import Cell, Change
from protofl_workbench.reproductions.inventory import (
    ReproductionProgress,
    finished_run,
    missing_inputs,
    needs_run,
    unfinished_run,
)
from protofl_workbench.reproductions.reproduction import Reproduction
from protofl_workbench.reproductions.reproduction_execution import error_place
from protofl_workbench.reproductions.reproduction_result import facts_of

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class PlannedRun:
    """A run of a reproduction's plan.

    Attributes:
        name: Name of its first cell.
        cells: Number of cells that are read from it.
        rounds: Rounds of all trials.
        done: Finished rounds.
        steps: Mini-batches of all clients.
        seconds: Estimated time of the remaining rounds with one host; None if not measured.
        missing: Missing data or weights; empty if there are none.
        folder: The run folder, if any.
        diverged: True if the run diverged before and would diverge again.
    """

    name: str
    cells: int
    rounds: int = 0
    done: int = 0
    steps: int = 0
    seconds: float | None = None
    missing: str = ""
    folder: Path | None = None
    diverged: bool = False

    @property
    def finished(self) -> bool:
        """True if all rounds are done."""
        return 0 < self.rounds <= self.done


@dataclass(frozen=True)
class ReproductionPlan:
    """The plan of a reproduction.

    Attributes:
        reproduction: The reproduction.
        runs: The runs, in the order of the cells.
        accounts: Number of accounts, which need no training.
        folder: The folder of runs.
        device: Device on which steps were measured.
        facts: Scale, splits, trials and rounds, in words.
        files: {file that the user has not given: description}.
        code: Classes outside the installed plugins that are imported, with digests of their files.
    """

    reproduction: Reproduction
    runs: tuple[PlannedRun, ...]
    accounts: int
    folder: Path
    device: str
    facts: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    code: tuple[str, ...] = ()


def plan_reproduction(
    reproduction: Reproduction,
    change: Change,
    runs: str | Path = "reproductions",
    progress: Progress = lambda cell_name, share: None,
    *,
    measure: bool = True,
) -> ReproductionPlan:
    """Plan a reproduction; nothing is started, downloaded or trained.

    Steps are measured in two dry rounds, once for runs with the same method, models and sizes.

    Args:
        reproduction: The reproduction.
        change: Scale, client sampler and other changes.
        runs: The folder of runs.
        progress: Takes the name of a cell, and the finished share of the plan.
        measure: True to measure steps and estimate hours.

    Raises:
        UsageError: A cell cannot be run.
    """
    state, folder = ReproductionProgress.of(reproduction, change), expand_user(runs)
    cells = state.to_run()
    made = Counter(cell.key for cell in state.cells if cell.options)
    missing = missing_inputs(cells, lambda line: None, fetch=False)
    paces: dict[str, dict[str, float]] = {}
    planned, device = [], "cpu"
    for number, cell in enumerate(cells):
        progress(cell.name, number / len(cells))
        try:
            with error_place(cell):
                plan = plan_of(cell.request())
                plan.split(0)
        except UsageError:
            if cell.key not in missing:
                raise
            why = missing[cell.key].what  # the sizes of its data are unknown
            planned.append(PlannedRun(cell.name, made[cell.key], missing=why))
            continue
        device = str(plan.device)
        planned.append(
            _planned(cell, made[cell.key], plan, missing, folder, paces, measure=measure)
        )
    variant = reproduction.variant if change.variant is None else change.variant
    options = [
        cell.options for cell in state.cells if cell.options and needs_run(reproduction, cell)
    ]
    facts = facts_of(reproduction, change.scale, variant, options)
    files = {name: about for cell in cells for name, about in cell.lacks.items()}
    classes = [cell.request().options.get("classes", {}) for cell in cells]
    places = dict.fromkeys(
        place for cell_classes in classes for place in cell_classes.values() if place
    )
    code = tuple(f"{place} ({digest_of(place)})" for place in places)
    accounts = len(state.to_account())
    return ReproductionPlan(
        reproduction,
        tuple(planned),
        accounts,
        folder,
        device,
        facts,
        files,
        code,
    )


def _planned(
    cell: Cell,
    cells: int,
    plan: Plan,
    missing: dict[str, UsageError],
    folder: Path,
    paces: dict[str, dict[str, float]],
    *,
    measure: bool,
) -> PlannedRun:
    load, rounds = workload(plan), plan.settings.rounds * plan.settings.trials
    error = missing.get(cell.key)
    whole = None if error else finished_run(cell, folder)
    known = None if error else whole or unfinished_run(cell.request(), folder)
    finished = rounds if whole else 0 if known is None else min(known.rounds_done, rounds)
    ended = finished < rounds and known and repeated_failure(known.folder, plan.device.type)
    seconds = None
    if measure and finished < rounds and not ended:
        s = plan.settings
        kind = f"{s.method} {s.models} {s.batch_size} {s.feature_dim} {plan.info.sample}"
        if kind not in paces:
            paces[kind] = pace(plan)
        seconds = seconds_of(load, paces[kind]) * (1 - finished / rounds)
    return PlannedRun(
        cell.name,
        cells,
        rounds,
        finished,
        steps_in(load),
        seconds,
        "" if error is None else f"without {', '.join(cell.lacks)}" if cell.lacks else error.what,
        None if known is None else known.folder,
        bool(ended),
    )
