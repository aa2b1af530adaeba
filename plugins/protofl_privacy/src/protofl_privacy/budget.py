"""The privacy budget of clients: its options, ε in the record, and the end of a trial.

A client's ε counts all rounds so far, whether it took part or not: an upload that came too late or
was refused has been seen all the same. So ε depends on nothing but options and the number of the
round. A resumed run continues with it, and a round that is computed again draws the same noise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import protofl as pf
from protofl_privacy import accountant

TOLERANCE = 1 + 1e-9
"""Factor for rounding: the last of all rounds spends the budget exactly."""

SIMULATED = "epsilon_if_deployed"
"""Name of ε in the record of a simulation, whose noise can be repeated and protects no client."""


class BudgetConfig(pf.Config):
    """Options of a budget."""

    epsilon: float = pf.Field(
        None, gt=0, description="ε per client over all rounds; the trial ends before it is more"
    )
    delta: float = pf.Field(
        1e-5,
        gt=0,
        lt=0.01,
        description="δ per client over all rounds, far below 1/n for n samples: sending each "
        "sample as it is with probability δ would be allowed",
    )
    noise: float = pf.Field(
        None,
        gt=0,
        description="noise multiplier σ. None: as much as epsilon needs for all rounds",
    )


View: TypeAlias = pf.Client[Any] | pf.Server[Any]
"""A client or the server, with the options of a transform that has a budget."""


class Budgeted(ABC):
    """A transform that spends a budget: its hooks for the record and the end of a trial.

    Attributes:
        name: The transform's name, for messages and the record.
    """

    name: ClassVar[str]

    @abstractmethod
    def cost(self, view: View, noise: float, rounds: int) -> float:
        """Return ε of a client after some rounds with a noise multiplier."""

    @abstractmethod
    def calibrated(self, view: View) -> float:
        """Return the smallest noise multiplier with which all rounds cost at most the budget."""

    def noise_multiplier(self, view: View) -> float:
        """Return σ: the option, or as much as the budget needs for all rounds."""
        given: float | None = view.config.noise
        return self.calibrated(view) if given is None else given

    def epsilon_after(self, view: View, rounds: int) -> float:
        """Return ε of a client after some rounds."""
        return self.cost(view, self.noise_multiplier(view), rounds)

    def is_spent(self, view: View, rounds: int) -> bool:
        """Return True if so many rounds cost more than the budget."""
        budget = view.config.epsilon
        return budget is not None and self.epsilon_after(view, rounds) > budget * TOLERANCE

    def without_budget(self, run: pf.RunInfo, config: BudgetConfig) -> list[str]:
        """Return reasons why uploads of a run can't have a guarantee, whatever they hold."""
        reasons = []
        if run.fitted:
            reasons.append(
                "samples are prepared with statistics of the client's training samples, such as "
                "their mean, so a sample changes all others; prepare the data with public numbers "
                "and give them as npz:PATH"
            )
        for option in run.reads_reports:
            reasons.append(
                f"{option} reads what clients report of their samples without noise, so that the "
                "course of the run reveals it; leave it out"
            )
        for option in run.sends_samples:
            reasons.append(f"{option} sends what single samples show without noise; leave it out")
        if (n := min(filter(None, run.sizes()), default=0)) * config.delta >= 1:
            reasons.append(
                f"{self.name}.delta={config.delta:g} is not below 1/{n}, and the smallest client "
                f"has {n} samples; give a much smaller one"
            )
        if config.epsilon is None and config.noise is None:
            reasons.append(f"give a budget (--set {self.name}.epsilon=8) or {self.name}.noise")
        if not accountant.is_installed():
            reasons.append(accountant.MISSING)
        return reasons

    @pf.hookimpl
    def end_round(self, server: pf.Server[Any]) -> Mapping[str, float]:
        """Record ε of a client so far; of a simulation, with a name that says so."""
        figure = "epsilon" if server.has_secrets else SIMULATED
        return {f"{self.name}.{figure}": self.epsilon_after(server, server.round + 1)}

    @pf.hookimpl
    def end_trial(self, server: pf.Server[Any]) -> str:
        """End the trial if another round would cost more than the budget."""
        if server.config.noise is None or not self.is_spent(server, server.round + 2):
            return ""  # without a given noise all rounds together cost the budget
        after, budget = self.epsilon_after(server, server.round + 2), server.config.epsilon
        return f"another round would cost ε = {after:.3g}, and the budget is {budget:g}"
