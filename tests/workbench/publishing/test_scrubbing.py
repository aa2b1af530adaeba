"""Tests of what is removed from published texts: paths, users and hosts."""

from __future__ import annotations

import json

import pytest

import protofl as pf
from protofl_workbench.publishing import scrubbing
from protofl_workbench.publishing.scrubbing import Scrubber


@pytest.fixture
def scrubber(tmp_path, monkeypatch):
    monkeypatch.setattr(scrubbing.socket, "gethostname", lambda: "node-17")
    monkeypatch.setattr(scrubbing.getpass, "getuser", lambda: "ann")
    return Scrubber([tmp_path / "runs/secret study"])


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("npz:/home/ann/my data/set.npz", "npz:set.npz"),
        ("hf-text:/models/a,/models/b", "hf-text:a,b"),
        (r"npz:C:\Users\Ann\set.npz", "npz:set.npz"),
        ("~/weights.safetensors", "weights.safetensors"),
        ("error in /home/ann/code/x.py:3 in process 7 on node-17", "error in x.py:3 in process 7 "
         "on HOST"),
        ("ann was here", "USER was here"),
        ("hf:ylecun/mnist", "hf:ylecun/mnist"),
        ("see https://w3id.org/ro/crate/1.2", "see https://w3id.org/ro/crate/1.2"),
        ("3 MB/s and 8/16 px", "3 MB/s and 8/16 px"),
        ("ann", "ann"),
    ],
)  # fmt: skip
def test_texts(scrubber, text, becomes):
    assert scrubber.values({"option": [text]}) == {"option": [becomes]}
    assert scrubber.leaks(becomes) == []


def test_a_line_without_private_facts_stays_to_the_byte(scrubber):
    line = '{"x": 0.10, "y":1e-3,  "note": "a b"}'
    assert scrubber.line(line) == line
    changed = json.loads(scrubber.line('{"x": 0.1, "error": "no file /home/ann/x.txt"}'))
    assert changed == {"x": 0.1, "error": "no file x.txt"}


@pytest.mark.parametrize(
    "fact", ["/home/bob/x", r"C:\Users\Bob\x", "node-17", "{tmp}/runs/secret study/x"]
)
def test_a_file_with_a_private_fact_is_found(scrubber, tmp_path, fact):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "fine.txt").write_text("nothing here: https://x.org/home", encoding="utf-8")
    scrubber.check(folder, {})
    text = f"first line\nPATH = '{fact.format(tmp=tmp_path)}'\n"
    (folder / "mine.py").write_text(text, encoding="utf-8")
    with pytest.raises(pf.UsageError, match=r"original\.py, line 2") as found:
        scrubber.check(folder, {"mine.py": "original.py"})
    assert "nothing was published" in str(found.value)
