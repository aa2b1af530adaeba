"""Tests of metrics of scores against scikit-learn, or against loops where it has none."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics as theirs

from protofl_plugins.metrics.calibration import CalibrationError
from protofl_plugins.metrics.confusion import BalancedAccuracy, MacroF1, RecallByClass
from protofl_plugins.metrics.ranking import AreaUnderCurve

confusion_counts, ranked_pairs = MacroF1().count, AreaUnderCurve().count


def calibration_counts(scores, labels, bins=15):
    return CalibrationError().count(scores, labels, CalibrationError.Config(bins=bins))


SHAPES = {"usual": (60, 4, 4), "a class that nobody has": (50, 5, 4), "two classes": (30, 2, 2)}


@pytest.fixture(params=SHAPES)
def samples(request):
    """Return scores and labels. The last classes may have no samples."""
    count, classes, present = SHAPES[request.param]
    generator = torch.Generator().manual_seed(count)
    labels = torch.randint(0, present, (count,), generator=generator)
    scores = torch.randn(count, classes, generator=generator, dtype=torch.float64)
    return (scores * 2).round() / 2, labels  # rounded, so some are equal


def half(samples):
    """Split the samples into two parts of different size."""
    scores, labels = samples
    return (scores[:20], labels[:20]), (scores[20:], labels[20:])


def test_macro_f1_and_recall_are_those_of_scikit_learn(samples):
    scores, labels = samples
    confusion, predicted = confusion_counts(scores, labels), scores.argmax(1)
    wanted = theirs.f1_score(labels, predicted, average="macro", zero_division=0.0)
    assert float(MacroF1().value(confusion)) == pytest.approx(wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns if a class without samples is predicted
        wanted = theirs.balanced_accuracy_score(labels, predicted)
    assert float(BalancedAccuracy().value(confusion)) == pytest.approx(wanted)
    found = RecallByClass().value(confusion)
    for c in range(scores.shape[1]):
        own = (labels == c).sum()
        right = ((labels == c) & (predicted == c)).sum()
        assert found[c].isnan() if own == 0 else found[c] == pytest.approx(float(right / own))


def test_the_area_under_the_curve_is_that_of_scikit_learn(samples):
    scores, labels = samples
    chances = scores.softmax(1)
    each = [
        theirs.roc_auc_score(labels == c, chances[:, c])
        for c in range(scores.shape[1])
        if (labels == c).any()
    ]
    found = AreaUnderCurve().value(ranked_pairs(scores, labels))
    assert float(found) == pytest.approx(np.mean(each))


def test_pairs_of_two_clients_are_never_across_them(samples):
    """Compare with a loop over the pairs of each client. A tie counts as half a pair."""
    right, pairs = torch.zeros(2, samples[0].shape[1], dtype=torch.float64)
    for scores, labels in half(samples):
        chances = scores.softmax(1)
        for c in range(scores.shape[1]):
            for i in (labels == c).nonzero().flatten().tolist():
                for j in (labels != c).nonzero().flatten().tolist():
                    difference = float(chances[i, c] - chances[j, c])
                    right[c] += 1.0 if difference > 0 else 0.5 if difference == 0 else 0.0
                    pairs[c] += 1
    summed = sum(ranked_pairs(*part) for part in half(samples))
    torch.testing.assert_close(summed, torch.stack([right, pairs], 1))


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_the_calibration_error_by_a_loop(samples, bins):
    scores, labels = samples
    total = 0.0
    for m in range(bins):
        inside = []
        for row, label in zip(scores.softmax(1).tolist(), labels.tolist(), strict=True):
            if m / bins < max(row) <= (m + 1) / bins:
                inside.append((row.index(max(row)) == label, max(row)))
        if inside:
            right, confidence = (sum(each) / len(inside) for each in zip(*inside, strict=True))
            total += len(inside) / len(labels) * abs(right - confidence)
    found = CalibrationError().value(calibration_counts(scores, labels, bins))
    assert float(found) == pytest.approx(total)


@pytest.mark.parametrize("count", [confusion_counts, calibration_counts])
def test_counts_add_up_to_those_of_all_samples(samples, count):
    torch.testing.assert_close(sum(count(*part) for part in half(samples)), count(*samples))


def test_without_samples_there_is_no_figure():
    none = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    assert CalibrationError().value(calibration_counts(*none)).isnan()
    assert MacroF1().value(confusion_counts(*none)).isnan()
    assert AreaUnderCurve().value(ranked_pairs(*none)).isnan()
