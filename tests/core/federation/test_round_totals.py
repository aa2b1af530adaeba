"""Tests of accuracy over samples and over clients against the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from protofl.federation.round.public_logits import accuracy_by_class
from protofl.federation.round.round_totals import accuracy_over_clients


def test_accuracy_over_clients():
    scores = [(3, 4), (0, 0), (5, 5), (0, 2)]
    shares = np.array([3 / 4, 1, 0])
    wanted = (8 / 11, shares.mean(), shares.std())
    assert accuracy_over_clients(scores) == pytest.approx(wanted)


@pytest.mark.parametrize("scores", [[], [(0, 0), (0, 0)]])
def test_without_samples_there_is_none(scores):
    assert accuracy_over_clients(scores) is None


def test_accuracy_by_class():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (40,), generator=generator)  # none of class 4
    found = accuracy_by_class(scores, labels)
    for c in range(4):
        rows = [
            row for row, label in zip(scores.tolist(), labels.tolist(), strict=True) if label == c
        ]
        right = sum(row.index(max(row)) == c for row in rows)
        assert found[c] == pytest.approx(right / len(rows))
    assert found[4].isnan()
