"""Tests that protofl's processes import nothing from the current folder."""

from __future__ import annotations

import subprocess

import pytest

import protofl as pf

CASES = {"queue.py": "queue", "protofl/__init__.py": "protofl", "json.py": "json"}


@pytest.mark.parametrize("file", CASES)
def test_a_fresh_interpreter_imports_nothing_from_the_current_folder(tmp_path, monkeypatch, file):
    here, ours = tmp_path / "here", tmp_path / "ours"
    (here / file).parent.mkdir(parents=True)
    (here / file).write_text("raise SystemExit('a stranger runs')")
    ours.mkdir()
    (ours / "started.py").write_text(
        f"import sys, {CASES[file]}\nassert __name__ == '__main__'\nprint(*sys.argv[1:], 'ours')\n"
    )
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(ours)
    command, environment = pf.backends.fresh_interpreter("started")
    done = subprocess.run(
        [*command, "word"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["ours"]), done.stderr


@pytest.mark.slow
def test_workers_import_nothing_from_the_current_folder(tmp_path, monkeypatch, few):
    (tmp_path / "queue.py").write_text("open('PWNED', 'w')")
    monkeypatch.chdir(tmp_path)
    pf.run(
        "local",
        models="cnn4",
        dataset=few,
        clients=2,
        rounds=1,
        feature_dim=16,
        backend="process",
        workers=1,
        dry_run=False,
        data_dir=tmp_path,
        checkpoint_every="off",
    )
    assert not (tmp_path / "PWNED").exists()
