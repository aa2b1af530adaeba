"""Tests of the runs in a folder: few reads, never outdated; names; removal."""

from __future__ import annotations

import json
import shutil

import pytest

import protofl as pf
from protofl.records.reading import Reading
from protofl.records.run_index import entry_of, find_runs, runs_in
from protofl.system.files.lock import folder_lock
from protofl_workbench.recorded.removal import remove


@pytest.fixture
def folder(made, tmp_path):
    for name in ("one", "below/two"):
        shutil.copytree(made.folder, tmp_path / "runs" / name)
    return tmp_path / "runs"


@pytest.fixture
def read(monkeypatch):
    """Return the names of the runs whose files were read."""
    found = []

    def note(path):
        found.append(path.name)
        return entry_of(path)

    monkeypatch.setattr("protofl.records.run_index.entry_of", note)
    return found


def test_what_is_told(folder, made):
    told = runs_in(folder)[folder / "one"]
    assert (told.method, told.models, told.dataset, told.seed) == ("fedproto", "toy", "tiny", 0)
    assert (told.trials, told.rounds, told.done, told.finished) == (2, 3, 6, True)
    assert told.best == made.summary["mean"]["best_test_accuracy"]
    assert told.final == made.summary["mean"]["final_test_accuracy"]
    assert told.identity == pf.load_run(folder / "one").identity != ""


def test_the_same_is_told_without_a_summary(folder):
    whole = entry_of(folder / "one")
    (folder / "one/summary.json").unlink()
    shutil.rmtree(folder / "one/checkpoint")
    told = entry_of(folder / "one")
    assert (told.best, told.final, told.done) == (whole.best, whole.final, whole.done)
    assert not told.finished


def test_files_are_read_once_and_again_when_they_change(folder, read):
    first = runs_in(folder)
    assert sorted(read) == ["one", "two"]
    read.clear()
    assert runs_in(folder) == first and not read
    with open(folder / "one/metrics.jsonl", "a") as file:
        file.write("\n")
    runs_in(folder)
    assert read == ["one"]


def test_the_folder_is_the_truth(folder, read):
    """Runs are noticed that were removed, renamed or replaced since the last call."""
    runs_in(folder)
    (folder / "one").rename(folder / "other")
    assert {*runs_in(folder)} == {folder / "other", folder / "below/two"}
    shutil.rmtree(folder / "below")
    assert {*runs_in(folder)} == {folder / "other"}
    config = json.loads((folder / "other/config.json").read_text())
    for method in ("fedxxx", "fedyyy"):  # same length, written immediately
        (folder / "other/config.json").unlink()
        (folder / "other/config.json").write_text(json.dumps({**config, "method": method}))
        assert runs_in(folder)[folder / "other"].method == method


def test_damage_is_told_of_the_run_alone(folder):
    (folder / "one/metrics.jsonl").write_text("[\n")
    (folder / "one/summary.json").unlink()
    (folder / "below/two/config.json").write_text("{")
    told = runs_in(folder)
    assert "line 1, is damaged" in told[folder / "one"].problem
    assert "config.json is damaged" in told[folder / "below/two"].problem


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("summary.json", "mean", 3),
        ("summary.json", "mean", {"best_test_accuracy": "x"}),
        ("config.json", "classes", 3),
        ("config.json", "data", [1]),
        ("config.json", "rounds", -3),
    ],
)
def test_things_that_no_run_writes_keep_nobody_from_the_others(folder, name, key, value):
    whole = runs_in(folder)[folder / "below/two"]
    file = folder / "one" / name
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    told = runs_in(folder)
    assert str(folder / "one") in told[folder / "one"].problem
    assert told[folder / "below/two"] == whole


def test_a_finished_run_that_lost_rounds_is_told(folder):
    lines = (folder / "one/metrics.jsonl").read_bytes().splitlines(True)
    (folder / "one/metrics.jsonl").write_bytes(b"".join(lines[:4]))
    told = runs_in(folder)[folder / "one"]
    assert "line 5, is missing" in told.problem and told.done == 4


def test_digits_by_which_several_identities_begin_name_none(folder):
    identity = pf.load_run(folder / "one").identity
    config = json.loads((folder / "below/two/config.json").read_text())
    other = identity[:5] + "0123456789abcdef"["0" == identity[5]] + identity[6:]
    (folder / "below/two/config.json").write_text(json.dumps({**config, "identity": other}))
    assert find_runs(identity[:6], folder) == [folder / "one"]
    with pytest.raises(pf.UsageError, match="2 identities") as caught:
        find_runs(identity[:5], folder)
    assert other in caught.value.near


def test_runs_by_their_names(folder, monkeypatch):
    identity = pf.load_run(folder / "one").identity
    both = [folder / "below/two", folder / "one"]
    assert find_runs(str(folder / "one"), folder) == [folder / "one"]
    assert find_runs("two", folder) == [folder / "below/two"]
    assert find_runs(identity[:6], folder) == both == find_runs(f"{identity}-s0", folder)
    for word in (f"{identity[:8]}-s1", identity[:3], "ones"):
        with pytest.raises(pf.UsageError, match="unknown run"):
            find_runs(word, folder)
    monkeypatch.chdir(folder)
    with pytest.raises(pf.UsageError, match="not a run folder"):
        find_runs("below", folder)


def test_what_a_run_wrote_is_removed_and_nothing_else(folder):
    assert remove(folder / "one") == []
    assert not (folder / "one").exists()
    (folder / "below/two/notes.txt").write_text("mine")
    assert remove(folder / "below/two") == ["notes.txt"]
    assert [p.name for p in (folder / "below/two").iterdir()] == ["notes.txt"]


def test_foreign_files_in_a_checkpoint_stay(folder):
    checkpoint = folder / "one/checkpoint"
    (checkpoint / "notes.json").write_text("mine")
    (checkpoint / "mine").mkdir()
    assert remove(folder / "one") == ["checkpoint"]
    assert sorted(entry.name for entry in checkpoint.iterdir()) == ["mine", "notes.json"]


def test_a_link_to_a_run_is_not_followed(folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder / "one")
    before = sorted((folder / "one").rglob("*"))
    with pytest.raises(pf.UsageError, match="is a link to"):
        remove(link)
    assert link.is_symlink() and sorted((folder / "one").rglob("*")) == before


def test_what_is_not_to_be_removed(folder, tmp_path):
    with pytest.raises(pf.UsageError, match="not a run folder"):
        remove(folder / "below")
    with (
        folder_lock(folder / "one", "--out"),
        pytest.raises(pf.UsageError, match="is still running"),
    ):
        remove(folder / "one")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "a").write_text("x")
    shutil.rmtree(folder / "one/checkpoint")
    (folder / "one/checkpoint").symlink_to(precious)
    with pytest.raises(pf.UsageError):
        remove(folder / "one")
    assert (precious / "a").exists() and Reading.of(folder / "one")
