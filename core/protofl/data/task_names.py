"""Names of tasks and of their scores, for code that starts without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

TaskName = Literal["classification", "multilabel", "regression", "language-model"]

TASKS: tuple[TaskName, ...] = get_args(TaskName)
"""The tasks, `protofl.data.tasks.Task.ALL`."""

SCORES = {
    "classification": "accuracy",
    "multilabel": "exact matches",
    "regression": "R²",
    "language-model": "1/perplexity",
}
"""{task: name of its score, which stands in the place of the accuracy}."""


GUESSES = {
    "classification": "the most frequent class",
    "multilabel": "the most frequent labels",
    "regression": "the mean",
    "language-model": "the same probability of all tokens",
}
"""{task: what is guessed without a model, the majority guess}."""


STRATA = {
    "classification": ("class", "classes"),
    "multilabel": ("rarest label", "rarest labels"),
    "regression": ("range of the number", "ranges of the number"),
    "language-model": ("class of the text", "classes of the text"),
}
"""{task: what partitioners divide samples by, one and several}."""


def task_name(config: Mapping[str, Any]) -> str:
    """Return the task of a recorded run.

    Args:
        config: The content of ``config.json``.
    """
    return str((config.get("data") or {}).get("task", "classification"))


def score_name(config: Mapping[str, Any]) -> str:
    """Return the name of the score of a recorded run: ``accuracy`` for classification.

    Args:
        config: The content of ``config.json``.
    """
    return SCORES.get(task_name(config), "score")


def with_score(text: str, configs: Iterable[Mapping[str, Any]]) -> str:
    """Return a text about the accuracy of runs, with the name of their score in its place.

    Args:
        text: The text, such as ``test accuracy (%)``, which becomes ``test R² (%)``.
        configs: The contents of their ``config.json``.
    """
    score = " or ".join(dict.fromkeys(map(score_name, configs))) or "accuracy"
    return text.replace("accuracy", score).replace("Accuracy", f"{score[:1].upper()}{score[1:]}")


def score_text(metrics: Mapping[str, Any] | None, score: str, value: float) -> str:
    """Return the score of a round in words: ``accuracy 52.1%``; the perplexity if it is recorded.

    Args:
        metrics: The metrics of the round.
        score: The name of the score.
        value: The score.
    """
    perplexity = (metrics or {}).get("perplexity", {}).get("all")
    return f"{score} {value:.1%}" if perplexity is None else f"perplexity {perplexity:.4g}"


def balanced_text(metrics: Mapping[str, Any] | None) -> str:
    """Return ``balanced 38.0%, `` if the balanced accuracy of a round is recorded; else empty."""
    value = (metrics or {}).get("balanced-accuracy", {}).get("all")
    return "" if value is None else f"balanced {value:.1%}, "


def share_text(score: str, value: float, digits: int = 1) -> str:
    """Return a score in words: ``52.1%``, and ``1/372.6`` of a language model.

    Args:
        score: The name of the score.
        value: The score.
        digits: Digits after the point.
    """
    if score == SCORES["language-model"] and value > 0:
        return f"1/{1 / value:.{digits}f}"
    return f"{value:.{digits}%}"


def below_guess(score: str, value: float, guess: float | None) -> str:
    """Return a warning about a score that is not better than the majority guess; else empty.

    Args:
        score: The name of the score.
        value: The score.
        guess: The score of the majority guess; None or NaN if it is not known.
    """
    if guess is None or not value <= guess + 1e-9:  # means over trials are rounded
        return ""
    shown, than = share_text(score, value), share_text(score, guess)
    return f"{score} {shown} is not better than the majority guess, {than}"
