"""Tests of which files of a checkpoint count: those that a commit names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from runtime_toys import make_plan, open_federation

from protofl.hooks.views.snapshots import pack_server
from protofl.records.checkpoint import Checkpoint, Commit
from protofl.records.row import Row
from protofl.records.run_folder import RunFolder
from protofl.system.files.checksums import Damaged

pytestmark = pytest.mark.always


def commits(path, rounds, clients, keep="current", trial=0):
    """Return a run folder after commits of some rounds, each with its participants."""
    federation = open_federation(make_plan("local"))
    (path / "checkpoint").mkdir(parents=True)
    folder = RunFolder(path)
    for number in rounds:
        paths = folder.client_paths(clients(number), trial, number)
        for file in paths.values():
            Path(file).write_bytes(bytes([number]))
        row = Row({"trial": trial, "round": number, "test_accuracy": -abs(number - 1)})
        folder.commit_round(row, pack_server(federation.server), (), paths, keep=keep)
    return folder


def files_in(path):
    return {file.name for file in (path / "checkpoint").iterdir()}


def test_a_commit_adds_what_trained(tmp_path):
    folder = commits(tmp_path / "run", range(5), lambda number: [number, number + 1])
    again = RunFolder.reopen(tmp_path / "run")
    assert again.commit == folder.commit
    assert {c: int(name[-13]) for c, (name, _) in again.commit.client_files.items()} == {
        0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 4
    }  # fmt: skip
    names = {*again.commit.names, "manifest.json", "before.json"}
    names |= {"client-00004-t0-r3.safetensors", "server-t0-r3.safetensors", "clients-t0-r3.jsonl"}
    assert files_in(tmp_path / "run") == names
    again.settle()
    assert files_in(tmp_path / "run") == names


def test_a_round_writes_the_files_of_its_participants_alone(tmp_path):
    """A client that did not train keeps its file, under the same name."""
    commits(tmp_path / "run", range(3), lambda number: range(9) if number == 0 else [number])
    last = Commit.read(tmp_path / "run/checkpoint/manifest.json")
    rounds = {c: int(name[-13]) for c, (name, _) in last.client_files.items()}
    assert rounds == dict.fromkeys(range(9), 0) | {1: 1, 2: 2}


def test_files_that_no_commit_names_do_not_count(tmp_path):
    commits(tmp_path / "run", range(3), lambda number: [number])
    before = files_in(tmp_path / "run")
    for name in ("client-00000-t0-r3.safetensors", "server-t0-r3.safetensors", "kept-t0-r3.json"):
        (tmp_path / "run/checkpoint" / name).write_bytes(b"half of")
    folder = RunFolder.reopen(tmp_path / "run")
    assert set(folder.commit.client_files) == {0, 1, 2}
    folder.settle()
    assert files_in(tmp_path / "run") == before


def test_a_kept_round_has_its_files_until_another_one_is_kept(tmp_path):
    """Round 1 is the best here; its client's file stays, though the client trains again."""
    folder = commits(tmp_path / "run", range(4), lambda number: [0], keep="best")
    assert folder._checkpoint.last.kept == {"best-t0": "kept-t0-r1.json"}
    names = ("server-t0-r{}.safetensors", "client-00000-t0-r{}.safetensors", "clients-t0-r{}.jsonl")
    rounds = {name.format(number) for name in names for number in (1, 2, 3)}
    assert files_in(tmp_path / "run") == rounds | {
        "kept-t0-r1.json",
        "manifest.json",
        "before.json",
    }
    weights = Commit.read(tmp_path / "run/checkpoint/kept-t0-r1.json")
    assert (weights.round, set(weights.client_files), weights.record) == (1, {0}, ())


def test_a_commit_is_read_as_it_was_written(tmp_path):
    folder = commits(tmp_path / "run", range(3), lambda number: [number], keep="best")
    file = tmp_path / "run/checkpoint/manifest.json"
    last = Commit.read(file)
    assert last == folder._checkpoint.last
    assert last.text == file.read_text()
    assert list(json.loads((file.parent / last.clients).read_text())) == ["0", "1", "2"]


def test_a_client_file_has_one_name(tmp_path):
    """So a copy of the folder is not larger than the folder, also without hard links."""
    commits(tmp_path / "run", range(4), lambda number: [number, 0], keep="best")
    links = {file.name: file.stat().st_nlink for file in (tmp_path / "run/checkpoint").iterdir()}
    assert set(links.values()) == {1}


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def refused(*arguments, **options):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refused)
    folder = commits(tmp_path / "run", range(4), lambda number: [number], keep="best")
    again = RunFolder.reopen(tmp_path / "run")
    assert again.commit == folder.commit
    assert RunFolder.reopen(tmp_path / "run", back=True).commit.round == 2


def test_the_commit_before_counts_if_the_last_is_damaged(tmp_path):
    commits(tmp_path / "run", range(3), lambda number: [number])
    file = tmp_path / "run/checkpoint/manifest.json"
    file.write_text(file.read_text().replace('"round": 2', '"round": 3'))
    found = Checkpoint(tmp_path / "run/checkpoint")
    found.read(lambda commit: None)
    assert (found.last.round, found.damage) == (1, f"{file} is damaged: its content was changed")
    found.settle()
    assert Commit.read(file) == found.last
    assert not (file.parent / "before.json").exists()
    (file.parent / "client-00000-t0-r0.safetensors").unlink()
    with pytest.raises(Damaged, match=r"client-00000-t0-r0\.safetensors is missing"):
        Checkpoint(tmp_path / "run/checkpoint").read(lambda commit: None)
