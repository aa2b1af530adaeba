"""Tests of metrics of multi-label tasks and regressions against scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn import metrics as theirs

from protofl_plugins.metrics.labels import LabelF1, MeanAveragePrecision
from protofl_plugins.metrics.numbers import R2, MeanAbsoluteError


@pytest.fixture(params=[0, 1, 2])
def labelled(request):
    """Return scores with ties, and labels of 0 and 1; the last label has no positive sample."""
    generator = torch.Generator().manual_seed(request.param)
    labels = (torch.rand(70, 5, generator=generator) < 0.3).float()
    labels[:, -1] = 0
    scores = torch.randn(70, 5, generator=generator, dtype=torch.float64) + labels
    return (scores * 2).round() / 2, labels


def test_mean_average_precision_is_that_of_scikit_learn(labelled):
    scores, labels = labelled
    found = MeanAveragePrecision().value(MeanAveragePrecision().count(scores, labels))
    wanted = theirs.average_precision_score(labels[:, :-1], scores[:, :-1], average="macro")
    assert float(found) == pytest.approx(wanted)


def test_average_precision_of_clients_is_weighted_by_their_positive_samples(labelled):
    scores, labels = labelled
    counts = [MeanAveragePrecision().count(scores[part], labels[part])
              for part in (slice(20), slice(20, None))]  # fmt: skip
    found = MeanAveragePrecision().value(counts[0] + counts[1])
    wanted = []
    for label in range(4):
        each = [(theirs.average_precision_score(labels[part, label], scores[part, label]),
                 float(labels[part, label].sum()))
                for part in (slice(20), slice(20, None))]  # fmt: skip
        wanted.append(sum(ap * n for ap, n in each) / sum(n for _, n in each))
    assert float(found) == pytest.approx(sum(wanted) / 4)


def test_f1_over_labels_is_that_of_scikit_learn(labelled):
    scores, labels = labelled
    scores[:, -1] = -1  # a label that neither occurs nor is predicted does not count
    found = LabelF1().value(LabelF1().count(scores, labels))
    wanted = theirs.f1_score(labels[:, :-1], scores[:, :-1] > 0, average="macro")
    assert float(found) == pytest.approx(wanted)


def test_errors_of_numbers_are_those_of_scikit_learn():
    generator = torch.Generator().manual_seed(3)
    y = 100 + 30 * torch.randn(50, 1, generator=generator)
    guess = y + 10 * torch.randn(50, 1, generator=generator)
    parts = slice(15), slice(15, None)
    for metric, wanted in (
        (MeanAbsoluteError(), theirs.mean_absolute_error(y, guess)),
        (R2(), theirs.r2_score(y, guess)),
    ):
        counts = sum(metric.count(guess[part], y[part]) for part in parts)
        assert float(metric.value(counts)) == pytest.approx(wanted, rel=1e-6)


def test_r2_of_equal_numbers_is_none():
    y = torch.full((4, 1), 3.0)
    assert R2().value(R2().count(y + 1, y)).isnan()
