"""Tests of the execution of a benchmark: its runs, records, and refusals."""

from __future__ import annotations

import json
import math
import shutil
from statistics import fmean
from types import SimpleNamespace

import pytest
from small_benchmark import SMALL
from sweep_toys import is_round

import protofl as pf
from protofl.errors import Diverged
from protofl.hooks.discovery.registry import Registry
from protofl.records.result import chosen_row
from protofl.records.row import Row
from protofl.testing.donors import methods_to_run
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.batch_events import Outcome
from protofl_workbench.reproductions.benchmark import benchmark_records
from protofl_workbench.reproductions.benchmark.benchmark_execution import (
    entries_of,
    run_benchmark,
)
from protofl_workbench.reproductions.benchmark.benchmark_records import (
    definition_of,
    environment_of,
    figures_of,
    file_of,
    folder_of,
    read_records,
    write_record,
)
from protofl_workbench.reproductions.benchmark.candidates import Candidate, best_candidate
from protofl_workbench.reproductions.benchmark.standings import setting_of
from protofl_workbench.reproductions.cells import Change
from protofl_workbench.reproductions.finding import find_reproduction, reproduction_of_file
from protofl_workbench.reproductions.reproduction_execution import run_reproduction

ALL = ("local", "fedproto", "fedavg")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, few):
    """Return a folder of runs: two methods in two settings, and one that fits only one."""
    folder = tmp_path_factory.mktemp("benchmark")
    (folder / "small.toml").write_text(SMALL, encoding="utf-8")
    change = Change(only=ALL, datasets={"few": few})
    run_benchmark(reproduction_of_file(folder / "small.toml"), change, folder / "runs", at_once=0)
    return folder / "runs"


@pytest.fixture
def done(trained, small, chosen, tmp_path):
    """Return the progress that is read from a copy of these runs, ``tmp_path / "runs"``."""
    shutil.copytree(trained, tmp_path / "runs")
    change = chosen(*ALL, columns=("equal", "unequal"))
    return run_benchmark(small, change, tmp_path / "runs", start=False)


@pytest.fixture
def heard():
    """Return a list, and a follower that appends events to it."""
    found = []
    return found, found.append


def started(found):
    return [e.batch_run.name for e in found if isinstance(e, events.RunStarted)]


@pytest.mark.slow
def test_every_method_is_tuned_and_run_alike(done, small, tmp_path):
    ran = {key: record for key, record in done.records.items() if "runs" in record}
    assert set(ran) == {
        ("local", "equal"), ("local", "unequal"), ("fedproto", "equal"), ("fedproto", "unequal"),
        ("fedavg", "equal"),
    }  # fmt: skip
    for record in ran.values():
        rates = [c for c in record["search"] if c["weight"] is None]
        assert [c["lr"] for c in rates] == [0.05, 0.2]
        assert [run["seed"] for run in record["runs"]] == [0, 1]
        scores = [c["validation_accuracy"] for c in record["search"]]
        assert record["lr"] == record["search"][scores.index(max(scores))]["lr"]
        assert record["batches"] > 0
    weighted = ran["fedproto", "equal"]
    assert [c["weight"] for c in weighted["search"]] == [None, None, 0.0, 1.0]
    assert weighted["weight"]["name"] == "lambda" and weighted["weight"]["value"] in (0, 0.1, 1.0)
    assert "weight" not in ran["fedavg", "equal"]
    configs = [pf.load_run(p.parent).config for p in (tmp_path / "runs").glob("*/config.json")]
    assert len([c for c in configs if c["seed"] == 100]) == 14
    assert {c["rounds"] for c in configs} == {3}


def test_a_method_that_does_not_fit_is_refused_with_its_own_reason(done):
    record = done.records["fedavg", "unequal"]
    assert record["refused"].startswith("it averages whole models")
    assert "runs" not in record and not done.failed


def test_a_figure_is_read_in_the_round_that_validation_chose(done, tmp_path):
    for folder in (tmp_path / "runs").glob("local-cnn4*"):
        run = pf.load_run(folder)
        found = figures_of(run)
        best = max(run.rows, key=lambda row: row["validation_accuracy"])
        assert found["chosen_round"] == best.round + 1
        assert found["client_accuracy"] == pytest.approx(fmean(best.client_accuracies.values()))
    rows = [
        Row({"round": n, "validation_accuracy": v, "test_accuracy": t})
        for n, (v, t) in enumerate([(0.5, 0.9), (0.7, 0.2), (0.7, 0.8)])
    ]
    assert chosen_row(rows, "validation").test_accuracy == 0.2


def test_records_have_no_place_of_the_machine(done, small, tmp_path):
    files = [*folder_of(tmp_path / "runs", small, "paper").glob("*/*.json")]
    assert len(files) == 6
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert str(tmp_path) not in text and "/tmp" not in text
        assert json.loads(text)["options"]["dataset"] in ("npz:few.npz", "few")


