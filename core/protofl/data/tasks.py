"""Tasks: what a model's outputs are trained for, and how they are scored.

    classification   one class of each sample        cross-entropy               accuracy
    multilabel       any number of labels each       binary cross-entropy        exact matches
    regression       one number each                 squared error or Huber      R²
    language-model   the next tokens of a text       their negative log-prob.    1/perplexity

A task has a *score*, of which more is better. A run's record has it in the place of the accuracy
(``test_accuracy`` and so on), so that what chooses rounds and compares runs works for all tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    mse_loss,
)

from protofl.data.task_names import SCORES, TASKS, TaskName
from protofl.errors import UsageError, unknown
from protofl.system.options.plugin_options import Config, Field

LossName = Literal["mse", "huber"]

BINS = 10
"""Quantile bins of a regression target, by which partitioners and hold-outs divide samples."""

FAR = 1e6 + 1
"""Squared error of a sample, in variances, above which it counts no more."""


@dataclass(frozen=True)
class Task:
    """A task: its loss, and its score.

    Labels ``y`` of the functions are those that models are trained with (`encoded`).

    Attributes:
        ALL: The names of all tasks; a method that works for all says ``tasks = Task.ALL``.
        OF_HEADS: The tasks of nets that are features and a head: all but language models, whose
            nets have one part.
        name: ``classification``, ``multilabel``, ``regression`` or ``language-model``. Outputs of
            a language model are the log-probabilities of a text's tokens from the second on, and
            its labels [B, C] are 1 for tokens and 0 for padding.
        loss_name: The loss of a regression: ``mse``, the squared error, or ``huber``, Huber's with
            δ = 1 (quadratic up to an error of one ``scale``, linear beyond it).
        offset: The number that a regression takes for zero, in the unit of the target.
        scale: The number that a regression takes for one.
    """

    ALL: ClassVar[tuple[TaskName, ...]] = TASKS
    OF_HEADS: ClassVar[tuple[TaskName, ...]] = TASKS[:3]

    name: TaskName = "classification"
    loss_name: LossName = "mse"
    offset: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Check the names and the scale."""
        if self.name not in TASKS:
            raise unknown("task", str(self.name), TASKS)
        if self.loss_name not in ("mse", "huber"):
            raise unknown("loss of a regression", str(self.loss_name), ("mse", "huber"))
        usual = {"offset": 0.0, "scale": 1.0, "loss_name": "mse"}
        odd = [name for name, value in usual.items() if getattr(self, name) != value]
        if odd and self.name != "regression":
            raise UsageError(
                f"{odd[0].removesuffix('_name')}={getattr(self, odd[0])} is for regression, and "
                f"the task is {self.name}",
                do="leave it out, or choose task=regression",
            )
        if not (np.isfinite(self.offset) and np.isfinite(self.scale) and self.scale > 0):
            raise UsageError(
                f"a target of offset {self.offset:g} and scale {self.scale:g}",
                "both are finite numbers, and a scale is above 0",
            )

    @classmethod
    def of(cls, options: TaskOptions) -> Task:
        """Return the task that a user chose.

        Raises:
            UsageError: An option of regressions is given for another task.
        """
        return cls(options.task, options.loss, options.offset, options.scale)

    @property
    def has_classes(self) -> bool:
        """True for classification, where each sample has one class."""
        return self.name == "classification"

    @property
    def score_name(self) -> str:
        """Name of the score: ``accuracy``, ``exact matches``, ``R²``, ``1/perplexity``."""
        return SCORES[self.name]

    # --- labels ---------------------------------------------------------------------------------

    def encoded(self, targets: Tensor) -> Tensor:
        """Return targets [n, L] as labels [n, L]: numbers of a regression by offset and scale."""
        return (targets - self.offset) / self.scale if self.name == "regression" else targets

    def decoded(self, values: Tensor) -> Tensor:
        """Return scores or labels in the unit of the target; those of other tasks unchanged."""
        return values * self.scale + self.offset if self.name == "regression" else values

    def no_labels(self, count: int, outputs: int) -> Tensor:
        """Return labels of the task's form that are all zero: [n] int64, or [n, L]."""
        if self.has_classes:
            return torch.zeros(count, dtype=torch.int64)
        return torch.zeros(count, outputs)

    # --- loss and score -------------------------------------------------------------------------

    def loss(self, scores: Tensor, y: Tensor, *, total: bool = False) -> Tensor:
        """Return the loss of a batch: its mean over samples, and over labels where there are some.

        Of a language model: the mean over all tokens of the batch.

        Args:
            scores: Outputs of a model, B×C; one per label or number.
            y: Labels of the batch: classes [B], or [B, C] of 0 and 1, or scaled numbers [B, 1].
            total: Return the sum over samples instead of their mean.
        """
        if self.has_classes:
            return cross_entropy(scores, y, reduction="sum" if total else "mean")
        y = y.to(scores.dtype)
        if self.name == "language-model":
            mean = -(scores * y).sum() / y.sum().clamp(min=1)
        elif self.name == "multilabel":
            mean = binary_cross_entropy_with_logits(scores, y)
        else:
            mean = mse_loss(scores, y) if self.loss_name == "mse" else huber_loss(scores, y)
        return mean * len(y) if total else mean

    def points(self, scores: Tensor, y: Tensor, variance: float = 1.0) -> Tensor:
        """Return the sum of the samples' scores, a scalar; the score is this over their number.

        A sample of a classification counts 1 if its class has the largest score (int64), one of
        several labels 1 if exactly its labels have positive scores (int64), a number
        1 − e²/variance with its error e (float64), at least −10⁶. The mean of these is
        R² = 1 − Σe²/Σ(y − ȳ)², if the variance is that of the samples' numbers. A text counts
        1/perplexity, the geometric mean of its tokens' probabilities (float64).

        Args:
            scores: Outputs of a model, n×C.
            y: Labels, as for `loss`.
            variance: Of a regression, the variance that R² refers to.
        """
        if self.has_classes:
            return (scores.argmax(1) == y).sum()
        if self.name == "multilabel":
            return ((scores > 0) == (y > 0.5)).all(1).sum()
        if self.name == "language-model":
            tokens = y.sum(1)
            means = (scores.float() * y).sum(1) / tokens.clamp(min=1)
            return (means.exp() * (tokens > 0)).nan_to_num().sum(dtype=wide(scores.device))
        errors = ((scores.float() - y).square() / variance).flatten()
        errors = errors.nan_to_num(nan=FAR).clamp(max=FAR)  # of a net that diverged
        return (1 - errors).sum(dtype=wide(errors.device))

    def no_points(self, count: int, device: torch.device) -> Tensor:
        """Return sums of `points` that are zero, [n], on a device."""
        kind = wide(device) if self.name in CONTINUOUS else torch.int64
        return torch.zeros(count, dtype=kind, device=device)

    def guess(
        self, train: Tensor, test: Tensor, variance: float = 1.0, vocabulary: int = 1
    ) -> float:
        """Return the points of always guessing the commonest of a client's training labels.

        That is a class, a set of labels, or the mean of numbers; of a language model it is that all
        tokens are equally probable.

        Args:
            train: Labels of training samples, as for `loss`.
            test: Labels of test samples.
            variance: As for `points`.
            vocabulary: Token ids V of a language model.
        """
        if self.name == "language-model":
            return int((test.sum(1) > 0).sum()) / vocabulary
        if not len(train) or not len(test):
            return 0.0
        if self.name == "regression":
            return float(self.points(train.mean(0).expand_as(test), test, variance))
        values, counts = torch.unique(train, dim=0, return_counts=True)
        commonest = values[counts.argmax()]
        return float((test == commonest).view(len(test), -1).all(1).sum())

    def answers(self, scores: Tensor, names: Sequence[str]) -> list[str]:
        """Return what is predicted of each sample, in words.

        Args:
            scores: Decoded scores [n, C].
            names: Names of the C outputs.

        Returns:
            The class with the largest score; the labels with positive scores, with commas between
            them; the number; or the perplexity of the text.
        """
        if self.has_classes:
            return [names[place] for place in scores.argmax(1).tolist()]
        if self.name in CONTINUOUS:
            return [f"{value:.6g}" for value in self.outcomes(scores).tolist()]
        rows = (scores > 0).tolist()
        return [", ".join(n for n, on in zip(names, row, strict=True) if on) for row in rows]

    def outcomes(self, scores: Tensor) -> Tensor:
        """Return predictions of decoded scores: classes [n], labels [n, L] bool, or numbers [n].

        Of a language model the perplexities [n] of the texts. Padding has the log-probability 0.
        """
        if self.has_classes:
            return scores.argmax(1)
        if self.name == "language-model":
            return (-scores.sum(1) / (scores != 0).sum(1)).exp()
        return scores > 0 if self.name == "multilabel" else scores[:, 0]

    def label_counts(self, y: Tensor, outputs: int) -> Tensor:
        """Return the samples of each class or label, [C] int64; a sample counts for each label.

        Raises:
            UsageError: The task is another, whose samples have neither.
        """
        if self.has_classes:
            return torch.bincount(y, minlength=outputs)
        if self.name == "multilabel":
            return (y > 0.5).sum(0)
        raise UsageError(
            f"samples of the task {self.name} have no classes that can be counted",
            do="take a method that does not count classes",
        )


