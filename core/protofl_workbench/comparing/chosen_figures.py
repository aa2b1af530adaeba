"""The figures of `protofl.compare`: named ones, or those that all trials have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from protofl.data.task_names import score_name
from protofl.errors import UsageError
from protofl_workbench.comparing.pairing import Setting
from protofl_workbench.comparing.run_figures import COSTS
from protofl_workbench.comparing.trial_figures import (
    CHANCE,
    CostToTarget,
    TrialFigure,
    WorseOff,
    trial_figure,
)
from protofl_workbench.comparing.trials import PairKey, Trial, pair_key

EXTRA_FIGURES = (
    *("worst", "decile", "std", "gini", "macro-f1", "balanced-accuracy"),
    *("map", "label-f1", "mae", "r2", "perplexity"),
    *("global-accuracy", "server-accuracy", "unseen-accuracy", "fine-tuned-accuracy"),
)
"""Figures that are compared by default if all trials have them."""

WORSE_OFF = ("worse-off", CHANCE, "worse-off-by")
"""Figures of clients against ``local``, which are compared by default if it is there."""

AnyFigure: TypeAlias = "TrialFigure | WorseOff | CostToTarget"


def trials_alone(setting: Setting) -> dict[PairKey, Trial]:
    """Return the trials of ``local``; nothing if several groups are."""
    local_groups = [group for group in setting.groups if group.runs[0].name == "local"]
    return (
        {pair_key(trial): trial for trial in local_groups[0].trials}
        if len(local_groups) == 1
        else {}
    )


def figure(name: str, alone: Mapping[PairKey, Trial]) -> TrialFigure | WorseOff:
    """Return the figure that a name stands for.

    Raises:
        UsageError: It needs trials of ``local``, or the round is unknown.
    """
    if name not in WORSE_OFF:
        return trial_figure(name)
    if not alone:
        raise UsageError(
            f"--figure {name} compares with local, and there is not one group of it",
            do="add a run of local with the same seeds and split",
        )
    return WorseOff(name, alone)


def default_figures(
    trials: Sequence[Trial], alone: Mapping[PairKey, Trial]
) -> list[TrialFigure | WorseOff]:
    """Return the figures that are compared if no names are given."""
    names = ["final", "best"]
    if all(trial.has("validation-accuracy") for trial in trials):
        names.append("validation")
    few = all(trial.run.config["clients"] <= 10 for trial in trials)  # a tenth is one client
    negative = any(score_name(trial.run.config) == "R²" for trial in trials)  # no Gini of these
    left_out = [*["decile"] * few, *["gini"] * negative]
    extra = [name for name in EXTRA_FIGURES if name not in left_out]
    names += [name for name in extra if all(trial.has(name) for trial in trials)]
    if alone and all(trial.has("worst") for trial in trials):
        names += WORSE_OFF
    return [figure(name, alone) for name in names]


def costs_to_target(trials: Sequence[Trial], target: float | None) -> list[CostToTarget]:
    """Return the costs that all trials record; traffic in both directions together."""
    if target is None:
        return []
    names = [name for name in COSTS if name != "upload-mb"]
    return [CostToTarget(n, target) for n in names if all(trial.records(n) for trial in trials)]
