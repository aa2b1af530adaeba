"""Tests of the page of several runs: compared on the same data, labelled by what differs."""

from __future__ import annotations

import json
import os
import re
import shutil

import numpy as np
import pytest
from reported_pages import facts_of, read, tables_of, unfinished
from written_records import write_rows

import protofl as pf
from protofl_workbench.sweeps.sweep_results import PointResult, PointRun, SweepResult


def plain(text):
    return text.replace("\u202f", "").replace("\u00a0", " ")


def section_titles(text):
    return [e.words for e in read(text).all("h2")]


def results(text):
    heads, rows = next(t for c, t in tables_of(read(text)).items() if c.startswith("Test accuracy"))
    return [dict(zip(heads, map(plain, row), strict=True)) for row in rows]


def finals(*folders):
    trials = [trial for folder in folders for trial in pf.load_run(folder).summary["trials"]]
    found = [trial["final_test_accuracy"] for trial in trials]
    return f"{100 * np.mean(found):.1f} ± {100 * np.std(found):.1f} %"


@pytest.mark.slow
def test_runs_that_differ_in_seeds_alone_are_one_group(runs, page_of_all):
    rows = {row["group"]: row for row in results(page_of_all)}
    assert rows.keys() == {"fedproto", "local"}
    assert rows["fedproto"]["trials"] == "3" and rows["local"]["trials"] == "2"
    assert rows["fedproto"]["final"] == finals(runs / "proto", runs / "proto-7")
    assert rows["local"]["final"] == finals(runs / "local")
    assert rows["local"]["traffic"] == "0 bytes"


@pytest.mark.slow
def test_who_is_ahead_is_marked_and_named(runs, page_of_all):
    """Ranked are the trials with the seeds that all groups have: 0 and 1, without 7."""
    shares = {}
    for name, label in (("proto", "fedproto"), ("local", "local")):
        trials = pf.load_run(runs / name).summary["trials"]
        shares[label] = 100 * np.mean([trial["final_test_accuracy"] for trial in trials])
    first, second = sorted(shares, key=shares.get, reverse=True)
    page = read(page_of_all)
    (marked,) = [tr for tr in page.all("tr") if tr.has_class("marked")]
    facts = facts_of(page)
    assert marked.all("th")[0].words == facts["Ahead at the end"] == first
    assert plain(facts["Margin"]) == f"+{shares[first] - shares[second]:.1f}"
    large = [e for e in page.all("div") if e.has_class("lead-fact")]
    assert [e.all("dt")[0].words for e in large[:2]] == ["Ahead at the end", "Margin"]
    assert f"{shares[first]:.1f} ± " in plain(large[0].words)
    assert "final test accuracy, seeds 0, 1" in plain(large[0].words)
    rows = [float(row["final"].split()[0]) for row in results(page_of_all)]
    assert rows == sorted(rows, reverse=True)


def changed(folder, **config):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


def headline(page):
    (first, *_) = [e for e in read(page).all("div") if e.has_class("lead-fact")]
    texts = [first.all("dt")[0], *first.all("dd")[0].all("span")]
    return plain(" ".join(text.words for text in texts))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"models": "cnn4"}, "No ranking the models differ"),
        ({"seed": 30}, "No ranking the seeds differ"),
        ({"rounds": 2}, "No ranking the rounds differ"),
        ({"rounds": 2, "models": "cnn4"}, "No ranking the models and rounds differ"),
    ],
)
def test_without_equal_terms_there_is_no_winner(runs, tmp_path, undrawn, config, words):
    for name in ("proto", "local"):
        shutil.copytree(runs / name, tmp_path / name)
    changed(tmp_path / "local", **config)
    page = pf.report(tmp_path)
    assert headline(page).startswith(words)
    assert not facts_of(read(page)).keys() & {"Ahead at the end", "Level at the end", "Margin"}
    assert not [tr for tr in read(page).all("tr") if tr.has_class("marked")]
    if "models" in config:
        names = [row["group"] for row in results(page)]
        assert all(re.search(f"{name}[^;]*", headline(page)) for name in ("fedproto", "local"))
        assert "models: " in headline(page) and any("cnn4" in name for name in names)


def test_other_splits_have_no_winner(runs, tmp_path, undrawn):
    for name in ("proto", "local"):
        shutil.copytree(runs / name, tmp_path / name)
    file = tmp_path / "local/partition.json"
    split = json.loads(file.read_text())
    for one in (split, *split["trials"]):
        one["hash"] = one["hash"][::-1]
    file.write_text(json.dumps(split))
    assert headline(pf.report(tmp_path)).startswith("No ranking the splits differ")