CLASSIFICATION = Task()

CONTINUOUS = ("regression", "language-model")
"""Tasks whose score is not a number of samples, but a sum of floats."""


class TaskOptions(Config):
    """Options of data that users bring: the task, and which samples belong together.

    ``Task.of(config)`` is the task. `Dataset.group` is filled in when the data are loaded.
    """

    task: TaskName = Field(
        "classification",
        description="what is predicted of a sample: a class, any number of labels, a number, or "
        "the next tokens of a text",
    )
    offset: float = Field(
        0.0, description="the number of a regression that nets take for 0, such as its mean"
    )
    scale: float = Field(
        1.0, gt=0, description="the number that nets take for 1, such as its deviation"
    )
    loss: LossName = Field(
        "mse", description="loss of a regression: squared error, or Huber's with δ = scale"
    )
    group: str | None = Field(
        None,
        description="the column whose rows of one value (a patient) stay in one part: training, "
        "validation or test. None: each row is drawn for itself",
    )


def wide(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on a device that has none wider."""
    return torch.float32 if device.type == "mps" else torch.float64


def variance_of(y: Tensor) -> float:
    """Return the variance of labels of a regression; 1 if they are all equal, or none."""
    variance = float(y.double().var(unbiased=False)) if len(y) else 0.0
    return variance or 1.0


# --- strata ---------------------------------------------------------------------------------------


def strata(task: Task, targets: Tensor, outputs: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Return a class for each sample by which partitioners and hold-outs divide samples.

    It is a sample's rarest label, or ``none`` for a sample without labels; or one of `BINS`
    quantile bins of the number. Nothing is trained with it.

    Args:
        task: Multi-label or regression.
        targets: [N, L].
        outputs: Names of the L labels.

    Returns:
        The classes [N] int64, and their names, of those that occur.
    """
    if task.name == "multilabel":
        frequency = (targets > 0.5).sum(0).expand_as(targets)
        never = frequency.amax() + 1 if len(targets) else 1
        rarest = torch.where(targets > 0.5, frequency, never).argmin(1)
        place = torch.where((targets > 0.5).any(1), rarest, len(outputs))
        names = [*outputs, "none"]
    else:
        numbers = targets[:, 0].double().numpy()
        inner = np.linspace(0, 1, BINS + 1)[1:-1]
        # Edges are numbers that occur, so that a bin of equal numbers is not cut in two.
        edges = np.unique(np.quantile(numbers, inner, method="lower"))
        edges = edges[edges < numbers.max(initial=-np.inf)]
        place = torch.from_numpy(np.searchsorted(edges, numbers, side="left"))
        names = [f"≤ {edge:g}" for edge in edges] + [f"> {edges[-1]:g}" if len(edges) else "all"]
    present, y = torch.unique(place, return_inverse=True)
    return y, [names[number] for number in present.tolist()]