def test_a_finished_entry_is_read_and_a_lost_record_is_made_from_its_runs(
    done, small, chosen, tmp_path, heard
):
    found, follow = heard
    change = chosen("local", "fedproto", "fedavg", columns=("equal", "unequal"))
    again = run_benchmark(small, change, tmp_path / "runs", at_once=0, follow=follow)
    assert again.records == done.records and not found
    file = file_of(folder_of(tmp_path / "runs", small, "paper"), "equal", "local")
    before = file.read_text(encoding="utf-8")
    file.unlink()
    run_benchmark(small, change, tmp_path / "runs", at_once=0, follow=follow)
    assert len(started(found)) == 4
    assert not [event for event in found if is_round(event)]
    assert file.read_text(encoding="utf-8") == before


@pytest.mark.slow
def test_a_changed_definition_is_run_again(done, small, benchmark_file, chosen, tmp_path, heard):
    found, follow = heard
    text = benchmark_file.read_text(encoding="utf-8")
    benchmark_file.write_text(text.replace("rounds = 3", "rounds = 2"), encoding="utf-8")
    longer = reproduction_of_file(benchmark_file)
    run_benchmark(longer, chosen("local"), tmp_path / "runs", at_once=0, follow=follow)
    assert len(started(found)) == 4


def after_search(small, chosen, scores):
    """Return an entry whose tuning runs had these scores; None for one that diverged."""
    entry = entries_of(small, chosen("local"))[1][0]
    for score in scores:
        run = entry.next()
        outcome = Outcome(run, "failed", error=Diverged("round 1: the loss is NaN"))
        if score is not None:
            outcome = Outcome(run, "finished")
            rows = [Row({"validation_accuracy": score, "test_accuracy": 1 - score})]
            vars(outcome)["run"] = SimpleNamespace(rows=rows)
        entry.run_ended(outcome)
    return entry


def test_the_search_goes_by_validation_alone_and_leaves_diverged_candidates_out(small, chosen):
    """Test accuracy is largest where validation accuracy is smallest; the first diverges."""
    entry = after_search(small, chosen, [None, 0.7])
    finals = [entry.next(), entry.next()]
    assert [run.request.options["seed"] for run in finals] == [0, 1]
    assert {run.request.options["lr"] for run in finals} == {0.2}
    assert entry.next() is None and not entry.done


