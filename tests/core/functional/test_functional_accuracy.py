"""Accuracy over samples and over clients, against the plain definition."""

from __future__ import annotations

import numpy as np
import pytest
from protofl import functional as F


def test_accuracy_over_clients():
    scores = [(3, 4), (0, 0), (5, 5), (0, 2)]
    shares = np.array([3 / 4, 1, 0])
    wanted = (8 / 11, shares.mean(), shares.std())
    assert F.accuracy_over_clients(scores) == pytest.approx(wanted)


@pytest.mark.parametrize("scores", [[], [(0, 0), (0, 0)]])
def test_without_samples_there_is_none(scores):
    assert F.accuracy_over_clients(scores) is None
