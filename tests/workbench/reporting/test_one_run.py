"""Tests of the page of one run: it shows what was recorded."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from reported_pages import facts_of, read, tables_of, unfinished
from written_records import write_rows

import protofl as pf
from protofl.system.files.lock import folder_lock


def plain(text):
    """Return a number of the page without non-breaking spaces."""
    return text.replace("\u202f", "").replace("\u00a0", " ")


def said(values):
    """Return mean and deviation of shares, formatted as on the page."""
    return f"{100 * np.mean(values):.1f} ± {100 * np.std(values):.1f} %"


@pytest.fixture(scope="module")
def run(runs):
    return pf.load_run(runs / "proto")


@pytest.mark.slow
def test_the_figures_that_count_are_those_of_the_summary(page, run):
    found = {label: plain(value) for label, value in facts_of(read(page)).items()}
    trials = run.summary["trials"]
    for label, key in {
        "Final test accuracy": "final_test_accuracy",
        "Best test accuracy": "best_test_accuracy",
        "Majority guess": "majority_accuracy",
    }.items():
        assert found[label] == said([trial[key] for trial in trials])
    assert found["Worst client"] == said([min(run.accuracies[t].values()) for t in (0, 1)])
    sent = sum(row["upload_bytes"] + row["download_bytes"] for row in run.rows) / 2
    assert found["Traffic of all clients a trial"] == f"{sent / 1e3:.3g} kB"


@pytest.mark.slow
def test_the_best_round_is_said_to_be_chosen_on_test_samples(page):
    assert "chosen on test samples" in read(page).all("dl")[0].words


def test_clients_have_their_accuracy_and_their_samples(runs, undrawn):
    run = pf.load_run(runs / "proto-7")
    heads, rows = tables_of(read(pf.report(run)))["Clients"]
    assert heads == ["client", "architecture", "training samples", "accuracy", "guess"]
    split, means = run.split(0), []
    for name, _, train, accuracy, guess in rows:
        client = int(name.removeprefix("client "))
        own = run.accuracies[0][client]
        assert plain(accuracy) == f"{100 * own:.1f} %"
        means.append(own)
        assert int(train) == split.train_counts[client].sum()
        tests = split.test_counts[client]
        right = tests[split.train_counts[client].argmax()]
        assert plain(guess) == f"{100 * right / tests.sum():.1f} %"
    assert means == sorted(means) and len(means) == 4


def test_traffic_in_the_units_of_the_papers(page, run):
    tables = tables_of(read(page))
    heads, rows = next(t for caption, t in tables.items() if caption.startswith("Traffic of all"))
    assert heads[1:] == ["in round 1", "in a later round", "in all rounds"]
    for name, first, later, all_ in rows:
        unit, way = name.split()
        key = f"{'upload' if way == 'up' else 'download'}_{unit}"
        assert int(plain(first)) == round(np.mean([r[key] for r in run.rows if not r["round"]]))
        assert int(plain(later)) == round(np.mean([r[key] for r in run.rows if r["round"]]))
        assert int(plain(all_)) == round(sum(r[key] for r in run.rows) / 2)


def test_all_options_as_they_were_resolved(page, run):
    tables = tables_of(read(page))
    caption = next(c for c in tables if c.startswith("All "))
    rows = {row[0]: row[1] for row in tables[caption][1]}
    assert caption == f"All {len(rows)} options, as they were resolved"
    assert rows["rounds"] == "3" and rows["lr"] == "0.1" and rows["metrics"] == (
        "macro-f1,recall-by-class,confusion"
    )  # fmt: skip
    for key, value in run.config["options"]["fedproto"].items():
        assert rows[f"fedproto.{key}"] in (str(value), f"{value}".removesuffix(".0"))
    changed = {row[0]: row[1:] for row in tables["Options that differ from their default"][1]}
    assert changed["rounds"] == ["3", "100"] and changed["eval-every"] == ["2", "1"]
    assert "momentum" not in changed and "fedproto.variant" not in changed


def test_a_run_that_goes_on_is_read(copy, undrawn):
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    unfinished(copy, "".join(lines[:4]) + lines[4][:90])
    with folder_lock(copy, "--out"):
        page = read(pf.report(copy))
    assert "going on: 4 of 6 rounds" in page.all("header")[0].words
    run = pf.load_run(copy)
    assert "1 trial not this far yet" in page.all("dl")[0].words
    final = run.rows_of(0)[-1]["test_accuracy"]
    assert plain(facts_of(page)["Final test accuracy"]) == f"{100 * final:.1f} %"
    assert "protofl run --resume --out" in page.text


def test_a_run_without_a_round_has_its_configuration(copy):
    unfinished(copy, "")
    page = read(pf.report(copy))
    assert "No round has finished yet" in page.text and "fedproto.variant" in page.text


def test_unseen_clients_are_not_missing_in_the_evaluation(copy, undrawn):
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) | {"unseen": [1], "evaluated": 3} for line in lines]
    write_rows(copy, rows)
    page = read(pf.report(copy))
    assert "1 client is unseen: never trained" in page.text
    assert "The last evaluation was over" not in page.text


def test_what_cannot_be_read_is_named(copy, tmp_path):
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[2] = lines[2][:50] + "\n"
    (copy / "metrics.jsonl").write_text("".join(lines))
    with pytest.raises(pf.UsageError, match=r"metrics\.jsonl, line 3, is damaged"):
        pf.report(copy)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(
        pf.UsageError, match=r"empty is not a run folder \(it has no config\.json\)"
    ):
        pf.report(empty)


@pytest.mark.slow
def test_the_same_run_makes_the_same_page(runs, page):
    when = re.compile(r"Made by protofl .*?</p>")
    assert when.sub("", pf.report(runs / "proto")) == when.sub("", page)