@pytest.mark.slow
def test_an_entry_that_diverges_has_a_record_and_is_repeated_on_request(
    small, chosen, tmp_path, heard
):
    found, follow = heard
    entry = after_search(small, chosen, [None, None])
    assert entry.next() is None and entry.done and entry.error is None
    record = entry.record()
    assert (record["failed"], record["diverged"]) == ("every run of the search diverged", True)
    write_record(folder_of(tmp_path / "runs", small, "paper"), record)
    there = run_benchmark(small, chosen("local"), tmp_path / "runs", at_once=0, follow=follow)
    assert there.records["local", "equal"] == record and not found
    run_benchmark(small, chosen("local"), tmp_path / "runs", at_once=0, again=True, follow=follow)
    assert len(started(found)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_final_run_that_diverges_counts_with_its_best_round_before(
    trained, small, chosen, rounds
):
    """The run with seed 1 diverges after these rounds; without any there is no figure."""
    runs = [pf.load_run(path.parent) for path in trained.glob("local-cnn4*/config.json")]
    folders = {run.config["seed"]: run.folder for run in runs}
    entry = after_search(small, chosen, [0.5, 0.7])
    entry.run_ended(Outcome(entry.next(), "finished", folders[0], seed=0, rounds=3))
    error = Diverged(f"round {rounds}: the loss is NaN")
    folder = folders[1] if rounds else None
    entry.run_ended(Outcome(entry.next(), "failed", folder, seed=1, rounds=rounds, error=error))
    assert entry.next() is None and entry.done
    record = entry.record()
    assert record.get("failed") == (
        None if rounds else "seed 1 diverged before its first evaluation"
    )
    found = [(run["seed"], run["rounds"], run.get("diverged")) for run in record["runs"]]
    assert found == [(0, 3, None), *[(1, rounds, True)] * (rounds > 0)]
    (standing,) = setting_of("equal", [record]).standings
    assert standing.diverged == (rounds > 0)


def test_a_row_of_any_name_has_the_code_of_its_method():
    plugin = {"kind": "method", "name": "fedproto", "distribution": "protofl", "code": "abc"}
    others = {"kind": "method", "name": "fedgh", "distribution": "other"}
    run = SimpleNamespace(config={"method": "fedproto", "plugins": [others, plugin]})
    assert environment_of(run)["plugin"] == {
        "distribution": "protofl",
        "version": "",
        "code": "abc",
    }


def test_one_diverged_seed_leaves_a_candidate_out(small, chosen):
    entry = entries_of(small, chosen("local"))[1][0]
    entry.found[Candidate(0.05)] = {100: 0.9, 101: -math.inf}
    entry.found[Candidate(0.2)] = {100: 0.1, 101: 0.1}
    assert best_candidate(entry.scores) == Candidate(0.2)


@pytest.mark.slow
def test_a_run_that_fine_tunes_is_read_after_it(few, tmp_path):
    result = pf.run(
        "fedavg", models="cnn4", dataset=few, clients=3, rounds=2, fine_tune=1, validation=0.2,
        out=tmp_path / "run", backend="local",
    )  # fmt: skip
    run = pf.load_run(result.folder)
    found, last = figures_of(run), run.rows[-1]
    assert found["clients"] == pytest.approx(last.client_fine_tuned_accuracies, abs=1e-5)
    assert found["chosen_round"] == 2
    assert found["upload_bytes"] == sum(row["upload_bytes"] for row in run.rows)


def test_a_run_that_fails_ends_its_entry_which_is_tried_again(small, chosen, tmp_path):
    entry = after_search(small, chosen, [0.5])
    entry.run_ended(Outcome(entry.next(), "failed", error=pf.RunFailure("a hook failed")))
    assert entry.done and entry.record()["failed"] == "a hook failed"
    write_record(folder_of(tmp_path / "runs", small, "paper"), entry.record())
    again = run_benchmark(small, chosen("local"), tmp_path / "runs", at_once=0)
    assert "failed" not in again.records["local", "equal"]


def test_missing_data_are_an_error_before_any_run_or_leave_a_setting_out(small, tmp_path):
    change = Change(only=("local",), datasets={"few": f"npz:{tmp_path}/none.npz"})
    with pytest.raises(pf.UsageError) as found:
        run_benchmark(small, change, tmp_path / "runs", at_once=0)
    assert "none.npz" in found.value.what
    progress = run_benchmark(small, change, tmp_path / "runs", at_once=0, skip_missing=True)
    assert {*progress.missing} == {"equal", "unequal"} and not progress.records


def test_wrong_names_are_errors_before_any_run(small, chosen, tmp_path):
    for change, added, what in (
        (chosen("lokal"), (), "row of small in --only: 'lokal'"),
        (chosen("local", columns=("eqal",)), (), "'eqal'"),
        (chosen("local"), ("fedprotto",), "unknown method 'fedprotto'"),
    ):
        with pytest.raises(pf.UsageError) as found:
            run_benchmark(small, change, tmp_path / "runs", added=added, at_once=0)
        assert what.split("'")[1] in found.value.what
    assert not (tmp_path / "runs").exists()


def test_a_weight_that_the_method_does_not_have_is_an_error(benchmark_file, chosen, tmp_path):
    text = benchmark_file.read_text(encoding="utf-8").replace("{ lambda", "{ lamda")
    benchmark_file.write_text(text, encoding="utf-8")
    with pytest.raises(pf.UsageError, match="lamda"):
        run_benchmark(reproduction_of_file(benchmark_file), chosen("fedproto"), tmp_path / "runs")


def test_the_data_file_s_folder_is_no_part_of_the_definition(small, few):
    cells = [
        entries_of(small, Change(only=("local",), columns=("equal",), datasets={"few": place}))[1][
            0
        ]
        for place in (few, "npz:/elsewhere/few.npz", "npz:other.npz")
    ]
    one, moved, other = (definition_of(e.cell, e.tuning, e.weight) for e in cells)
    assert one == moved != other


def test_a_benchmark_is_not_run_as_a_table(small):
    with pytest.raises(pf.UsageError, match="protofl reproduce small"):
        run_reproduction(small)


def test_a_commit_is_that_of_the_source_and_not_of_a_folder_around_it(monkeypatch):
    """An environment may lie in the repository of another project."""
    found = []

    def run(command, **others):
        found.append(command[3])
        return SimpleNamespace(returncode=found[-1] == "ls-files", stdout="abc")

    monkeypatch.setattr(benchmark_records.subprocess, "run", run)
    assert benchmark_records.commit.__wrapped__() == "" and found == ["ls-files"]


def test_a_damaged_record_is_an_error_with_its_file(small, chosen, tmp_path):
    file = file_of(folder_of(tmp_path / "runs", small, "paper"), "equal", "local")
    file.parent.mkdir(parents=True)
    file.write_text("{", encoding="utf-8")
    with pytest.raises(pf.UsageError) as found:
        run_benchmark(small, chosen("local"), tmp_path / "runs", at_once=0)
    assert str(file) in found.value.what


@pytest.mark.slow
def test_the_installed_benchmark_compares_alike():
    benchmark = find_reproduction("benchmark/regimes")
    assert {*benchmark.rows} >= {*methods_to_run(Registry(), "protofl")}
    _, entries = entries_of(benchmark, Change())
    assert len(entries) == len(benchmark.tuning.rows) * len(benchmark.columns)
    for entry in entries:
        assert not {*entry.tuning.search_seeds} & {*entry.tuning.seeds}
        options = entry.cell.options
        train = options["train_size"] - round(options["validation"] * options["train_size"])
        place = benchmark.columns[entry.cell.column].label
        assert place == f"n = {train}"
        assert options["subset"] == 20 * (train + 400)


def test_records_are_read_back(done, small, tmp_path):
    records = read_records(folder_of(tmp_path / "runs", small, "paper"))
    assert {(r["method"], r["setting"]): r for r in records} == done.records
