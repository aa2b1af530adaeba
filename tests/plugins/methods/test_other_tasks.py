"""Tests of methods on multi-label data and regressions: which run, and how they train."""

from __future__ import annotations

import pytest
import torch
from slowness import quick
from torch.nn import functional as F

import protofl as pf
from protofl.errors import Refused
from protofl.functional import class_means
from protofl.hooks.discovery.registry import Registry
from protofl.testing import toy
from protofl_plugins.shared import prototypes
from protofl_plugins.shared.adapters import AdapterConfig

TASKS = {name: pf.datasets.Task(name) for name in ("multilabel", "regression")}


def data_of(name):
    return toy.with_task(toy.make_images(toy.MIXED), TASKS[name])


REGISTRY = Registry()


def declared(name):
    """Return our methods that take a task, {name: class}."""
    ours = [p.name for p in REGISTRY.plugins("method") if p.distribution == "protofl"]
    loaded = {name: REGISTRY.load("method", name) for name in ours}
    return {n: method for n, method in loaded.items() if name in getattr(method, "tasks", ())}


NUMBERS = declared("regression")
ADAPTERS = [
    n
    for n, method in NUMBERS.items()
    if issubclass(getattr(method, "Config", object), AdapterConfig)
]
OTHERS = [n for n in NUMBERS if n not in ADAPTERS]
PROTOTYPES = [n for n in declared("multilabel") if n not in NUMBERS]


def test_methods_of_each_kind_are_tried():
    assert {"fedit", "flora"} <= {*ADAPTERS} and "local" in OTHERS
    assert {"fedproto", "fedtgp"} <= {*PROTOTYPES}


@pytest.mark.parametrize(
    ("method", "task"),
    quick(
        [(m, t) for m in NUMBERS for t in TASKS] + [(m, "multilabel") for m in PROTOTYPES],
        *(("fedavg", "regression"), ("fedkd", "multilabel"), ("fedmd", "regression")),
        *(("flora", "multilabel"), ("fedproto", "multilabel")),
    ),
)
def test_two_rounds(method, task, tmp_path):
    """A method trains: its figures are those of the task, and the score is R² of all numbers."""
    models = toy.group(toy.CNN if method in ADAPTERS else toy.NORM)
    data, options = data_of(task), {}
    if method in ADAPTERS:
        options = {"options": {method: {"ranks": "2"}}}
    if getattr(NUMBERS.get(method), "needs_public", False):
        data.split, options = None, {"public": 8}
    lines = toy.Toy(toy.make_plan(method, tmp_path, data, models, **options)).rounds(2)
    figures = {"multilabel": {"map", "label-f1"}, "regression": {"mae", "r2"}}[task]
    assert lines[-1]["metrics"].keys() == figures
    if method != "centralised":
        assert lines[1]["train_loss"] is not None
    assert lines[-1]["test_accuracy"] is not None
    if task == "regression":
        wanted = lines[-1]["metrics"]["r2"]["all"]
        assert lines[-1]["test_accuracy"] == pytest.approx(wanted, abs=1e-4)


def test_methods_for_classes_are_refused(tmp_path):
    for task, name in (
        ("regression", "fedproto"),
        ("multilabel", "fedgh"),
        ("regression", "feddf"),
    ):
        with pytest.raises(Refused, match=f"{name} does not work for {task}: ") as error:
            toy.make_plan(name, tmp_path, data_of(task))
        assert "local" in error.value.near


def test_metrics_and_attacks_of_classes_are_refused(tmp_path):
    with pytest.raises(pf.UsageError, match="macro-f1 is for classification"):
        toy.make_plan("local", tmp_path, data_of("regression"), metrics=["macro-f1"])
    with pytest.raises(pf.UsageError, match="r2 is for regression") as error:
        toy.make_plan("local", tmp_path, toy.make_images(toy.MIXED), metrics=["r2"])
    assert "metrics for classification: auc, " in error.value.near
    attack = {"transforms": ["label-flip"], "malicious": 0.25}
    with pytest.raises(pf.UsageError, match="label-flip is for classification"):
        toy.make_plan("fedavg", tmp_path, data_of("multilabel"), toy.group(toy.NORM), **attack)


@pytest.mark.parametrize(
    "option",
    [{"record_predictions": ["last"]}, {"measure": ["global-accuracy"]}, {"observe": ["features"]}],
)
def test_options_of_classes_are_refused(option, tmp_path):
    with pytest.raises(pf.UsageError, match="needs one class for each sample"):
        toy.make_plan("local", tmp_path, data_of("regression"), **option)


def test_a_sample_counts_for_each_of_its_labels():
    features = torch.tensor([[1.0, 0.0], [3.0, 2.0], [5.0, 4.0]])
    has = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    means, counts = class_means(features, has, 3)
    assert counts.tolist() == [1, 2, 0]
    assert means.tolist() == [[1.0, 0.0], [2.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("collect", ["eval", "online"])
def test_prototypes_by_label(collect, tmp_path):
    """The uploaded prototypes are the means over the samples of each label."""
    data = data_of("multilabel")
    plan = toy.make_plan(
        "fedproto", tmp_path, data, toy.group(toy.NORM), options={"fedproto": {"collect": collect}}
    )
    run = toy.Toy(plan)
    run.rounds(1)
    upload = pf.Payload.from_bytes(run.pool.uploads(0)[0])
    has = data.targets[data.split[0][0]] > 0
    assert upload["classes"].tolist() == has.any(0).nonzero().flatten().tolist()
    assert upload["counts"].tolist() == has.sum(0)[has.any(0)].tolist()


def test_a_sample_is_guided_to_the_mean_of_its_labels_prototypes():
    P, known = torch.tensor([[0.0, 0.0], [2.0, 2.0], [9.0, 9.0]]), torch.tensor([True, True, False])
    features = torch.tensor([[1.0, 1.0], [5.0, 5.0]])
    labels = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]])

    class Options:
        lambda_, distance, align = 10.0, "mse", "sample"

    found = prototypes.guide(Options, features, labels, P, known)
    assert float(found) == 0.0  # the first is at the mean of both, the second has no known label
    found = prototypes.guide(Options, features + 1, labels, P, known)
    assert float(found) == pytest.approx(10.0 * 1.0 / 2)


def test_the_divergence_of_labels_is_that_of_their_probabilities(tmp_path):
    from protofl_plugins.shared.auxiliary import divergence

    p, q = torch.randn(6, 4), torch.randn(6, 4)

    class Learner:
        task = TASKS["multilabel"]

        class config:
            detach, kl_mean = True, "batch"

    wanted = 0.0
    for teacher, student in zip(q.flatten(), p.flatten(), strict=True):
        both = [torch.stack([s.sigmoid(), (-s).sigmoid()]) for s in (student, teacher)]
        wanted += float(F.kl_div(both[0].log(), both[1], reduction="sum"))
    assert float(divergence(Learner, p, q)) == pytest.approx(wanted / 6, rel=1e-4)
