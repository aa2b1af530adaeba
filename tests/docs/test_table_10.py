"""Tests of FedTGP's Table 10 on the page: drawn from records, and its headline from its figures."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import pytest
import site_table10 as made
from scipy.stats import binomtest

import protofl as pf

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/published-tables.md").read_text(encoding="utf-8")
GIVEN = {
    "models": "mlp", "clients": 4, "rounds": 3, "batch_size": 10, "lr": 0.3, "feature_dim": 8,
    "shuffle": False, "partition": "published:pathological", "backend": "local",
    "dry_run": False, "progress": False, "record_predictions": "last,best",
}  # fmt: skip
PUBLISHED = {
    ("fedproto", "pathological"): "99.48±0.01",
    ("fedtgp", "pathological"): "99.56±0.03",
    ("lg-fedavg", "pathological"): "99.39±0.01",
}


def run(method, seed, folder, **given):
    """Train on 600 samples of four classes, which overlap."""
    draw = np.random.default_rng(0)
    y = np.arange(600) % 4
    x = draw.normal(size=(600, 4)).astype(np.float32)
    x[np.arange(600), y] += 1.5
    file = folder.parent / "small.npz"
    if not file.exists():
        np.savez(file, x_train=x, y_train=y)
    alike = {"drop_last": True} if method == "local" else {"set": {"variant": "official"}}
    options = GIVEN | {"dataset": f"npz:{file}", "data_dir": folder.parent / "data"} | alike
    return pf.run(method, seed=seed, out=folder, **options | given).folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three methods, two seeds each; local has no predictions."""
    folder = tmp_path_factory.mktemp("table")
    result = [
        run(method, seed, folder / f"{method}{seed}")
        for method in ("fedproto", "fedtgp", "lg-fedavg")
        for seed in (0, 1)
    ]
    return [*result, run("local", 0, folder / "local0", record_predictions="")]


@pytest.fixture(autouse=True)
def small(runs, monkeypatch):
    """Let the small runs be those of the table."""
    config = pf.load_run(runs[0]).config
    monkeypatch.setattr(made, "SETTING", {key: config[key] for key in made.SETTING})
    monkeypatch.setattr(made, "DIGEST", config["data"]["digest"])


@pytest.fixture
def records(runs, tmp_path):
    for source in runs:
        assert made.add_record(source, tmp_path / "records")
    return tmp_path / "records"


