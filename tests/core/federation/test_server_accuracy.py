"""Tests of the server models' accuracy on the global test samples, in record and summary."""

from __future__ import annotations

import time

import pytest
import torch
from runtime_toys import GIVEN, PARTS, install, lines_of, make_plan, open_federation, train
from torch import nn

import protofl as pf
from protofl.federation.round import server_side
from protofl.testing import toy as toyfed


def right_by_hand(plan, architecture, weights):
    """Return a model's accuracy on the global test samples, computed sample by sample."""
    (known,) = [a for a in plan.info.architectures if a.name == architecture]
    model = known.build(plan.info.sample, 4, plan.info.feature_dim)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(weights[name])
    rows, hits = plan.split(0).global_test.tolist(), 0
    for row in rows:
        x = plan.data.x[row : row + 1].float() / 127.5 - 1
        hits += int(model.eval()(x).argmax()) == int(plan.data.y[row])
    return hits / len(rows)


@pytest.mark.parametrize(
    ("method", "prefix"), [("fedavg", "model"), ("fedprox", "model"), ("fml", "auxiliary")]
)
def test_it_is_that_of_what_the_server_knows(method, prefix):
    plan = make_plan(method, models="toy1", public=24, rounds=3, local_epochs=5)
    federation, seen = open_federation(plan), set()
    for number in range(3):
        line, _ = federation.round(number)
        weights = federation.server.global_state.under(prefix)
        wanted = right_by_hand(plan, plan.info.architectures[0].name, weights)
        assert line["extra"] == {"server_test_accuracy": pytest.approx(wanted)}
        seen.add(wanted)
    assert max(seen) > 0.5 and len(seen) > 1


def test_the_mean_of_several_models():
    plan = make_plan("feddf", public=24, rounds=1)
    federation = open_federation(plan)
    found = federation.round(0)[0]["extra"]
    each = {
        name: right_by_hand(plan, name, federation.server.global_state.under(f"model@{name}"))
        for name in ("dense8", "dense5")
    }
    assert found.pop("server_test_accuracy") == pytest.approx(sum(each.values()) / 2)
    wanted = {f"server_test_accuracy.{name}": pytest.approx(share) for name, share in each.items()}
    assert found == wanted


def test_its_seconds_are_those_of_the_stage_evaluate(monkeypatch):
    scores_of, spent = server_side.scores_of, 0.2

    def slowly(model, samples):
        time.sleep(spent)
        return scores_of(model, samples)

    monkeypatch.setattr(server_side, "scores_of", slowly)
    line, _ = open_federation(make_plan("fedavg", models="toy1", public=24, rounds=1)).round(0)
    assert line["seconds"]["evaluate"] >= spent


@pytest.mark.parametrize("method", ["fedpkd", "fedet", "ds-fl", "fedkd"])
def test_methods_with_a_model_on_the_server(method):
    own = {"server_model": "dense8"} if method != "fedkd" else {}
    (line,) = lines_of(make_plan(method, public=24, rounds=1, options={method: own}))
    assert 0 <= line["extra"]["server_test_accuracy"] <= 1


def test_none_where_there_is_none():
    def extra(method, **options):
        (line,) = lines_of(make_plan(method, models="toy1", rounds=1, **options))
        return line["extra"]

    assert extra("fedavg") == {}  # no global test samples
    assert extra("local", public=24) == {}  # no global model


def norm(sample, K):
    return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, K))


def test_a_server_without_statistics_has_no_accuracy():
    group = toyfed.group(toyfed.architecture("norm", norm), K=6, side=8)
    extra = {("model-group", "norms"): group, ("dataset", "tiny"): PARTS["dataset", "tiny"]}
    given = GIVEN | {"method": "fedavg", "models": "norms", "public": 24, "rounds": 1}

    def found(buffers):
        plan = pf.backends.Plan.make({**given, "options": {"fedavg": {"buffers": buffers}}}, extra)
        return lines_of(plan)[0]["extra"]

    assert found("average").keys() == {"server_test_accuracy"}
    assert found("local") == {}


def test_only_rounds_that_are_evaluated():
    lines = lines_of(make_plan("fedavg", models="toy1", public=24, rounds=5, eval_every=2))
    found = ["server_test_accuracy" in line["extra"] for line in lines]
    assert found == [False, True, False, True, True]


def test_a_server_that_is_not_scored_trains_alike():
    given = {"models": "toy1", "public": 24, "rounds": 2}
    scored = lines_of(make_plan("feddf", **given))
    plain = lines_of(make_plan("feddf", **given, eval_server=False))
    assert all("server_test_accuracy" in line["extra"] for line in scored)
    assert not any("server_test_accuracy" in line["extra"] for line in plain)
    assert [one["loss_terms"] for one in plain] == [one["loss_terms"] for one in scored]
    assert [one["test_accuracy"] for one in plain] == [one["test_accuracy"] for one in scored]


def test_scoring_changes_nothing_else():
    often = lines_of(make_plan("fedavg", models="toy1", public=24, rounds=4))
    seldom = lines_of(make_plan("fedavg", models="toy1", public=24, rounds=4, eval_every=4))
    for line, other in zip(often, seldom, strict=True):
        assert line["loss_terms"] == other["loss_terms"]
    assert often[-1]["extra"] == seldom[-1]["extra"]


@pytest.mark.slow
def test_best_and_final_in_the_summary(tmp_path, monkeypatch):
    install(monkeypatch)
    result = train(
        "fedavg", tmp_path / "run", models="toy1", public=24, rounds=4, trials=2, eval_every=2
    )
    for trial in result.summary["trials"]:
        shares = [
            (row["extra"]["server_test_accuracy"], -row["round"])
            for row in result.record
            if row["trial"] == trial["trial"] and row["test_accuracy"] is not None
        ]
        assert trial["best_server_accuracy"] == max(shares)[0]
        assert trial["best_server_round"] == -max(shares)[1]
        assert trial["final_server_accuracy"] == shares[-1][0]
    for key in ("best_server_accuracy", "final_server_accuracy"):
        both = [trial[key] for trial in result.summary["trials"]]
        assert result.summary["mean"][key] == pytest.approx(sum(both) / 2)
    assert "best_server_accuracy" not in train("local", tmp_path / "b", public=24).summary
