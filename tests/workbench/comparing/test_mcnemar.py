"""Tests of ``compare --test mcnemar``: pairs of test samples, errors, limits and formats."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
import torch
from runtime_toys import install, train
from typer.testing import CliRunner

import protofl as pf
from protofl.system.files.series import Series
from protofl_cli.app import app
from protofl_workbench.comparing.statistics import holm, mcnemar

SAMPLES = (13, 13)
"""Test samples of each of two clients."""


def right(*numbers):
    """Return whether each of 26 samples is right: all but these."""
    return np.array([n not in numbers for n in range(sum(SAMPLES))])


@pytest.fixture
def recorded(write):
    """Return a function that writes a run whose rounds have given right samples, [26] each.

    Only the predictions of the rounds in ``kept`` are recorded, by default of all.
    """

    def run(name, trials, *, kept=None, clients=(0, 1), true=1, **config):
        accuracies = [[[r[:13].mean(), r[13:].mean()] for r in rounds] for rounds in trials]
        folder = write(name, accuracies, **config)
        series = Series(folder / "predictions")
        for trial, rounds in enumerate(trials):
            for number, hits in enumerate(rounds):
                if kept is not None and (trial, number) not in kept:
                    continue
                hits = np.concatenate([hits[13 * c : 13 * c + 13] for c in clients])
                labels = torch.full((len(hits),), true, dtype=torch.uint8)
                predicted = torch.where(torch.from_numpy(hits), labels, labels + 1)
                tensors = {"predicted": predicted, "true": labels}
                about = {"clients": [*clients], "samples": [13] * len(clients)}
                series.add((trial, number), tensors, about)
        return folder

    return run


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def pair(recorded):
    """Two runs: in the last round A is wrong on 3 samples, B on 9 others and one of A's."""
    a = [[right(0, 1), right(0, 1, 2)]]
    b = [[right(*range(9)), right(2, *range(10, 19))]]
    return [recorded("a", a), recorded("b", b, method="fedtgp")]


def difference(found, label, seed=None):
    (table,) = [table for table in found.tables if table.seed == seed]
    (row,) = [row for row in table.rows if row.label == label]
    return row.difference


def test_samples_are_paired(pair):
    d = difference(pf.compare(pair, test="mcnemar"), "fedtgp")
    assert (d.count, d.better, d.worse) == (26, 2, 9)
    assert d.mean == pytest.approx(-7 / 26)
    assert d.p == d.holm == mcnemar(2, 9) == pytest.approx(134 / 2**11)


def test_the_round_is_chosen(pair):
    """The best round of A is the first one, of B the first one too; it has other predictions."""
    d = difference(pf.compare(pair, test="mcnemar", round="best"), "fedtgp")
    assert (d.better, d.worse) == (0, 7)


def test_a_limit_on_rounds_chooses_among_them(pair):
    d = difference(pf.compare(pair, test="mcnemar", rounds=1), "fedtgp")
    assert (d.better, d.worse) == (0, 7)


def test_limits_are_named(pair):
    for which, number in (("last", 1), ("best", 2)):
        found = pf.compare(pair, test="mcnemar", round=which)
        limits = [note for note in found.notes if note.startswith("limit: ")]
        assert len(limits) == number and "models are taken as fixed" in limits[0]
        assert which == "last" or "chosen on the same test samples" in limits[1]


def test_holm_is_over_the_comparisons_with_the_baseline(recorded):
    hits = {"fedproto": right(), "fedtgp": right(*range(6)), "lg-fedavg": right(*range(8))}
    runs = [recorded(name, [[h]], method=name) for name, h in hits.items()]
    found = pf.compare(runs, test="mcnemar", baseline="fedproto")
    each = [difference(found, name) for name in ("fedtgp", "lg-fedavg")]
    assert [d.p for d in each] == [2**-5, 2**-7]
    assert [d.holm for d in each] == holm([2**-5, 2**-7]) == [2**-5, 2**-6]
    assert any(note.startswith("Holm") for note in found.notes)


def test_seeds_are_counted_together_and_by_themselves(recorded):
    """Trials are paired by seed, whatever run they lie in."""
    one = recorded("one", [[right()], [right(0, 1)]], seed=3)
    others = [
        recorded("b4", [[right(0, 4)]], method="fedtgp", seed=4),
        recorded("b3", [[right(5, 6, 7)]], method="fedtgp", seed=3),
        recorded("b9", [[right(*range(20))]], method="fedtgp", seed=9),
    ]
    found = pf.compare([one, *others], test="mcnemar")
    counts = {seed: difference(found, "fedtgp", seed) for seed in (None, 3, 4)}
    assert {s: (d.count, d.better, d.worse) for s, d in counts.items()} == {
        None: (52, 1, 4),
        3: (26, 0, 3),
        4: (26, 1, 1),
    }
    assert any("as if all samples were independent" in note for note in found.notes)


def test_one_group_has_accuracies_only(recorded):
    found = pf.compare(recorded("a", [[right(0)]]), test="mcnemar")
    (table,) = found.tables
    assert table.rows[0].difference is None and table.rows[0].mean == pytest.approx(25 / 26)
    assert not any("McNemar" in note for note in found.notes)


