"""Tests of --validation: the scores, the selected round, and unchanged test samples."""

from __future__ import annotations

import json

import pytest
import torch
from runtime_toys import install, lines_of, make_plan, open_federation, train, without_times

import protofl as pf
from protofl.federation.jobs.jobs import Evaluate
from protofl.records.result import is_best, summarise
from protofl.records.row import Row
from protofl.testing import toy as toyfed

OPTIONS = {"validation": 0.2, "rounds": 3, "dry_run": False}


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


def test_clients_are_scored_on_what_they_never_train_on():
    plan = make_plan("local", measure="train-accuracy", **OPTIONS)
    federation, split = open_federation(plan), plan.split(0)
    line = federation.round(0)[0]
    right, total, shares = 0, 0, []
    for client in range(plan.info.num_clients):
        record = federation.pool.client(client)
        rows = split.held_out(client)
        with torch.no_grad():
            scores = record.model.eval()(plan.samples(rows, channels_last=False).inputs())
        hits = int((scores.argmax(1) == plan.data.y[rows]).sum())
        right, total, shares = right + hits, total + len(rows), [*shares, hits / len(rows)]
        assert len(record.train) == len(split.train(client))
        reply = federation.pool.handle(Evaluate(client, 0))
        assert reply.train[1] == len(split.train(client)) and reply.validation == (hits, len(rows))
    assert line["validation_accuracy"] == right / total
    assert line["client_validation_accuracy"] == sum(shares) / len(shares)
    assert line["evaluated"] == 4


def test_the_test_samples_are_those_of_a_run_without():
    with_it, without = make_plan("local", **OPTIONS), make_plan("local")
    assert with_it.split(0).held_out(0) is not None and without.split(0).held_out(0) is None
    for client in range(4):
        assert torch.equal(with_it.split(0).test(client), without.split(0).test(client))
    assert "validation_accuracy" not in lines_of(without, 1)[0]


def test_data_that_come_split_keep_their_test_samples(tmp_path):
    data = toyfed.make_images([[8, 6], [3, 9]], given_split=True)
    plan = toyfed.make_plan("local", tmp_path, data, validation=0.25)
    for client, (own, test) in enumerate(data.split):
        held = plan.split(0).held_out(client)
        assert len(held) == int(len(own) / 4 + 0.5) and {*held.tolist()} < {*own.tolist()}
        assert torch.equal(plan.split(0).test(client), test)


def row_of(round, test, validation, **more):
    return Row(
        {
            "trial": 0,
            "round": round,
            "test_accuracy": test,
            "client_test_accuracy": test,
            "test_accuracy_std": 0.0,
            "validation_accuracy": validation,
            "extra": {},
            **more,
        }
    )


def test_the_summary_names_the_round_that_validation_chose():
    rows = [
        row_of(0, 0.9, 0.1),
        row_of(1, 0.5, 0.6),
        row_of(2, None, None),
        row_of(3, 0.7, 0.6),
        row_of(4, 0.4, 0.2),
    ]
    found = summarise(rows, lambda trial: 0.25, {})
    assert (found["best_round"], found["best_test_accuracy"]) == (0, 0.9)
    assert (found["validation_selected_round"], found["best_validation_accuracy"]) == (1, 0.6)
    assert found["validation_selected_test_accuracy"] == 0.5
    assert found["validation_selected_client_test_accuracy"] == 0.5
    assert found["final_test_accuracy"] == 0.4
    assert found["mean"]["validation_selected_test_accuracy"] == 0.5
    best = [row["round"] for n, row in enumerate(rows) if is_best(row, rows[:n])]
    assert best == [0, 1]


def test_the_weights_that_stay_are_those_of_the_chosen_round(tmp_path, toys):
    found = train("local", tmp_path / "run", **OPTIONS | {"rounds": 6, "lr": 0.6, "seed": 4})
    summary = found.summary
    chosen = max(found.record, key=lambda row: (row["validation_accuracy"], -row["round"]))
    assert summary["validation_selected_round"] == chosen["round"] != summary["best_round"]
    assert pf.read_weights(tmp_path / "run", "best").round == chosen["round"]
    partition = json.loads((tmp_path / "run/partition.json").read_text())
    assert sum(map(sum, partition["validation_counts"])) > 0
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["validation"] == 0.2


@pytest.mark.parametrize("value", ["1.0", -0.1, "half"])
def test_a_share_that_is_none(value):
    with pytest.raises(pf.UsageError, match=f"--validation {value} is not possible"):
        make_plan("local", validation=value)


def test_a_fraction():
    assert make_plan("local", validation="1/4").settings.validation == 0.25


@pytest.mark.slow
def test_backends_give_the_same(tmp_path, toys):
    """Some clients never train, and some join later."""
    options = OPTIONS | {"clients": 6, "unseen": 2, "fine_tune": 2, "join_round": "2:0.3"}
    whole = train("fedproto", tmp_path / "whole", **options)
    other = train("fedproto", tmp_path / "other", **options | {"backend": "process", "workers": 2})
    assert without_times(other.record) == without_times(whole.record)
    assert other.summary == whole.summary


def test_an_engine_that_trains_groups_gives_the_same_figures():
    given = OPTIONS | {"clients": 6, "unseen": 2, "fine_tune": 3, "lr": 0.3, "rounds": 2}
    names = [f"{whose}_accuracy" for whose in ("validation", "unseen", "fine_tuned", "test")]
    eager, vmapped = (
        lines_of(make_plan("fedproto", engine=e, **given)) for e in ("eager", "vmapped")
    )
    assert [[row.get(name) for name in names] for row in vmapped] == [
        [row.get(name) for name in names] for row in eager
    ]
