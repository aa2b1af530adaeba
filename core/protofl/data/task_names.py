"""Names of tasks and of their scores, for code that starts without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

TaskName = Literal["classification", "multilabel", "regression"]

TASKS: tuple[TaskName, ...] = get_args(TaskName)
"""The tasks, `protofl.data.tasks.Task.ALL`."""

SCORES = {"classification": "accuracy", "multilabel": "exact matches", "regression": "R²"}
"""{task: name of its score, which stands in the place of the accuracy}."""


def score_name(config: Mapping[str, Any]) -> str:
    """Return the name of the score of a recorded run: ``accuracy`` for classification.

    Args:
        config: The content of ``config.json``.
    """
    return SCORES.get((config.get("data") or {}).get("task", "classification"), "score")
