"""Tests of the checkpoint's journal: a commit adds only the participants of its round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runtime_toys import make_plan, open_federation

import protofl as pf
from protofl.hooks.views.snapshots import pack_server
from protofl.records.row import Row
from protofl.records.run_folder import RunFolder
from protofl.system.files.commit import Journal


def commits(path, rounds, clients):
    """Return a run folder after commits of some rounds, each with its participants."""
    federation = open_federation(make_plan("local"))
    path.mkdir()
    (path / "checkpoint").mkdir()
    folder = RunFolder(path)
    for number in rounds:
        paths = folder.client_paths(clients(number), 0, number)
        for file in paths.values():
            Path(file).write_bytes(bytes([number]))
        row = Row({"trial": 0, "round": number})
        folder.commit_round(row, pack_server(federation.server), (), paths)
    return folder


def test_a_commit_adds_what_trained(tmp_path):
    folder = commits(tmp_path / "run", range(5), lambda number: [number, number + 1])
    again = RunFolder.reopen(tmp_path / "run")
    assert again.commit == folder.commit
    assert {c: int(name[-13]) for c, name in again.commit.clients.items()} == {
        0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 4
    }  # fmt: skip
    assert (tmp_path / "run/checkpoint/clients-t0-r0.jsonl").read_text().count("\n") == 5
    names = {*again.commit.clients.values(), again.commit.server, again.commit.journal}
    before = {"client-00004-t0-r3.safetensors", "server-t0-r3.safetensors"}
    names |= before | {"manifest.json", "before.json"}
    assert {p.name for p in (tmp_path / "run/checkpoint").iterdir()} == names
    again.settle()
    assert {p.name for p in (tmp_path / "run/checkpoint").iterdir()} == names


def test_a_line_that_was_not_committed_does_not_count(tmp_path):
    commits(tmp_path / "run", range(3), lambda number: [number])
    with open(tmp_path / "run/checkpoint/clients-t0-r0.jsonl", "a") as file:
        file.write('{"0": "client-00000-t0-r3.safete')
    assert set(RunFolder.reopen(tmp_path / "run").commit.clients) == {0, 1, 2}


def test_a_journal_of_old_lines_is_begun_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(Journal, "outgrown", property(lambda self: self.check.size > 300))
    folder = commits(tmp_path / "run", range(9), lambda number: [number % 3])
    assert folder.commit.journal != "clients-t0-r0.jsonl"
    assert len(list((tmp_path / "run/checkpoint").glob("*.jsonl"))) <= 2
    found = RunFolder.reopen(tmp_path / "run").commit.clients
    assert {c: int(name[-13]) for c, name in found.items()} == {0: 6, 1: 7, 2: 8}


def test_a_manifest_without_checksums_is_refused(tmp_path):
    """Version 0.1.0 wrote these; without checksums, damage cannot be detected."""
    folder = commits(tmp_path / "run", range(1), lambda number: [number])
    manifest = tmp_path / "run/checkpoint/manifest.json"
    values = {"trial": 0, "round": 0, "server": folder.commit.server, "holders": []}
    values["clients"] = {str(c): name for c, name in folder.commit.clients.items()}
    manifest.write_text(json.dumps(values))
    with pytest.raises(pf.UsageError, match="no checksums") as caught:
        RunFolder.reopen(tmp_path / "run")
    assert "--config" in caught.value.do
