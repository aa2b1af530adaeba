"""Tests of early stopping (``--patience``): when a trial ends, and how such runs are read."""

from __future__ import annotations

import pytest
from runtime_toys import train, without_times

import protofl as pf
from protofl.records.reading import FINISHED, Reading
from protofl.records.result import is_exhausted, still_falls
from protofl.records.row import Row

pytestmark = pytest.mark.usefixtures("toys")
STILL = {"rounds": 8, "patience": 2, "lr": 1e-9, "trials": 2, "progress": False}
"""Options of a run that learns nothing, so its first round is the best."""


def lines(*accuracies, key="test_accuracy"):
    row = {"trial": 0, "test_accuracy": 0.5, "evaluated": 1}
    return [Row(row | {"round": n, key: value}) for n, value in enumerate(accuracies)]


@pytest.mark.parametrize(
    ("accuracies", "patience", "ends"),
    [
        ((), 1, False),
        ((0.5,), 1, False),
        ((0.5, 0.5), 1, True),
        ((0.5, 0.6), 1, False),
        ((0.5, 0.6, 0.4), 2, False),
        ((0.5, 0.6, 0.4, 0.6), 2, True),
        ((0.5, 0.5, 0.5), 0, False),
    ],
)
def test_the_rule(accuracies, patience, ends):
    assert is_exhausted(lines(*accuracies), patience) is ends
    assert is_exhausted(lines(*accuracies, key="validation_accuracy"), patience) is ends


@pytest.mark.parametrize(
    ("trained", "accuracies", "ends"),
    [
        ("---", (0.3, 0.3, 0.3), False),
        ("---++", (0.3, 0.3, 0.3, 0.2, 0.2), True),
        ("---++", (0.3, 0.3, 0.3, 0.2, 0.4), False),
        ("---+", (0.3, 0.3, 0.3, 0.2), False),
        ("---", (0.3, 0.4, 0.4), False),
        ("----", (0.3, 0.4, 0.4, 0.4), True),  # the server alone trains, as in centralised
        ("--", (0.3, None), False),
    ],
)
def test_rounds_of_a_warm_up_do_not_count(trained, accuracies, ends):
    rows = [
        Row({**row, "loss_terms": {"ce": 1.0} if mark == "+" else {}})
        for row, mark in zip(lines(*accuracies), trained, strict=True)
    ]
    assert is_exhausted(rows, 2) is ends


def test_a_trial_ends_with_an_evaluated_round():
    rows = lines(0.5, 0.4, 0.4)
    unevaluated = Row({**rows[2], "test_accuracy": None, "evaluated": 0})
    assert not is_exhausted([*rows[:2], unevaluated], 1)


@pytest.mark.parametrize(
    ("losses", "falls"),
    [
        ([1 - n / 20 for n in range(20)], True),
        ([0.7**n for n in range(20)], False),
        ([0.9**n for n in range(20)], True),
        ([1.0, *[2.0 - n / 20 for n in range(19)]], False),  # it has not fallen
        ([1 - n / 20 for n in range(9)], False),
        ([None, *[1 - n / 20 for n in range(19)]], False),
    ],
)
def test_a_loss_that_still_falls(losses, falls):
    assert still_falls([Row({"train_loss": loss}) for loss in losses]) is falls


def test_a_run_whose_loss_still_falls_says_so(tmp_path):
    said = []
    train("local", tmp_path / "run", rounds=10, lr=0.003, progress=said.append)
    assert any("the training loss still falls fast" in str(event) for event in said)


def test_a_run_ends_early_and_says_why(tmp_path):
    said = []
    found = train(
        "local", tmp_path / "run", **STILL | {"progress": said.append}, checkpoint_every=5
    )
    assert [(row.trial, row.round) for row in found.record] == [
        (t, r) for t in (0, 1) for r in range(3)
    ]
    assert [t["ended"] for t in found.summary["trials"]] == ["patience"] * 2
    assert found.summary["rounds_done"] == 3 and found.summary["patience"] == 2
    assert any(
        "trial 2 ends after round 3" in e.text for e in said if isinstance(e, pf.events.Note)
    )
    run = pf.load_run(found.folder)
    assert (run.state, run.asked, run.lost) == (FINISHED, 6, "")
    assert run.weights("last", 1, []).round == 2
    assert run.part(range(1, 2), 8).summary["trials"][0]["ended"] == "patience"
    other = train("local", tmp_path / "other", **STILL | {"patience": 0, "rounds": 3})
    assert without_times(other.record) == without_times(found.record)


@pytest.mark.slow
def test_an_interrupted_run_ends_in_the_same_round(tmp_path):
    def stop(event):
        if isinstance(event, pf.events.RoundDone) and event.row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("local", tmp_path / "run", **STILL | {"progress": stop})
    found = train(None, tmp_path / "run", resume=True, progress=False)
    once = train("local", tmp_path / "once", **STILL)
    assert without_times(found.record) == without_times(once.record)
    assert found.summary == once.summary
    more = train(None, tmp_path / "run", resume=True, rounds=9, progress=False)
    assert len(more.record) == 6


@pytest.mark.slow
def test_a_run_that_ended_early_is_reused(tmp_path):
    options = STILL | {"reuse": tmp_path}
    first, again, longer = (
        train("local", None, **options | more) for more in ({}, {}, {"rounds": 9})
    )
    assert len(again.record) == len(longer.record) == 6
    assert again.folder == longer.folder == first.folder
    other = train("local", None, **options | {"patience": 3, "trials": 1})
    assert other.folder != first.folder and len(other.record) == 4


def test_fine_tuning_needs_a_last_round(tmp_path):
    with pytest.raises(pf.UsageError, match="--patience 2: clients are fine-tuned"):
        train("local", tmp_path / "run", **STILL, unseen=0.25)


def test_a_record_with_a_text_as_patience_is_damaged(tmp_path):
    folder = train("local", tmp_path / "run", **STILL).folder
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"patience": 2', '"patience": "soon"'))
    with pytest.raises(pf.UsageError, match="patience is 'soon'"):
        Reading.of(folder).config  # noqa: B018
