"""Tests of the page of several runs: its tables are those of `pf.compare`."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest
from reported_pages import facts_of, read, tables_of, unfinished
from written_records import write_rows

import protofl as pf
from protofl_workbench.comparing.comparison import sheets
from protofl_workbench.sweeps.sweep_results import PointResult, PointRun, SweepResult


def section_titles(text):
    return [e.words for e in read(text).all("h2")]


def groups_in(text):
    """Return {group: its row} of the first table."""
    heads, rows = next(iter(tables_of(read(text)).values()))
    return {row[0]: dict(zip(heads, row, strict=True)) for row in rows}


def changed(folder, **config):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


@pytest.mark.slow
def test_tables_are_those_of_compare(runs, page_of_all):
    """Runs that differ only in their seeds are one group."""
    tables = [tables_of(one) for one in read(page_of_all).all("div") if one.has_class("scroll")]
    comparison = pf.compare(runs)
    made = sheets(comparison)
    assert len(made) > 2
    for sheet, table in zip(made, tables, strict=False):
        title = sheet.title[:1].upper() + sheet.title[1:]
        assert table == {title: ([*sheet.columns], [[*row] for row in sheet.rows])}
    rows = groups_in(page_of_all)
    assert rows["fedproto"]["trials"] == "3" and rows["local"]["trials"] == "2"
    assert all(f"{note}." in read(page_of_all).text for note in comparison.notes)
    assert facts_of(read(page_of_all))["Trials"] == "5"


def test_runs_that_compare_refuses_are_shown_with_the_reason(runs, undrawn):
    """They have no seed in common."""
    page = read(pf.report([runs / "local", runs / "proto-7"]))
    with pytest.raises(pf.UsageError) as refused:
        pf.compare([runs / "local", runs / "proto-7"])
    assert f"No comparison: {refused.value.what}." in page.text
    assert "Test accuracy" in [e.words for e in page.all("h3")]


def test_groups_have_the_names_that_a_user_gives(runs, undrawn):
    notes = []
    text = pf.report(runs, labels=["fedproto=FedProto (ours)"], baseline="local", note=notes.append)
    assert groups_in(text).keys() == {"FedProto (ours)", "local", "majority guess"}
    assert notes == ["label: FedProto (ours) is fedproto"]
    assert "label: FedProto (ours) is fedproto." in read(text).text
    _, rows = next(t for c, t in tables_of(read(text)).items() if "difference" in c)
    assert rows[0][0] == "FedProto (ours)"
    with pytest.raises(pf.UsageError, match="unknown group 'fedprot'"):
        pf.report(runs, labels=["fedprot=A"])
    with pytest.raises(pf.UsageError, match="one run was given"):
        pf.report(runs / "proto", labels=["fedproto=A"])


@pytest.mark.slow
def test_each_run_stands_by_itself_too(runs, page_of_all):
    inner = {
        e.all("h3")[0].words: e for e in read(page_of_all).all("details") if e.has_class("inner")
    }
    assert list(inner) == ["local", "proto: fedproto", "proto-7: fedproto"]
    for name in ("local", "proto", "proto-7"):
        own = next(e for title, e in inner.items() if title.partition(":")[0] == name)
        best = pf.load_run(runs / name).summary["mean"]["best_test_accuracy"]
        assert f"{100 * best:.1f}" in own.text
        assert f"{name}/config.json" in own.text


def test_a_baseline_is_named(runs, undrawn):
    text = pf.report([runs / "proto", runs / "local"], baseline="fedproto")
    assert any("difference to fedproto" in caption for caption in tables_of(read(text)))
    with pytest.raises(pf.UsageError, match="baseline"):
        pf.report([runs / "proto", runs / "local"], baseline="fedsa")


def test_losses_are_compared_by_their_common_term(page_of_all):
    titles = [e.words for e in read(page_of_all).all("h3")]
    assert "Cross-entropy" in titles and "Training loss" not in titles


def test_what_differs_is_told_and_nothing_else(page_of_all):
    _, rows = tables_of(read(page_of_all))["Options that differ"]
    assert {row[0]: row[1:] for row in rows} == {
        "method": ["local", "fedproto", "fedproto"],
        "trials": ["2", "2", "1"],
        "seed": ["0", "0", "7"],
        "measure": ["none", "flops", "none"],
    }


def test_runs_on_other_data_have_tables_of_their_own(runs, copy, undrawn):
    changed(copy, subset=0.5)
    captions = [*tables_of(read(pf.report([runs / "proto", runs / "local", copy])))]
    of_all, of_half = (
        [c for c in captions if c.startswith(f"Tiny, iid, 4 clients, subset={part}")]
        for part in ("1", "0.5")
    )
    assert any("difference" in caption for caption in of_all)
    assert of_half and not any("difference" in caption for caption in of_half)


def test_a_copy_of_a_run_is_no_further_trial(runs, copy, undrawn):
    text = pf.report([runs / "proto", copy])
    assert groups_in(text)["fedproto"]["trials"] == "2"
    assert read(text).text.count("skipping ") == 2
    assert facts_of(read(text))["Trials"] == "2"


def test_who_diverged_is_named(runs, tmp_path, undrawn):
    """One of two trials has no finite loss at the end."""
    for name in ("proto", "local"):
        shutil.copytree(runs / name, tmp_path / name)
    file = tmp_path / "proto/metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        if row["trial"] == 1 and row["round"]:
            row["train_loss"] = None
    write_rows(tmp_path / "proto", rows)
    page = read(pf.report(tmp_path))
    assert "1 of 2 diverged" in page.all("header")[0].words
    assert "fedproto diverged in round 2 (1 of 2 trials)." in page.text
    alone = read(pf.report(tmp_path / "proto"))
    assert "diverged in round 2 (1 of 2 trials)" in alone.all("header")[0].words


def test_a_sweeps_folder_stands_for_its_runs(runs, tmp_path, undrawn):
    (tmp_path / "sweep.toml").write_text('method = "fedproto"\n')
    names = ("proto", "proto-7", "proto")
    places = [os.path.relpath(runs / name, tmp_path) for name in names]
    each = [PointRun(0, "finished", 1, tmp_path / place) for place in places]
    lines = [PointResult({"lr": n}, own) for n, own in enumerate((each[:1], each[1:]))]
    lines.append(PointResult({"lr": 2}, [PointRun(0, "failed")]))
    SweepResult("best", lines).write(tmp_path)
    found = groups_in(pf.report(tmp_path))
    assert {name: row["trials"] for name, row in found.items()} == {
        "fedproto": "3", "majority guess": "",
    }  # fmt: skip


def test_a_run_that_has_not_begun_stands_beside_others(runs, copy, undrawn):
    unfinished(copy, "")
    text = pf.report([runs / "proto", copy])
    assert "1 of 2 not finished" in read(text).all("header")[0].words
    assert "No round has finished yet." in text


def test_a_run_given_twice_is_one(runs, undrawn):
    text = pf.report([runs / "proto", runs / "proto", runs / "proto-7/../proto"])
    assert re.search(r"<h1>fedproto on tiny</h1>", text)
    assert "Results" not in section_titles(text)


def test_of_many_groups_the_best_are_drawn(runs, tmp_path, monkeypatch, undrawn):
    for number in range(3):
        changed(shutil.copytree(runs / "local", tmp_path / f"run-{number}"), lr=0.1 + number)
    monkeypatch.setattr("protofl_workbench.reporting.comparison_page.CURVES", 2)
    drawn = []
    monkeypatch.setattr(
        "protofl_workbench.plots.traffic", lambda groups, **_: drawn.append(len(groups))
    )
    monkeypatch.setattr(
        "protofl_workbench.reporting.page_parts.Drawings.inline", lambda *_: "<svg></svg>"
    )
    text = pf.report(tmp_path)
    assert len(groups_in(text)) == 3 + 1 and drawn == [2]
    assert "Figures show the 2 groups with the best final accuracy." in text
