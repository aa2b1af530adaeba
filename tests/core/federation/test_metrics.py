"""Tests of --metrics: values against scores computed here; nothing else in the run changes."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from runtime_toys import install, lines_of, make_plan, open_federation, train, without_times

import protofl as pf
from protofl.models import SplitModel
from protofl.testing import toy
from protofl_plugins.metrics.calibration import CalibrationError
from protofl_plugins.metrics.confusion import BalancedAccuracy, MacroF1, RecallByClass
from protofl_plugins.metrics.ranking import AreaUnderCurve

NAMES = "macro-f1,balanced-accuracy,recall-by-class,auc,ece"
DEFAULT = CalibrationError.Config()
COUNTS = {
    "macro-f1": (MacroF1().count, MacroF1().value),
    "balanced-accuracy": (BalancedAccuracy().count, BalancedAccuracy().value),
    "auc": (AreaUnderCurve().count, AreaUnderCurve().value),
    "ece": (partial(CalibrationError().count, config=DEFAULT), CalibrationError().value),
}


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


def scores_of(federation, client):
    """Return the scores of a client's own model for its test samples, and the labels."""
    plan, model = federation.plan, federation.pool.client(client).model.eval()
    rows = plan.split(0).test(client)
    with torch.no_grad():
        return model(plan.data.x[rows].float() / 127.5 - 1), plan.data.y[rows]


def test_figures_are_those_of_the_scores():
    plan = make_plan("local", metrics=NAMES, rounds=1, local_epochs=3)
    federation = open_federation(plan)
    line, _ = federation.round(0)
    parts = [scores_of(federation, client) for client in range(4)]
    for name, (count, value) in COUNTS.items():
        found = line["metrics"][name]
        each = np.array([float(value(count(*part))) for part in parts])
        whole = value(sum(count(*part) for part in parts))
        assert found["all"] == pytest.approx(float(whole), rel=1e-5)
        assert found["mean"] == pytest.approx(np.nanmean(each), rel=1e-5)
        assert found["std"] == pytest.approx(np.nanstd(each), rel=1e-4)
        assert [*found["clients"]] == ["0", "1", "2", "3"]
        assert [*found["clients"].values()] == pytest.approx([*each], rel=1e-5)
    classes = line["metrics"]["recall-by-class"]
    whole = sum(RecallByClass().count(*part) for part in parts)
    assert classes["all"] == pytest.approx(RecallByClass().value(whole).tolist())
    assert len(classes["mean"]) == 4 and "clients" not in classes
    assert "server" not in classes


def test_recall_of_all_samples_is_accuracy_by_class():
    """Recall by class, weighted by the class shares, is the test accuracy of the line."""
    plan = make_plan("fedproto", metrics="recall-by-class", rounds=2)
    line = lines_of(plan)[-1]
    labels = torch.cat([plan.data.y[plan.split(0).test(client)] for client in range(4)])
    shares = torch.bincount(labels, minlength=4) / len(labels)
    recall = torch.tensor(line["metrics"]["recall-by-class"]["all"])
    assert float((shares * recall).sum()) == pytest.approx(line["test_accuracy"], rel=1e-5)


def test_there_is_no_second_forward_pass(monkeypatch):
    calls = []
    features = SplitModel.features
    monkeypatch.setattr(
        SplitModel, "features", lambda self, x: calls.append(len(x)) or features(self, x)
    )

    def passes(**options):
        calls.clear()
        lines_of(make_plan("fedproto", **options))
        return [*calls]

    assert passes(metrics=NAMES) == passes()


@pytest.mark.slow
def test_nothing_else_of_a_run_changes(toys, tmp_path):
    measured = train("fedproto", tmp_path / "a", metrics=NAMES, options={"ece": {"bins": 4}})
    plain = train("fedproto", tmp_path / "b")
    rows = without_times(measured.record)
    for row in rows:
        assert row.pop("metrics").keys() == {*NAMES.split(",")}
    assert rows == without_times(plain.record)
    for path in (tmp_path / "b/checkpoint").glob("*.safetensors"):
        assert path.read_bytes() == (tmp_path / "a/checkpoint" / path.name).read_bytes()
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert config["metrics"] == NAMES.split(",")
    assert config["options"]["ece"] == {"bins": 4}
    assert {p["name"] for p in config["plugins"] if p["kind"] == "metric"} == {*NAMES.split(",")}