@pytest.mark.slow
def test_unfinished_runs_are_not_ranked(runs, tmp_path, undrawn):
    """The best group is not finished: the two others are ranked without it."""
    for name, method in (("proto", "fedproto"), ("local", "local"), ("third", "fedsa")):
        shutil.copytree(runs / ("local" if name == "third" else name), tmp_path / name)
        changed(tmp_path / name, method=method)
    rows = [{**row, "test_accuracy": 1.0} for row in pf.load_run(tmp_path / "third").rows]
    lines = [json.dumps(row) + "\n" for row in rows if row["round"] < 2]
    unfinished(tmp_path / "third", "".join(lines))
    page = pf.report(tmp_path)
    assert headline(page).startswith("Ahead at the end")
    assert facts_of(read(page))["Ahead at the end"] in ("fedproto", "local")
    assert re.search(r"without fedsa \(unfinished: \d of 6 rounds", headline(page))
    third = next(row for row in results(page) if row["group"] == "fedsa")
    assert third["final"].startswith("100.0") and third["rounds"] == "2 of 3"
    two = pf.report([tmp_path / "third", tmp_path / "local"])
    assert headline(two).startswith("No ranking too few finished runs fedsa (unfinished")


def test_groups_have_the_names_that_a_user_gives(runs, undrawn):
    notes = []
    text = pf.report(runs, labels=["fedproto=FedProto (ours)"], baseline="local", note=notes.append)
    assert {row["group"] for row in results(text)} == {"FedProto (ours)", "local"}
    assert notes == ["label: FedProto (ours) is fedproto"]
    assert "label: FedProto (ours) is fedproto." in read(text).text
    _, rows = next(t for c, t in tables_of(read(text)).items() if "difference" in c)
    assert rows[0][0] == "FedProto (ours)"
    with pytest.raises(pf.UsageError, match="unknown group 'fedprot'"):
        pf.report(runs, labels=["fedprot=A"])
    with pytest.raises(pf.UsageError, match="one run was given"):
        pf.report(runs / "proto", labels=["fedproto=A"])


def test_who_is_level_is_not_ahead(runs, tmp_path, undrawn):
    shutil.copytree(runs / "local", tmp_path / "one")
    shutil.copytree(runs / "local", tmp_path / "two")
    config = json.loads((tmp_path / "two/config.json").read_text())
    (tmp_path / "two/config.json").write_text(json.dumps(config | {"lr": 0.5}))
    page = read(pf.report([tmp_path / "one", tmp_path / "two"]))
    assert facts_of(page)["Level at the end"] == "local, lr=0.1 and local, lr=0.5"
    assert "Ahead at the end" not in facts_of(page)


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


@pytest.mark.slow
def test_differences_are_those_of_compare(runs, page_of_all):
    (row,) = pf.compare(runs, "final").tables[0].rows[1:]
    caption, (_, rows) = next(
        t for t in tables_of(read(page_of_all)).items() if "difference" in t[0]
    )
    assert caption == "Test accuracy, last round: difference to local in percentage points"
    assert rows[0][:2] == [row.label, "2"] == ["fedproto", str(row.difference.count)]
    mean = float(rows[0][2].split()[0].replace("−", "-"))
    assert mean == pytest.approx(100 * row.difference.mean, abs=0.006)
    assert "with 2 pairs it cannot be below 0.5" in read(page_of_all).text


def test_runs_without_a_seed_in_common_are_not_held_against_each_other(runs, undrawn):
    page = read(pf.report([runs / "local", runs / "proto-7"]))
    assert "No differences: " in page.text


def test_figures_over_clients_are_the_same_everywhere(runs, page_of_all):
    """The report, `pf.compare` and plots aggregate within each trial, then over trials."""
    compared = pf.compare([runs / "proto", runs / "local"], ["worst", "std", "gini"])
    found = {(t.name, row.label): row for t in compared.tables for row in t.rows}
    each = {"worst": min, "std": np.std}
    for label, folder in (("fedproto", "proto"), ("local", "local")):
        trials = pf.load_run(runs / folder).accuracies.values()
        values = [[*trial.values()] for trial in trials]
        for name, of in each.items():
            expected = [of(own) for own in values]
            assert found[name, label].values == pytest.approx(expected)
            (bar,) = pf.plots.bars(runs / folder, name).axes[0].patches
            assert bar.get_width() == pytest.approx(100 * np.mean(expected))
        line = pf.plots.clients(runs / folder).axes[0].get_lines()[0].get_ydata()
        assert line[0] == pytest.approx(100 * np.mean([min(own) for own in values]))
        gini = [np.abs(np.subtract.outer(v, v)).mean() / (2 * np.mean(v)) for v in values]
        assert found["gini", label].values == pytest.approx(gini)
    rows = {row["group"]: row for row in results(page_of_all)}
    worst = pf.compare(runs, "worst").tables[0].rows
    local = next(row for row in worst if row.label == "local")
    assert rows["local"]["worst client"] == f"{100 * local.mean:.1f} ± {100 * local.std:.1f} %"


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


