"""What it takes until an accuracy is reached."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protofl.system.machine.facts import recorded_facts
from protofl_workbench.comparing.options import option_of
from protofl_workbench.comparing.trials import COSTS, Trial

UNITS = {"rounds": "rounds", "mb": "MB", "upload-mb": "MB sent", "seconds": "seconds",
         "flops": "FLOPs", "virtual": "virtual s"}  # fmt: skip


@dataclass(frozen=True)
class Reaching:
    """A cost until the test accuracy is first at least a target, in a round that was evaluated.

    Attributes:
        cost: See `protofl_workbench.comparing.trials.COSTS`.
        target: The accuracy, 0 to 1.
    """

    cost: str
    target: float
    share = False
    lower = True

    @property
    def name(self) -> str:
        """``rounds-to-0.8``."""
        return f"{self.cost}-to-{self.target:g}"

    @property
    def title(self) -> str:
        """What it is."""
        return f"{UNITS[self.cost]} to {self.target * 100:.4g} %"

    def of(self, trial: Trial) -> float:
        """The cost of a trial; NaN where it never reached the target.

        Raises:
            UsageError: The cost is not recorded.
        """
        spent = trial.spent(self.cost)
        places, values = trial.series("accuracy")
        reached = places[values >= self.target]
        return float(spent[reached[0]]) if len(reached) else math.nan


def recorded_costs(trials: list[Trial]) -> list[str]:
    """The costs that every line of some trials has; bytes of both directions alone."""
    names = [name for name in COSTS if name != "upload-mb"]
    return [n for n in names if all(None not in trial.each(COSTS[n].of) for trial in trials)]


def machine_of(trial: Trial) -> tuple[str, ...]:
    """What a trial's seconds depend on, as far as it is recorded."""
    names = ("device", "engine", "backend", "workers", "server_threads")
    options = [option_of(trial.run, name) for name in names]
    known = recorded_facts(trial.run.config)
    facts = [known.get(name) for name in ("torch", "instruction set", "processor")]
    return tuple(map(str, [*options, *facts]))
