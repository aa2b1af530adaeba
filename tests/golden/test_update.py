"""Tests of ``python tests/update.py``: what it makes, lists and leaves."""

from __future__ import annotations

import shutil

import golden_runs
import pytest
import update
from safetensors.torch import save_file

TWO = ("fedavg", "local")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Provide a folder with the stored results of two methods."""
    for name in TWO:
        shutil.copy(golden_runs.path_of(name), tmp_path)
    monkeypatch.setattr(golden_runs, "RUNS", {name: golden_runs.RUNS[name] for name in TWO})
    monkeypatch.setattr(golden_runs, "FOLDER", tmp_path)
    return tmp_path


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def change(name):
    """Change a stored result, as if the method had changed since."""
    tensors, _ = golden_runs.stored(name)
    tensors["round 0/accuracy"] += 0.1
    save_file(tensors, golden_runs.path_of(name), metadata={"command": "a test"})


def test_results_that_are_as_stored_are_not_written_again(folder):
    before = contents(folder)
    assert update.update_results([]) == update.update_results([*TWO]) == []
    assert contents(folder) == before


def test_missing_results_are_made(folder, capsys):
    golden_runs.path_of("local").unlink()
    assert update.update_results([]) == []
    assert "golden: local.safetensors: new" in capsys.readouterr().out
    results, provenance = golden_runs.stored("local")
    assert golden_runs.differences("local", results) == {}
    assert provenance["command"] == "python tests/update.py local"


@pytest.mark.slow
def test_changed_results_are_listed_and_stay_until_they_are_named(folder, capsys):
    change("local")
    before = contents(folder)
    assert update.update_results([]) == ["local"]
    said = capsys.readouterr().out
    assert "local would change, and stays: round 0/accuracy is off by 0.1" in said
    assert "If they are meant to change: python tests/update.py local" in said
    assert update.update_results(["fedavg"]) == []  # other results are not even made
    assert contents(folder) == before
    assert update.update_results(["local"]) == []
    assert contents(folder)["fedavg.safetensors"] == before["fedavg.safetensors"]
    assert update.update_results([]) == []


def test_all_makes_everything_again(folder):
    for name in TWO:
        change(name)
    assert update.update_results([], everything=True) == []
    assert update.update_results([]) == []


@pytest.mark.parametrize("names", [[], ["fedprox"]])
def test_the_combinations_of_a_new_method_are_tried(tmp_path, monkeypatch, names):
    """The others keep the outcomes that are stored."""
    stored, three = update.mixing.read(), ["fedavg", "fedprox", "local"]
    assert len(stored) > 10_000
    methods = {cell: {cell[1], cell[2].partition(".")[0]} for cell in stored}
    few = {cell: outcome for cell, outcome in stored.items() if methods[cell] <= {*TWO}}
    monkeypatch.setattr(update.mixing, "FILE", tmp_path / "mixing.txt")
    update.mixing.FILE.write_text(update.mixing.text(few), encoding="utf-8")
    tried = []

    def outcome(self, main, place="", donor=""):
        tried.append((place, main, donor))
        return stored[place, main, donor]

    monkeypatch.setattr(update.mixing.Mixer, "outcome", outcome)
    update.update_combinations(three, names)
    now = update.mixing.read()
    assert now == {cell: stored[cell] for cell in stored if methods[cell] <= {*three}}
    assert {*tried} == now.keys() - few.keys() and len(tried) == len({*tried})
    tried.clear()
    update.update_combinations(three, [])
    assert tried == []
    update.update_combinations([*TWO], [])  # a method has been removed
    assert update.mixing.read() == few and tried == []


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        update.main(["fedsaa"])
    assert ended.value.code == 2
    assert "unknown method 'fedsaa'; known: afl, alignfed, " in capsys.readouterr().err


@pytest.mark.slow
def test_one_command_updates_results_combinations_and_pages(monkeypatch):
    calls = []
    for name in ("update_results", "update_combinations", "update_pages"):
        monkeypatch.setattr(update, name, lambda *given, name=name, **more: calls.append(name))
    assert update.main(["fedavg"]) == 0
    assert calls == ["update_results", "update_combinations", "update_pages"]
    monkeypatch.setattr(update, "update_results", lambda *given, **more: ["local"])
    assert update.main([]) == 1