def test_runs_on_other_data_are_not_compared(runs, copy, tmp_path, undrawn):
    config = json.loads((copy / "config.json").read_text())
    config["data"]["digest"] = "0" * 64
    config["dataset"] = "other"
    (copy / "config.json").write_text(json.dumps(config))
    text = pf.report([runs / "proto", copy])
    assert section_titles(text)[:2] == [
        "Results on tiny, iid, 4 clients",
        "Results on other, iid, 4 clients",
    ]
    assert "Ahead at the end" not in facts_of(read(text))
    assert "are not compared with each other" in read(text).all("header")[0].words


def test_data_that_differ_in_a_detail_are_told_apart(runs, copy, undrawn):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"subset": 0.5}))
    text = pf.report([runs / "proto", runs / "local", copy])
    name = "Results on tiny, iid, 4 clients"
    assert section_titles(text)[:2] == [f"{name}, subset=1", f"{name}, subset=0.5"]


def test_a_copy_of_a_run_is_no_further_trial(runs, copy, undrawn):
    text = pf.report([runs / "proto", copy])
    assert results(text)[0]["trials"] == "2"
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


def test_of_one_pair_there_is_no_interval(runs, tmp_path, undrawn):
    for name in ("proto-7", "local"):
        shutil.copytree(runs / name, tmp_path / name)
    config = json.loads((tmp_path / "local/config.json").read_text())
    config |= {"seed": 6, "trials": 2}
    (tmp_path / "local/config.json").write_text(json.dumps(config))
    split = json.loads((tmp_path / "proto-7/partition.json").read_text())
    held = json.loads((tmp_path / "local/partition.json").read_text())
    held["trials"] = [{**split, "trial": 1}]
    (tmp_path / "local/partition.json").write_text(json.dumps(held))
    words = [e.get("aria-label", "") for e in read(pf.report(tmp_path)).all("div")]
    (told,) = [one for one in words if " points in " in one]
    assert "in 1 pair" in told and "interval" not in told and "nan" not in told


def test_a_sweeps_folder_stands_for_its_runs(runs, tmp_path, undrawn):
    (tmp_path / "sweep.toml").write_text('method = "fedproto"\n')
    names = ("proto", "proto-7", "proto")
    places = [os.path.relpath(runs / name, tmp_path) for name in names]
    each = [PointRun(0, "finished", 1, tmp_path / place) for place in places]
    lines = [PointResult({"lr": n}, own) for n, own in enumerate((each[:1], each[1:]))]
    lines.append(PointResult({"lr": 2}, [PointRun(0, "failed")]))
    SweepResult("best", lines).write(tmp_path)
    rows = results(pf.report(tmp_path))
    assert [(row["group"], row["trials"]) for row in rows] == [("fedproto", "3")]


def test_a_run_that_has_not_begun_stands_beside_others(runs, copy, undrawn):
    unfinished(copy, "")
    text = pf.report([runs / "proto", copy])
    assert "1 of 2 not finished" in read(text).all("header")[0].words
    assert "There is no finished round yet." in text


def test_a_run_given_twice_is_one(runs, undrawn):
    text = pf.report([runs / "proto", runs / "proto", runs / "proto-7/../proto"])
    assert re.search(r"<h1>fedproto on tiny</h1>", text)
    assert "Results" not in section_titles(text)


def test_many_groups_are_drawn_in_part(runs, tmp_path, monkeypatch, undrawn):
    for number in range(3):
        folder = shutil.copytree(runs / "local", tmp_path / f"run-{number}")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"lr": 0.1 + number}))
    monkeypatch.setattr("protofl_workbench.reporting.results_section.CURVES", 2)
    text = pf.report(tmp_path)
    assert len(results(text)) == 3
    assert "Curves show the 2 groups with the best final accuracy." in text
    heads, _ = tables_of(read(text))["Test accuracy: the numbers"]
    assert heads == ["round", "local, lr=0.1", "local, lr=1.1"]