def test_clients_that_one_run_has_not_evaluated_are_left_out(recorded):
    runs = [
        recorded("a", [[right(0, 20)]], clients=(0,)),
        recorded("b", [[right(1, 2, 25)]], method="fedtgp"),
    ]
    found = pf.compare(runs, test="mcnemar")
    d = difference(found, "fedtgp")
    assert (d.count, d.better, d.worse) == (13, 1, 2)
    assert any("leaves out 1 client that only one of them" in note for note in found.notes)
    other = recorded("c", [[right()]], clients=(1,), method="fedgh")
    with pytest.raises(pf.UsageError, match="no client in common"):
        pf.compare([runs[0], other], test="mcnemar")


# --- errors ---------------------------------------------------------------------------------------


def test_runs_without_predictions_name_the_option(recorded, write):
    bare = write("bare", [[[0.5, 0.5]]], method="fedgh")
    with pytest.raises(pf.UsageError) as caught:
        pf.compare([recorded("a", [[right()]]), bare], test="mcnemar")
    assert "bare has no recorded predictions of round 0 (last)" in caught.value.what
    assert "--record-predictions last" in caught.value.do


def test_all_trials_without_the_predictions_are_named(recorded):
    """The last rounds of two trials are recorded, and their best ones are not."""
    trials, kept = [[right(), right(0)]] * 2, [(0, 1), (1, 1)]
    runs = [recorded(n, trials, kept=kept, method=n) for n in ("fedproto", "fedtgp")]
    assert pf.compare(runs, test="mcnemar")
    with pytest.raises(pf.UsageError) as caught:
        pf.compare(runs, test="mcnemar", round="best")
    assert "no recorded predictions of round 0 (best)" in caught.value.what
    assert "recorded are rounds 1" in caught.value.near
    assert caught.value.near.count(", trial ") == 3
    with pytest.raises(pf.UsageError, match="no validation accuracy"):
        pf.compare(runs, test="mcnemar", round="validation")


def test_other_splits_are_refused(recorded):
    runs = [recorded("a", [[right()]]), recorded("b", [[right()]], method="fedtgp", split="b")]
    with pytest.raises(pf.UsageError, match="different splits for seed 0") as caught:
        pf.compare(runs, test="mcnemar")
    assert "unpaired" not in str(caught.value)


def test_other_seeds_are_refused(recorded):
    runs = [recorded("a", [[right()]]), recorded("b", [[right()]], method="fedtgp", seed=1)]
    with pytest.raises(pf.UsageError, match="no seed in common") as caught:
        pf.compare(runs, test="mcnemar")
    assert "unpaired" not in str(caught.value)


def test_other_samples_under_the_same_hash_are_refused(recorded):
    runs = [recorded("a", [[right()]]), recorded("b", [[right()]], method="fedtgp", true=0)]
    with pytest.raises(pf.UsageError, match="different test samples"):
        pf.compare(runs, test="mcnemar")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--test mcnemr", "did you mean 'mcnemar'"),
        ("--round best", "--round best applies only to --test mcnemar"),
        ("--test mcnemar --round bets", "did you mean 'best'"),
        ("--test mcnemar --unpaired", "cannot be used with --unpaired"),
        ("--test mcnemar --figure best", "--round chooses the round"),
        ("--test mcnemar --target 0.5", "cannot be used with --target"),
        ("--test mcnemar --confidence 0.9", "without an interval"),
    ],
)
def test_options_that_do_not_fit_are_refused(cli, pair, words, message):
    result = cli("compare", *pair, *words.split())
    assert result.exit_code == 2 and message in " ".join(result.output.split())


# --- texts ----------------------------------------------------------------------------------------


def test_the_screen_shows_samples_and_limits(cli, pair):
    result = cli("compare", *pair, "--test", "mcnemar", "--round", "best")
    text = " ".join(result.output.split())
    assert result.exit_code == 0
    assert "right alone: method / fedproto" in text and "0 / 7" in text and "0.016" in text
    assert text.count("limit: ") == 2


def test_csv_and_json_have_the_counts_of_each_seed(recorded):
    runs = [
        recorded(name, [[right(*wrong)], [right(1, *wrong)]], method=name)
        for name, wrong in (("fedproto", ()), ("fedtgp", (2, 3)))
    ]
    found = pf.compare(runs, test="mcnemar")
    lines = [*csv.DictReader(io.StringIO(found.text("csv")))]
    ours = {line["seed"]: line for line in lines if line["method"] == "fedtgp"}
    assert {seed: (line["better"], line["worse"]) for seed, line in ours.items()} == {
        "": ("0", "4"),
        "0": ("0", "2"),
        "1": ("0", "2"),
    }
    values = json.loads(found.text("json"))
    assert values["test"] == "mcnemar" and len(values["figures"]) == 6
    assert float(ours[""]["p"]) == values["figures"][1]["p"] == mcnemar(0, 4)
    assert "right alone: method / fedproto" in found.text("tex")


def test_real_runs(tmp_path, monkeypatch, cli):
    """The accuracies differ by what McNemar's test counts, client by client."""
    install(monkeypatch)
    given = {"rounds": 3, "record_predictions": "last,best", "partition": "dirichlet", "seed": 2}
    for method in ("local", "fedproto"):
        train(method, tmp_path / method, lr=0.5 if method == "local" else 0.05, **given)
    found = pf.compare([tmp_path / "local", tmp_path / "fedproto"], test="mcnemar")
    (table,) = found.tables
    (base, ours) = table.rows
    assert ours.difference.mean == pytest.approx(ours.mean - base.mean)
    assert ours.difference.better + ours.difference.worse > 0
    result = cli("compare", "local", "fedproto", "--test", "mcnemar", "--format", "md")
    assert result.exit_code == 0 and "McNemar" in result.output