def test_they_may_be_given_and_left_out_on_resume(toys, tmp_path):
    class Stop(Exception):
        pass

    def stop(event):
        if isinstance(event, pf.events.RoundDone) and event.row["round"] == 0:
            raise Stop

    def interrupted(name, **options):
        with pytest.raises(Stop):
            train("local", tmp_path / name, rounds=2, progress=stop, **options)
        return tmp_path / name

    options = {"set": {"ece.bins": 4}}
    folder = interrupted("a", metrics="ece", **options)
    assert "metrics" not in train(None, folder, resume=True, metrics=[]).record[1]
    folder = interrupted("b")
    resumed = train(None, folder, resume=True, metrics="ece", **options).record
    whole = train("local", tmp_path / "c", rounds=2, metrics="ece", **options).record
    assert resumed[1]["metrics"] == whole[1]["metrics"] and "metrics" not in resumed[0]


def test_summaries_have_the_last_figures(toys, tmp_path):
    result = train("local", tmp_path / "run", metrics=NAMES, trials=2, eval_every=2, rounds=3)
    finals = [r["metrics"] for r in result.record if r["round"] == 2]
    for name in COUNTS:
        each = [found[name]["all"] for found in finals]
        assert [trial[f"final_{name}"] for trial in result.summary["trials"]] == each
        assert result.summary["mean"][f"final_{name}"] == pytest.approx(sum(each) / 2)
    assert "final_recall-by-class" not in result.summary["mean"]
    assert all("metrics" not in r for r in result.record if r["round"] == 0)


def test_the_server_s_model_is_scored_too():
    plan = make_plan("fedavg", models="toy1", public=12, metrics=NAMES, rounds=2)
    federation = open_federation(plan)
    lines = [federation.round(n)[0] for n in range(2)]
    model = plan.info.build(plan.info.architectures[0].name, 0)
    pf.models.load_weights(model, federation.server.global_state, "model")
    rows = plan.split(0).global_test
    with torch.no_grad():
        scores = model.eval()(plan.data.x[rows].float() / 127.5 - 1)
    for name, (count, value) in COUNTS.items():
        (found,) = lines[-1]["metrics"][name]["server"].values()
        assert found == pytest.approx(float(value(count(scores, plan.data.y[rows]))), rel=1e-4)
    assert lines[-1]["extra"]["server_test_accuracy"] == pytest.approx(
        float((scores.argmax(1) == plan.data.y[rows]).double().mean())
    )


# --- invalid metrics --------------------------------------------------------------------------


def metric(**hooks):
    """Return a metric class with these hooks."""
    return type("Own", (), {"__doc__": "Own.", **{n: pf.hookimpl(f) for n, f in hooks.items()}})


def own_plan(folder, **hooks):
    """Return a plan that uses a metric with these hooks."""
    extra = {("metric", "own"): metric(**hooks)}
    return toy.make_plan("local", folder, extra=extra, metrics="own", rounds=1)


def count_ones(self, scores, labels):
    return scores.new_ones(2)


def number(self, counts):
    return counts[0]


WRONG = {
    "a number in place of counts": (
        {"count": lambda self, labels: len(labels), "value": number},
        r"count of metric own returned a int\n.*tensor",
    ),
    "text": (
        {"count": count_ones, "value": lambda self, counts: "good"},
        r"value of metric own returned a str\nreturn a number",
    ),
    "nothing": (
        {"count": count_ones, "value": lambda self, counts: None},
        "value of metric own returned a NoneType",
    ),
    "an error": (
        {"count": lambda self, scores: scores.nothing, "value": number},
        "count of metric own: AttributeError",
    ),
    "shapes that differ": (
        {"count": lambda self, scores: scores[:, 0], "value": number},
        r"metric own counts in shape \[\d+\] for client \d and in shape \[\d+\] for client \d",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_mistakes_are_told(kind, tmp_path):
    hooks, words = WRONG[kind]
    with pytest.raises(pf.RunFailure, match=words):
        toy.Toy(own_plan(tmp_path, **hooks)).rounds(1)


def test_a_figure_that_nobody_has_is_null(tmp_path):
    plan = own_plan(tmp_path, count=count_ones, value=lambda self, counts: float("nan"))
    (line,) = toy.Toy(plan).rounds(1)
    found = line["metrics"]["own"]
    assert found["all"] is found["mean"] is found["std"] is None
    assert {*found["clients"].values()} == {None}


def test_names_are_checked(tmp_path):
    with pytest.raises(pf.UsageError, match=r"unknown metric 'macro-f2'\n.*macro-f1"):
        make_plan("local", metrics="macro-f2")
    with pytest.raises(pf.UsageError, match="unknown plugin in --set 'ece'"):
        make_plan("local", options={"ece": {"bins": 3}})
    with pytest.raises(pf.UsageError, match=r"unknown option of metric/ece 'bin'"):
        make_plan("local", metrics="ece", options={"ece": {"bin": 3}})
    extra = {("metric", "local"): metric(count=count_ones, value=number)}
    words = "--metrics local: the run has a method of the same name"
    with pytest.raises(pf.UsageError, match=words):
        toy.make_plan("local", tmp_path, extra=extra, metrics="local")