def cells(page, method):
    """Return the cells of a method's first row."""
    (line, *_) = [line for line in page.splitlines() if line.startswith(f"| `{method}` |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.slow
def test_records_have_no_weights_and_no_paths(records, tmp_path):
    names = {path.relative_to(records).as_posix() for path in records.rglob("*")}
    assert "fedproto-pathological-s1/predictions/journal.jsonl" in names
    assert not any("checkpoint" in name for name in names)
    for file in records.rglob("*.json*"):
        assert str(tmp_path.parent.parent) not in file.read_text()
    config = json.loads((records / "local-pathological-s0/config.json").read_text())
    assert config["dataset"] == "npz:small.npz"


@pytest.mark.slow
def test_the_page_has_the_figures_of_the_records(records):
    page = made.page_part(made.read_records(records), PUBLISHED)
    runs = [pf.load_run(records / f"fedtgp-pathological-s{seed}") for seed in (0, 1)]
    best = [100 * each.summary["best_test_accuracy"] for each in runs]
    last = [100 * each.summary["final_test_accuracy"] for each in runs]
    ten = [100 * fmean(row.test_accuracy for row in each.rows) for each in runs]  # of three rounds
    rounds = ", ".join(str(each.summary["best_round"]) for each in runs)
    texts = [f"{fmean(values):.2f}±{pstdev(values):.2f}" for values in (last, ten, best)]
    assert cells(page, "fedtgp") == [
        *("`fedtgp`", "0, 1", texts[0], texts[1], f"{texts[2]} ({rounds})"),
        *("–", "99.56±0.03"),
    ]
    assert cells(page, "local")[1] == "0" and cells(page, "local")[-1] == "–"
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == [
        *("fedproto", "fedtgp", "lg-fedavg", "local")
    ]


@pytest.mark.slow
def test_the_rank_correlation_is_that_of_the_records(records):
    found = made.read_records(records)
    page = made.page_part(found, PUBLISHED)
    ours = {
        method: fmean(r.accuracy("best") for r in found if r.method == method)
        for method, _ in PUBLISHED
    }
    ranks = [sorted(ours, key=ours.get).index(method) for method, _ in PUBLISHED]
    squares = sum((a - b) ** 2 for a, b in zip(ranks, (1, 2, 0), strict=True))
    assert f"is {made.signed(1 - 6 * squares / 24)} over 3 methods" in page


@pytest.mark.slow
def test_p_values_are_those_of_the_predictions(records):
    page = made.page_part(made.read_records(records), PUBLISHED)
    names = ("fedtgp", "fedproto", "lg-fedavg")
    runs = {m: pf.load_run(records / f"{m}-pathological-s1") for m in names}
    for which in ("last", "best"):
        right = {method: run.predictions(which).right for method, run in runs.items()}
        for method in ("fedproto", "lg-fedavg"):
            better = sum(a and not b for a, b in zip(right[method], right["fedtgp"], strict=True))
            worse = sum(b and not a for a, b in zip(right[method], right["fedtgp"], strict=True))
            p = binomtest(better, better + worse).pvalue
            assert f"| {better} / {worse} | {p:.3f} |" in page or p < 0.001
            assert f"| {better} / {worse} |" in page
    assert "seed 0" in page and "seed 1" in page
    assert "take the trained models as fixed" in page


def test_without_predictions_there_is_no_test(records):
    shutil.rmtree(records / "fedtgp-pathological-s0/predictions")
    shutil.rmtree(records / "fedtgp-pathological-s1/predictions")
    page = made.page_part(made.read_records(records), PUBLISHED)
    assert "right alone" not in page


def test_missing_and_no_records_are_named(records, tmp_path):
    shutil.rmtree(records / "fedproto-pathological-s0")
    page = made.page_part(made.read_records(records), PUBLISHED)
    assert "pathological: `fedproto` (0, 2), `fedtgp` (2)" in page
    empty = made.page_part(made.read_records(tmp_path / "none"), PUBLISHED)
    assert empty.startswith("No record of these runs is committed yet")


def test_a_diverged_run_counts_with_its_best_round(records):
    folder = records / "fedtgp-pathological-s1"
    done = pf.load_run(folder).summary["best_round"] + 1
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:done]
    (folder / "metrics.jsonl").write_text("".join(lines))
    (folder / "summary.json").unlink()
    (folder / "failure.json").write_text(json.dumps({"what": "NaN", "done": done}))
    page = made.page_part(made.read_records(records), PUBLISHED)
    rows = [json.loads(line) for line in lines]
    first = pf.load_run(records / "fedtgp-pathological-s0")
    best = [100 * first.summary["best_test_accuracy"], 100 * max(r["test_accuracy"] for r in rows)]
    assert f"`fedtgp`, seed 1: ended in NaN in round {done}, best before {best[1]:.2f}" in page
    last = 100 * first.summary["final_test_accuracy"]
    assert cells(page, "fedtgp")[1:3] == ["0, 1 (NaN)", f"{last:.2f}"]
    assert cells(page, "fedtgp")[4].startswith(f"{fmean(best):.2f}±{pstdev(best):.2f} (")
    assert "test accuracy, best on test, seed 1: difference to fedtgp" in page
    assert "test accuracy, last round, seed 1" not in page


@pytest.mark.slow
def test_other_runs_are_refused(runs, records, tmp_path):
    other = run("local", 0, tmp_path / "other", lr=0.1)
    with pytest.raises(ValueError, match=r"lr is 0\.1, not 0\.3"):
        made.add_record(other, records)
    cut = run("local", 5, tmp_path / "cut", partition="iid")
    with pytest.raises(ValueError, match="--partition iid"):
        made.add_record(cut, records)
    shutil.copytree(records / "local-pathological-s0", records / "local-pathological-s7")
    with pytest.raises(ValueError, match="it is local-pathological-s0"):
        made.read_records(records)
    other = run("local", 6, tmp_path / "all", drop_last=False)
    with pytest.raises(ValueError, match="drop_last is False, not True"):
        made.add_record(other, records)
    assert runs


def test_an_unfinished_run_is_left_out(runs, tmp_path):
    shutil.copytree(runs[0], tmp_path / "half")
    shutil.rmtree(tmp_path / "half/checkpoint")
    (tmp_path / "half/summary.json").unlink()
    assert made.add_record(tmp_path / "half", tmp_path / "records") is None
    assert not (tmp_path / "records").exists()


# --- the headline and the figures of older runs ---------------------------------------------------


def test_the_headline_has_the_rank_correlation_of_the_page_s_figures():
    """Computed from the table of older runs on the page, with the figures as they are printed."""
    rows = re.findall(
        r"^\| `([\w-]+)` \| ([^|]+) \| ([\d.]+)±\S+ \| ([^|]+) \| ([\d.]+)±", PAGE, re.M
    )
    assert len(rows) == 7
    published = pf.reproduction("fedtgp/table-10").published
    for place, partition in ((1, "pathological"), (3, "practical")):
        ours = [float(row[place].split(",")[2].split("(")[0]) for row in rows]
        theirs = [float(row[place + 1]) for row in rows]
        printed = [float(published[row[0], partition].partition("±")[0]) for row in rows]
        assert theirs == printed
        correlation = made.signed(made.spearman(ours, theirs))
        first = PAGE.split("\n\n")[1]
        assert correlation in first, (partition, correlation)
        if partition == "pathological":
            assert f"{max(theirs) - min(theirs):.2f} points" in first
            alone = [pf.load_run(p) for p in made.RECORDS.glob(f"local-{partition}-s*")]
            best = 100 * fmean(run.summary["best_test_accuracy"] for run in alone)
            assert f"`local` has {best:.2f} at its best" in first
            assert max(abs(best - each) for each in theirs) < 0.2
