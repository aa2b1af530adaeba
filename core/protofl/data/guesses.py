"""The score of always guessing a client's most frequent class, without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def class_guesses(train_counts: Any, test_counts: Any) -> npt.NDArray[np.int64]:  # noqa: ANN401 - as NumPy takes
    """Return per client the right and all test samples of guessing its commonest training class.

    Args:
        train_counts: Training samples [M, C] of each client and class.
        test_counts: Test samples [M, C].

    Returns:
        [M, 2]; (0, 0) of clients without training samples. Of equal classes the lowest is guessed.
    """
    import numpy as np  # `protofl runs list` reads records, and is not to wait for it

    train, tests = np.asarray(train_counts), np.asarray(test_counts)
    guess = train.argmax(1)  # NumPy promises the first of equals
    pairs = np.stack([tests[np.arange(len(tests)), guess], tests.sum(1)], 1)
    return pairs * train.any(1, keepdims=True)


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
