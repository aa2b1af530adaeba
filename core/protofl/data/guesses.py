"""The score of always guessing a client's most frequent class, without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]


def class_guesses(train_counts: Any, test_counts: Any) -> Counts:  # noqa: ANN401 - as NumPy takes
    """Return per client the right and all test samples of guessing its commonest training class.

    Args:
        train_counts: Training samples [M, C] of each client and class.
        test_counts: Test samples [M, C].

    Returns:
        [M, 2]; (0, 0) of clients without training samples. Of equal classes the lowest is guessed.
    """
    train, tests = np.asarray(train_counts), np.asarray(test_counts)
    guess = train.argmax(1)  # NumPy promises the first of equals
    pairs = np.stack([tests[np.arange(len(tests)), guess], tests.sum(1)], 1)
    return pairs * train.any(1, keepdims=True)


def balanced_guess(train_counts: Counts, test_counts: Counts) -> float:
    """Return the balanced accuracy of guessing each client's commonest training class.

    Args:
        train_counts: Training samples [M, C] of each client and class.
        test_counts: Test samples [M, C].

    Returns:
        The mean recall over the classes with test samples; NaN if no client has training samples.
    """
    trained = train_counts.any(1)
    if not trained.any():
        return math.nan
    guess, tests = train_counts[trained].argmax(1), test_counts[trained]
    right = np.bincount(guess, tests[np.arange(len(tests)), guess], tests.shape[1])
    there = tests.any(0)
    return float((right[there] / tests.sum(0)[there]).mean())


def pooled_guess(guesses: Sequence[Sequence[float]], clients: Sequence[int] | None = None) -> float:
    """Return the accuracy of always guessing a client's commonest class, pooled over clients.

    Args:
        guesses: The right and all test samples of each client.
        clients: The clients; None for all.

    Returns:
        The accuracy; NaN if they have no samples, or their numbers are not known.
    """
    pairs = guesses if clients is None else [guesses[client] for client in clients]
    total = sum(count for _, count in pairs)
    if not total:
        return math.nan
    return float(sum(right for right, _ in pairs) / total)
