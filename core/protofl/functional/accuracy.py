"""Accuracy of a federation."""

from __future__ import annotations

from collections.abc import Sequence


def accuracy_over_clients(scores: Sequence[tuple[int, int]]) -> tuple[float, float, float] | None:
    """Accuracy over all test samples, and over clients.

    Args:
        scores: Of each client how many test samples it predicts rightly, and how many it has.

    Returns:
        The accuracy over the samples of all clients; the mean of the clients' accuracies; and their
        population standard deviation. Clients without samples don't count; None where none has any.
    """
    shares = [correct / count for correct, count in scores if count]
    if not shares:
        return None
    correct, count = (sum(each) for each in zip(*scores, strict=True))
    mean = sum(shares) / len(shares)
    deviation = (sum((share - mean) ** 2 for share in shares) / len(shares)) ** 0.5
    return correct / count, mean, deviation
