"""Figures and costs of a round, as they are read from a line of the record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from protofl.records.row import Row


def lowest_decile(values: Iterator[float]) -> float:
    """Return the mean of the lowest tenth of M values, ⌈M/10⌉ of them."""
    ordered = np.sort(np.fromiter(values, dtype=np.float64))
    return float(ordered[: math.ceil(len(ordered) / 10)].mean())


def gini(values: Iterator[float]) -> float:
    """Return the Gini coefficient Σᵢⱼ|xᵢ − xⱼ| / (2M²x̄) of M values ≥ 0; 0 if all are equal.

    Computed from the sorted values x₍₁₎ ≤ … ≤ x₍M₎ as Σᵢ(2i − M − 1)x₍ᵢ₎ / (M²x̄).
    """
    ordered = np.sort(np.fromiter(values, dtype=np.float64))
    count, total = len(ordered), float(ordered.sum())
    weights = 2 * np.arange(1, count + 1) - count - 1
    return float((weights * ordered).sum() / (count * total)) if total else 0.0


def over_clients(of: Callable[[Iterator[float]], float]) -> Callable[[Row], float | None]:
    """Return a function that reads a figure of the clients' accuracies in one round.

    All figures over clients are read in this way: within one trial. Means over trials come after,
    because each trial may have another split.

    Args:
        of: From the accuracies of the clients to the figure.
    """

    def read(row: Row) -> float | None:
        accuracies = row.client_accuracies
        return float(of(map(_number, accuracies.values()))) if accuracies else None

    return read


def _number(value: object) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    raise TypeError(value)


@dataclass(frozen=True)
class RoundFigure:
    """A figure of a round.

    Attributes:
        title: Title, for an axis.
        source: Name in the record, with dots between names (``metrics.ece.all``), or a function of
            the line.
        share: True if the figure is a share, which is shown in %.
        lower: True if lower values are better.
    """

    title: str
    source: str | Callable[[Row], float | None]
    share: bool = False
    lower: bool = False

    @property
    def scale(self) -> float:
        """Factor with which the figure is shown."""
        return 100.0 if self.share else 1.0

    @property
    def label(self) -> str:
        """Title and unit."""
        return f"{self.title} (%)" if self.share else self.title

    def read(self, row: Row) -> float | None:
        """Return the figure of a line of the record; None if the line has none."""
        return self.source(row) if callable(self.source) else number_at(row, self.source)

    def is_lost(self, row: Row) -> bool:
        """Return True if the figure is a loss that was not finite, which is recorded as null."""
        if self.source == "train_loss":
            return row.get("train_loss", 0) is None
        name = self.source if isinstance(self.source, str) else ""
        group, _, term = name.partition(".")
        return group == "loss_terms" and row.get(group, {}).get(term, 0) is None


FIGURES = {
    "accuracy": RoundFigure("test accuracy", "test_accuracy", share=True),
    "client-accuracy": RoundFigure("mean client accuracy", "client_test_accuracy", share=True),
    "validation-accuracy": RoundFigure("validation accuracy", "validation_accuracy", share=True),
    "train-accuracy": RoundFigure("training accuracy", "measures.train_accuracy", share=True),
    "global-accuracy": RoundFigure("global accuracy", "measures.global_accuracy", share=True),
    "server-accuracy": RoundFigure("server accuracy", "extra.server_test_accuracy", share=True),
    "honest-accuracy": RoundFigure("accuracy of honest clients", "honest_accuracy", share=True),
    "unseen-accuracy": RoundFigure("unseen clients", "unseen_accuracy", share=True),
    "fine-tuned-accuracy": RoundFigure("fine-tuned at the end", "fine_tuned_accuracy", share=True),
    "loss": RoundFigure("training loss", "train_loss", lower=True),
    "worst": RoundFigure("worst client's accuracy", over_clients(min), share=True),
    "decile": RoundFigure("lowest decile of clients", over_clients(lowest_decile), share=True),
    "std": RoundFigure("std over clients", "test_accuracy_std", share=True, lower=True),
    "gini": RoundFigure("Gini over clients", over_clients(gini), lower=True),
    "ece": RoundFigure("calibration error", "metrics.ece.all", lower=True),
    "macro-f1": RoundFigure("macro F1", "metrics.macro-f1.all"),
    "balanced-accuracy": RoundFigure(
        "balanced accuracy", "metrics.balanced-accuracy.all", share=True
    ),
    "map": RoundFigure("mean average precision", "metrics.map.all"),
    "label-f1": RoundFigure("macro F1 over labels", "metrics.label-f1.all"),
    "mae": RoundFigure("mean absolute error", "metrics.mae.all", lower=True),
    "r2": RoundFigure("R²", "metrics.r2.all"),
    "perplexity": RoundFigure("perplexity", "metrics.perplexity.all", lower=True),
    "margin": RoundFigure("prototype margin", "extra.prototype_margin"),
    "lr": RoundFigure("learning rate", "lr"),
}
"""Figures with a short name; all others have the name that they have in the record."""


def figure_named(name: str) -> RoundFigure:
    """Return a figure by its short name or its name in the record: ``loss_terms.align``."""
    return FIGURES.get(name) or RoundFigure(name, name)


@dataclass(frozen=True)
class RoundCost:
    """A cost of rounds.

    Attributes:
        title: Title with the unit, for an axis.
        unit: Short title, for a column.
        of: Reads the cost of a round; None if the line has none.
        option: Option of a run that records the cost; empty if all runs record it.
    """

    title: str
    unit: str
    of: Callable[[Row], float | None]
    option: str = ""


COSTS = {
    "rounds": RoundCost("rounds", "rounds", lambda row: 1),
    "mb": RoundCost("MB sent and received by all clients", "MB", lambda row: row.traffic / 1e6),
    "upload-mb": RoundCost("MB sent by all clients", "MB sent", lambda row: row.upload_bytes / 1e6),
    "seconds": RoundCost("seconds", "seconds", lambda row: float(row.seconds["total"])),
    "flops": RoundCost(
        "FLOPs of all clients",
        "FLOPs",
        lambda row: number_at(row, "measures.flops.counted"),
        "--measure flops",
    ),
    "virtual": RoundCost(
        "virtual seconds", "virtual s", lambda row: number_at(row, "virtual.seconds"), "--devices"
    ),
}
"""Costs over which curves can be drawn and that can be counted until a target is reached."""


def number_at(values: Any, name: str) -> float | None:  # noqa: ANN401 - a line, or a part of it
    """Return the finite number under names with dots between them; None if there is none.

    Names may have dots themselves (``metrics.fedsa.margin.all``); entries of lists are numbered.
    """
    if not name:
        is_number = isinstance(values, (int, float)) and math.isfinite(values)
        return float(values) if is_number else None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        key, rest = ".".join(parts[:end]), ".".join(parts[end:])
        if isinstance(values, Mapping) and key in values:
            inside = values[key]
        elif isinstance(values, list) and key.isdecimal() and int(key) < len(values):
            inside = values[int(key)]
        else:
            continue
        if (result := number_at(inside, rest)) is not None:
            return result
    return None
