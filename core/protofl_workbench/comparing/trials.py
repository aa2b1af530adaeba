"""A trial of a recorded run: its figures round by round, and what it has cost until each."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from protofl.errors import UsageError, unknown
from protofl.records.folder.reading import METRICS
from protofl.records.folder.row import Row
from protofl.runs.reuse.run import Run
from protofl.system.files.checked import Damaged
from protofl.system.files.tables import flat
from protofl_workbench.comparing import statistics
from protofl_workbench.comparing.standing import is_lost

Floats = npt.NDArray[np.float64]


def _over_clients(of: Callable[[Any], float]) -> Callable[[Row], float | None]:
    """A figure of the clients' accuracies; None of a line that has none of them."""

    def read(row: Row) -> float | None:
        found = row.client_accuracies
        return of(map(_number, found.values())) if found else None

    return read


def _number(value: object) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    raise TypeError(value)


@dataclass(frozen=True)
class Figure:
    """A figure of a line of the record.

    Attributes:
        title: What it is, for an axis.
        source: Where it stands, names with dots between (``metrics.ece.all``), or a function of the
            line.
        share: Whether it is a share, shown in %.
        lower: Whether less is better.
    """

    title: str
    source: str | Callable[[Row], float | None]
    share: bool = False
    lower: bool = False

    @property
    def scale(self) -> float:
        """By what it is multiplied to be shown."""
        return 100.0 if self.share else 1.0

    @property
    def label(self) -> str:
        """Title and unit."""
        return f"{self.title} (%)" if self.share else self.title


FIGURES = {
    "accuracy": Figure("test accuracy", "test_accuracy", share=True),
    "client-accuracy": Figure("mean client accuracy", "client_test_accuracy", share=True),
    "validation-accuracy": Figure("validation accuracy", "validation_accuracy", share=True),
    "train-accuracy": Figure("training accuracy", "measures.train_accuracy", share=True),
    "server-accuracy": Figure("server accuracy", "extra.server_test_accuracy", share=True),
    "honest-accuracy": Figure("accuracy of the honest", "honest_accuracy", share=True),
    "unseen-accuracy": Figure("unseen clients", "unseen_accuracy", share=True),
    "fine-tuned-accuracy": Figure("unseen clients, fine-tuned", "fine_tuned_accuracy", share=True),
    "loss": Figure("training loss", "train_loss", lower=True),
    "worst": Figure("worst client's accuracy", _over_clients(statistics.worst), share=True),
    "decile": Figure(
        "lowest decile of clients", _over_clients(statistics.lowest_decile), share=True
    ),
    "std": Figure("std over clients", "test_accuracy_std", share=True, lower=True),
    "gini": Figure("Gini over clients", _over_clients(statistics.gini), lower=True),
    "ece": Figure("calibration error", "metrics.ece.all", lower=True),
    "macro-f1": Figure("macro F1", "metrics.macro-f1.all"),
    "balanced-accuracy": Figure("balanced accuracy", "metrics.balanced-accuracy.all"),
    "margin": Figure("prototype margin", "extra.prototype_margin"),
    "lr": Figure("learning rate", "lr"),
}
"""Figures that have a name of their own; others are named as they stand in the record."""


def figure_named(name: str) -> Figure:
    """A figure by its name, or by where it stands: ``accuracy``, ``loss_terms.align``."""
    return FIGURES.get(name) or Figure(name, name)


@dataclass(frozen=True)
class Cost:
    """What rounds take.

    Attributes:
        title: What it is, with its unit, for an axis.
        of: What a line's round took; None where the line doesn't say.
        option: The option of a run that records it; empty where every run does.
    """

    title: str
    of: Callable[[Row], float | None]
    option: str = ""


COSTS = {
    "rounds": Cost("rounds", lambda row: 1),
    "mb": Cost(
        "MB sent and received by all clients",
        lambda row: row.traffic / 1e6,
    ),
    "upload-mb": Cost("MB sent by all clients", lambda row: row.upload_bytes / 1e6),
    "seconds": Cost("seconds", lambda row: float(row.seconds["total"])),
    "flops": Cost(
        "FLOPs of all clients", lambda row: at(row, "measures.flops.counted"), "--measure flops"
    ),
    "virtual": Cost("virtual seconds", lambda row: at(row, "virtual.seconds"), "--world"),
}
"""What a curve can be drawn over, and what reaching an accuracy is told in."""


DAMAGE = (TypeError, KeyError, AttributeError, ValueError, OverflowError)
"""What is raised by a line that lacks something, or has another kind of thing."""


