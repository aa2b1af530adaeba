"""One number of a trial: a figure in its last round, or in one that was chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protofl.errors import UsageError, unknown
from protofl_workbench.comparing.standing import is_lost
from protofl_workbench.comparing.trials import Figure, Trial, figure_named

WHEN = {
    "final": "last round",
    "best": "best on test",
    "validation": "chosen on validation",
}
"""The round in which a figure is read, and how that is called."""


@dataclass(frozen=True)
class Reading:
    """A figure, and the round of a trial in which it is read.

    Attributes:
        name: As it was asked for.
        figure: The figure's name.
        when: ``final``, ``best`` or ``validation``.
    """

    name: str
    figure: str
    when: str

    @property
    def about(self) -> Figure:
        """What is known of the figure."""
        return figure_named(self.figure)

    @property
    def title(self) -> str:
        """What it is, and when."""
        about = self.about
        unit = " (%)" if about.share else ""
        return f"{about.title}, {WHEN[self.when]}{unit}"

    def of(self, trial: Trial) -> float:
        """The figure of a trial.

        ``final`` is the last round that has it; ``best`` the first one with the best test accuracy,
        ``validation`` the first one with the best validation accuracy: in these the figure has to
        be there. A loss that was not finite then is NaN.

        Raises:
            UsageError: The trial has no such figure.
        """
        rows, source = trial.rows, self.about.source
        place = len(rows) - 1 if self.when == "final" else best_place(trial, self.when)
        if rows and isinstance(source, str) and is_lost(rows[place], source):
            return math.nan
        places, values = trial.series(self.figure)
        if self.when == "final":
            return float(values[-1])
        found = values[places == place]
        if not len(found):
            raise UsageError(
                f"{trial.name} has no {self.figure} in round {trial.rows[place].round}, the "
                f"{WHEN[self.when]}",
                do="read it in the last round",
            )
        return float(found[0])


def best_place(trial: Trial, when: str) -> int:
    """The place among a trial's rows of the first round with the best accuracy.

    Args:
        trial: The trial.
        when: ``best``, by test accuracy, or ``validation``.

    Raises:
        UsageError: The trial has none.
    """
    chosen_by = "accuracy" if when == "best" else "validation-accuracy"
    if when == "validation" and trial.rows and not trial.has(chosen_by):
        raise UsageError(
            f"{trial.name} has no validation accuracy",
            do="run it with --validation 0.05, or read --figure final",
        )
    places, values = trial.series(chosen_by)
    return int(places[values.argmax()])


def reading(name: str) -> Reading:
    """What a name asks for.

    ``final``, ``best`` and ``validation`` are the test accuracy then; any other figure is read in
    the last round that has it, or as ``FIGURE@best``.

    Raises:
        UsageError: There is no such round.
    """
    if name in WHEN:
        return Reading(name, "accuracy", name)
    figure, _, when = name.partition("@")
    if when and when not in WHEN:
        raise unknown("round", when, WHEN, "write FIGURE@final, FIGURE@best or FIGURE@validation")
    return Reading(name, figure, when or "final")
