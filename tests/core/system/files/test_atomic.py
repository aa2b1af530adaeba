"""Tests of atomic file replacement, locks, and scratch folders."""

import gc
import json
import os
import re
from pathlib import Path

import pytest

import protofl as pf
from protofl.system.files import atomic, lock
from protofl.system.files.atomic import (
    ScratchFolder,
    atomic_replacement,
    regular_file,
    write_file,
    write_json,
)
from protofl.system.files.checksums import Check, append_line
from protofl.system.files.lock import LOCK, folder_lock, is_held, waiting_lock


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyError), atomic_replacement(path) as part:
        part.write_text("half of the n")
        raise KeyError
    assert path.read_text() == "old"
    with atomic_replacement(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_neither_replaced_nor_read(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/full")
    for target in (pipe, link, tmp_path):
        with pytest.raises(pf.UsageError, match="neither new nor a regular file"):
            write_file(target, "x")
    assert pipe.is_fifo() and link.is_symlink()
    for source in (pipe, "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            regular_file(source)


def test_a_file_that_is_read_whole_has_a_largest_size(tmp_path):
    file = tmp_path / "large"
    file.touch()
    os.truncate(file, atomic.LARGEST + 1)
    with pytest.raises(OSError, match="larger than 1 GiB"):
        regular_file(file)
    os.truncate(file, 10)
    assert regular_file(file).read_bytes() == bytes(10)


def test_json_that_can_t_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "values.json"
    write_json(path, {"a": [1, None]})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": [1, None]}


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_no_record_contains_what_json_cannot_express(tmp_path, number):
    values, path = {"a": 1.0, "times": {"clients": [0.5, number]}}, tmp_path / "file"
    words = f"{path}: a number is NaN or infinite, which JSON cannot hold"
    with pytest.raises(pf.RunFailure, match=re.escape(words)):
        write_json(path, values)
    with pytest.raises(pf.RunFailure, match=re.escape(words)):
        append_line(path, values, Check())
    assert not [*tmp_path.iterdir()]


def test_a_lock_file_that_is_a_symbolic_link_is_refused(tmp_path):
    (tmp_path / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(pf.UsageError, match=r"--out: .*/\.lock is a symbolic link"):
        with folder_lock(tmp_path, "--out"):
            pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("flag", "do"),
    [
        ("--out", "choose another folder with --out"),
        ("protofl runs rm", "make the folder writable"),
        ("--resume", "make the folder writable"),
        ("node", "make the folder writable"),
    ],
)
def test_the_advice_about_a_read_only_folder_can_be_followed(tmp_path, monkeypatch, flag, do):
    def refuse(self, **_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(lock.FileLock, "acquire", refuse)
    with pytest.raises(pf.UsageError, match="cannot be written: Read-only") as caught:
        folder_lock(tmp_path, flag).__enter__()
    assert caught.value.do == do


def test_a_scratch_folder_is_made_when_it_is_needed(tmp_path):
    (tmp_path / "run").mkdir()
    scratch = ScratchFolder("mine-", str(tmp_path / "run/parked"))
    assert not (tmp_path / "run/parked").exists()
    assert not scratch.holds(tmp_path / "run/parked/file")
    file = scratch.file("one")
    assert file.parent == scratch.file("two").parent
    assert file.parent.parent == tmp_path / "run/parked"
    assert file.parent.name.startswith("mine-")
    assert scratch.holds(file) and not scratch.holds(tmp_path / "one")
    file.write_text("something")
    scratch.clear()
    assert not file.parent.exists()
    assert scratch.file("one").parent != file.parent


@pytest.mark.slow
def test_a_scratch_folder_goes_with_its_owner(tmp_path):
    scratch = ScratchFolder("mine-", str(tmp_path / "parked"))
    folder = scratch.file("one").parent
    (folder / "one").write_text("something")
    del scratch
    gc.collect()
    assert not folder.exists()


def test_where_the_place_is_not_to_be_seen_the_system_s_is_taken(tmp_path):
    scratch = ScratchFolder("mine-", str(tmp_path / "elsewhere/run/parked"))
    assert tmp_path not in scratch.file("one").parents
    scratch.clear()


@pytest.mark.parametrize(
    "taken", [lambda p: folder_lock(p, "--out"), lambda p: waiting_lock(p / "l", list)]
)
def test_a_lock_that_is_interrupted_as_it_ends_is_free_in_this_process(
    tmp_path, monkeypatch, taken
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), taken(tmp_path):
        patch.setattr(Path, "unlink", interrupted)
    (lock,) = tmp_path.iterdir()
    assert not is_held(lock)


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="this system has no shared locks")
def test_a_start_waits_for_a_process_that_only_looks(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE", 30)
    file = tmp_path / LOCK
    file.touch()
    look, tries, acquire_once = lock._shared(file), [], lock.FileLock._acquire
    look.__enter__()

    def count(self):
        tries.append(self)
        if len(tries) == 3:
            look.__exit__(None, None, None)
        acquire_once(self)

    monkeypatch.setattr(lock.FileLock, "_acquire", count)
    with waiting_lock(file):
        assert len(tries) == 3 and is_held(file)


def test_a_process_that_waits_is_told_so_once(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE", 0.05)
    told, holder = [], waiting_lock(tmp_path / LOCK)
    holder.__enter__()

    def wait():
        told.append(1)
        holder.__exit__(None, None, None)

    with waiting_lock(tmp_path / LOCK, wait):
        assert told == [1]


def test_a_folder_that_was_removed_is_named(tmp_path):
    with pytest.raises(pf.RunFailure) as caught, atomic.disk_errors():
        write_file(tmp_path / "run" / "checkpoint" / "file", "x")
    assert str(caught.value).startswith(f"{tmp_path / 'run' / 'checkpoint'} was removed")
    with pytest.raises(pf.RunFailure, match="file: No such file"), atomic.disk_errors():
        (tmp_path / "file").read_text()