@dataclass(frozen=True)
class Trial:
    """A trial of a run.

    Attributes:
        run: The run.
        number: Which of its trials.
        rounds: So many of its rounds count; all where None.
    """

    run: Run
    number: int
    rounds: int | None = None

    @property
    def seed(self) -> int:
        """The seed that it is like a run of one trial with."""
        return int(self.run.config["seed"]) + self.number

    @cached_property
    def rows(self) -> list[Row]:
        """Its lines by rounds."""
        rows = self.run.rows_of(self.number)
        return rows if self.rounds is None else [r for r in rows if r.round < self.rounds]

    @cached_property
    def evaluated(self) -> int:
        """How many of its rounds were evaluated."""
        return sum(row.test_accuracy is not None for row in self.rows)

    @property
    def name(self) -> str:
        """The run's folder, and which trial where there are several."""
        several = int(self.run.config["trials"]) > 1
        return f"{self.run.folder}, trial {self.number}" if several else str(self.run.folder)

    def series(self, name: str) -> tuple[npt.NDArray[np.int64], Floats]:
        """A figure in the rounds that have it: their places in `rows`, and its values.

        Args:
            name: See `FIGURES`; another one as it stands in the record.

        Raises:
            UsageError: No line has it.
        """
        source = figure_named(name).source
        read = source if callable(source) else lambda row: at(row, source)
        each = self.each(read)
        found = [(n, float(value)) for n, value in enumerate(each) if value is not None]
        if not found:
            raise _no_figure(self, name)
        places, values = zip(*found, strict=True)
        return np.array(places, dtype=np.int64), np.array(values, dtype=np.float64)

    def each(self, read: Callable[[Row], Any]) -> list[Any]:
        """What is read from each of its lines.

        Raises:
            Damaged: A line is not what a run writes; it names file and line.
        """
        try:
            return [read(row) for row in self.rows]
        except DAMAGE:
            for row in self.rows:
                try:
                    read(row)
                except DAMAGE:
                    line = next(n for n, own in enumerate(self.run.rows, 1) if own is row)
                    file = self.run.folder / METRICS
                    raise Damaged(f"{file}, line {line}, is not what a run writes") from None
            raise

    def has(self, name: str) -> bool:
        """Whether any line has a figure."""
        source = figure_named(name).source
        read = source if callable(source) else lambda row: at(row, source)
        return any(value is not None for value in self.each(read))

    def spent(self, name: str) -> Floats:
        """What all rounds until each of `rows` have cost, it included, [rows].

        Args:
            name: See `COSTS`.

        Raises:
            UsageError: There is no such cost, or the run has not recorded it.
        """
        if name not in COSTS:
            raise unknown("cost", name, COSTS)
        cost, each = COSTS[name], self.each(COSTS[name].of)
        if None in each:
            raise UsageError(
                f"{self.name} has no {name}: line of round {self.rows[each.index(None)].round}",
                do=f"it is recorded with {cost.option}",
            )
        total: Floats = np.cumsum(np.array(each, dtype=np.float64))
        return total


def trials_of(run: Run) -> list[Trial]:
    """The trials of which there are rounds."""
    return [Trial(run, number) for number in run.trials]


def at(row: Any, name: str) -> float | None:  # noqa: ANN401 - a line, or what stands in it
    """The number that stands in a line under names with dots between them; None for none.

    Names may have dots themselves (``metrics.fedsa.margin.all``); entries of lists are numbered.
    """
    if not name:
        return float(row) if isinstance(row, (int, float)) and math.isfinite(row) else None
    for key, rest in _ways(name):
        if isinstance(row, Mapping) and key in row:
            inside = row[key]
        elif isinstance(row, list) and key.isdecimal() and int(key) < len(row):
            inside = row[int(key)]
        else:
            continue
        if (found := at(inside, rest)) is not None:
            return found
    return None


def _ways(name: str) -> Iterator[tuple[str, str]]:
    """A first name and the rest, for every dot; the longest first name at last."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end]), ".".join(parts[end:])


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _no_figure(trial: Trial, name: str) -> UsageError:
    """The error for a figure that a record hasn't, with what is near."""
    if not trial.rows:
        return UsageError(f"{trial.name} has no round yet", do="wait for its first round")
    known = dict.fromkeys([own for own in FIGURES if trial.has(own)])
    lately = [pair for row in trial.rows[-3:] for pair in flat(row).items()]
    known |= dict.fromkeys(name for name, value in lately if _is_number(value))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    few = [n for n in known if not n.startswith("client_accuracies.")][:24]
    said = f"did you mean {' or '.join(near)}?" if near else f"it has: {', '.join(few)}"
    option = {"metrics": "--metrics", "measures": "--measure"}
    source = figure_named(name).source
    if isinstance(source, str) and any(is_lost(row, source) for row in trial.rows):
        return UsageError(
            f"{name} of {trial.name} was never finite", "the run diverged", "lower --lr"
        )
    part = source.partition(".")[0] if isinstance(source, str) else ""
    do = f"it is recorded by a run with {option[part]}" if part in option else ""
    return UsageError(f"the record of {trial.name} has no figure {name!r}", said, do)
