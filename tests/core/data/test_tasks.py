"""Tests of tasks: losses, scores, strata, and checks of labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, r2_score
from torch.nn import functional as F

import protofl as pf
from protofl.data.cache import load
from protofl.data.tasks import strata, variance_of

Task = pf.datasets.Task
LABELS, NUMBER = Task("multilabel"), Task("regression", offset=150, scale=75)
SCORES = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
SEVERAL = (torch.rand(40, 3, generator=torch.Generator().manual_seed(1)) < 0.5).float()


def test_losses_are_those_of_torch():
    y = torch.arange(40) % 3
    assert torch.equal(Task().loss(SCORES, y), F.cross_entropy(SCORES, y))
    wanted = F.binary_cross_entropy_with_logits(SCORES, SEVERAL)
    assert torch.equal(LABELS.loss(SCORES, SEVERAL), wanted)
    assert LABELS.loss(SCORES, SEVERAL, total=True) == pytest.approx(40 * float(wanted))
    number, y = SCORES[:, :1], SEVERAL[:, :1]
    assert torch.equal(NUMBER.loss(number, y), F.mse_loss(number, y))
    huber = Task("regression", "huber")
    assert torch.equal(huber.loss(3 * number, y), F.huber_loss(3 * number, y))


def test_the_score_of_labels_is_the_share_of_exact_matches():
    wanted = accuracy_score(SEVERAL, SCORES > 0)
    assert int(LABELS.points(SCORES, SEVERAL)) / 40 == pytest.approx(wanted)


def test_the_score_of_numbers_is_r2():
    y, guess = SCORES[:, :1], SCORES[:, :1] + 0.3 * SCORES[:, 1:2]
    points = float(NUMBER.points(guess, y, variance_of(y)))
    assert points / 40 == pytest.approx(r2_score(y, guess), rel=1e-5)


def test_a_diverged_net_has_a_finite_score():
    y = torch.zeros(2, 1)
    assert float(NUMBER.points(torch.tensor([[torch.nan], [torch.inf]]), y)) == -2e6


def test_numbers_are_scaled_and_scaled_back():
    targets = torch.tensor([[75.0], [225.0]])
    assert NUMBER.encoded(targets).tolist() == [[-1.0], [1.0]]
    assert torch.equal(NUMBER.decoded(NUMBER.encoded(targets)), targets)
    assert torch.equal(LABELS.encoded(SEVERAL), SEVERAL)


def test_the_guess_is_the_commonest_labels_or_the_mean():
    train = torch.tensor([[1.0, 0], [1, 0], [0, 1]])
    assert LABELS.guess(train, torch.tensor([[1.0, 0], [1, 1]])) == 1
    numbers = torch.tensor([[1.0], [3.0]])
    assert NUMBER.guess(numbers, torch.tensor([[2.0], [4.0]]), 2.0) == 1 + (1 - 4 / 2)


def test_samples_are_divided_by_their_rarest_label():
    targets = torch.tensor([[1.0, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 1], [1, 0, 1], [0, 0, 0]])
    y, names = strata(LABELS, targets, ["a", "b", "c"])
    assert [names[n] for n in y] == ["b", "a", "c", "c", "c", "none"]


def test_samples_are_divided_by_quantiles_of_the_number():
    y, names = strata(NUMBER, torch.arange(100.0)[:, None], ["y"])
    assert torch.bincount(y).tolist() == [10] * 10
    assert (names[0], names[-1]) == ("≤ 9", "> 89")
    y, names = strata(NUMBER, torch.tensor([[0.0]] * 50 + [[1.0]] * 50), ["y"])
    assert torch.bincount(y).tolist() == [50, 50]


def made(y, task, **options):
    x = np.random.default_rng(0).normal(size=(len(y), 4)).astype(np.float32)
    return pf.datasets.dataset_from_arrays([(x, y, "data")], kind="table", task=task, **options)


def test_targets_survive_the_cache(tmp_path):
    data = made(SEVERAL.numpy(), "multilabel", classes=["a", "b", "c"])
    again = load("several", tmp_path, lambda: data, lambda line: None)
    assert (again.task, again.outputs) == (LABELS, ["a", "b", "c"])
    assert torch.equal(again.targets, SEVERAL)
    assert again.sample.task == LABELS
    assert again.digest == data.compute_digest()
    other = made(1 - SEVERAL.numpy(), "multilabel", classes=["a", "b", "c"])
    assert other.compute_digest() != data.compute_digest()


@pytest.mark.parametrize(
    ("y", "task", "words"),
    [
        ([[0, 2], [1, 0]], "multilabel", "label 2 in row 0, column 1"),
        ([0, 1], "multilabel", r"labels of the shape \(2,\)"),
        ([[0.5, 1], [1, 0]], "multilabel", "label 0.5 in row 0"),
        ([1.0, np.nan], "regression", "label nan in row 1"),
        ([[1.0, 2], [2, 3]], "regression", r"labels of the shape \(2, 2\)"),
        (["a", "b"], "regression", "labels are <U1"),
        ([3.0, 3.0], "regression", "all 2 samples have the same number"),
        ([3.0, 4.0], "ranking", "unknown task 'ranking'"),
    ],
)
def test_labels_of_another_form_are_refused(y, task, words):
    with pytest.raises(pf.UsageError, match=words):
        made(np.array(y), task)


def test_an_option_of_regressions_is_refused_for_labels():
    with pytest.raises(pf.UsageError, match=r"scale=2.0 is for regression"):
        Task("multilabel", scale=2.0)


def test_numbers_far_from_one_get_a_note_with_the_remedy():
    y = np.linspace(100, 300, 9)
    note = made(y, "regression", num_train=5).note
    assert "the target goes from 100 to 300, which is much" in note
    # Of the five training rows alone: 100, 125, …, 200.
    assert note.endswith("--set dataset.offset=150 --set dataset.scale=35.4")
    assert not made(y, Task("regression", offset=200, scale=50)).note
    assert "which is little for a net" in made(y / 1e5, "regression").note


def test_numbers_that_vary_little_far_from_0_get_a_note():
    y = np.linspace(20.13, 20.17, 9)
    note = made(y, Task("regression", scale=0.1, offset=18)).note
    assert "which varies little, far from 0" in note
    assert note.endswith("--set dataset.offset=20.15 --set dataset.scale=0.0129")
    assert not made(y, Task("regression", scale=0.0129, offset=20.15)).note
    years = np.array([2001.0, 2002, 2003, 2004])
    assert "--set dataset.offset=2002.5 " in made(years, "regression").note  # not 2e+03
