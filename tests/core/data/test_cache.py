"""Tests of the cache of decoded data sets."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest
import torch

from protofl import ProtoflError, UsageError
from protofl.data import cache
from protofl.datasets import Dataset, files_key


def toy(n=12, split=False, dtype=torch.uint8):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, 3, 4, 5), generator=generator).to(dtype)
    rows = torch.arange(n)
    halves = [(rows[:4], rows[4:6]), (rows[6:], rows[:0])] if split else None
    return Dataset(
        x, rows % 3, n - 2, ["one", "two", "drei"], split=halves, note="a note", digest="unset"
    )


def never():
    raise AssertionError("decoded again")


def quiet(line):
    pass


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("split", [False, True])
def test_what_is_decoded_comes_back_and_is_not_decoded_again(tmp_path, split, dtype):
    source = toy(split=split, dtype=dtype)
    lines = []
    first = cache.load("toy", tmp_path / "new", lambda: source, lines.append)
    second = cache.load("toy", tmp_path / "new", never, lines.append)
    assert lines == [f"preparing toy (once; kept in {tmp_path / 'new'})"]
    for images in (first, second):
        assert torch.equal(images.x, source.x) and images.x.dtype == dtype
        assert torch.equal(images.y, source.y)
        assert (images.num_train, images.classes) == (10, ["one", "two", "drei"])
        assert images.note == "a note"
        assert images.digest == source.compute_digest() == images.compute_digest()
        if split:
            for got, given in zip(images.split, source.split, strict=True):
                assert torch.equal(got[0], given[0]) and torch.equal(got[1], given[1])
        else:
            assert images.split is None
    assert sorted(os.listdir(tmp_path / "new")) == ["toy.safetensors"]


def test_a_split_whose_clients_all_lack_test_samples(tmp_path):
    source = toy()
    rows = torch.arange(12)
    source.split = [(rows[:5], rows[:0]), (rows[5:], rows[:0])]
    images = cache.load("toy", tmp_path, lambda: source, quiet)
    assert [(len(a), len(b)) for a, b in images.split] == [(5, 0), (7, 0)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no /proc")
def test_the_tensors_are_views_of_the_mapped_file(tmp_path):
    images = cache.load("toy", tmp_path, toy, quiet)
    where = images.x.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= where < end:
            assert line.endswith("toy.safetensors")
            break
    else:
        raise AssertionError("x lies nowhere")


def test_writing_to_a_tensor_leaves_the_file_alone(tmp_path):
    images = cache.load("toy", tmp_path, toy, quiet)
    images.x.zero_()
    assert torch.equal(cache.load("toy", tmp_path, never).x, toy().x)


def test_the_digest_follows_the_data(tmp_path):
    changed = toy()
    changed.x[0, 0, 0, 0] += 1
    a = cache.load("a", tmp_path, toy, quiet).digest
    b = cache.load("b", tmp_path, toy, quiet).digest
    c = cache.load("c", tmp_path, lambda: changed, quiet).digest
    assert a == b != c and len(a) == 64


def test_a_failing_decode_leaves_nothing_behind(tmp_path):
    def fail():
        raise UsageError("no connection")

    with pytest.raises(UsageError, match="no connection"):
        cache.load("toy", tmp_path, fail, quiet)
    assert os.listdir(tmp_path) == []


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def break_off(tensors, path, metadata):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "save_file", break_off)
    with pytest.raises(UsageError) as error:
        cache.load("toy", tmp_path, toy, quiet)
    assert "No space left" in error.value.what and "--data-dir" in error.value.do
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "foreign", "other"])
def test_a_file_that_cannot_be_used_is_made_anew_and_said_so(tmp_path, damage):
    from safetensors.torch import save_file

    cache.load("toy", tmp_path, toy, quiet)
    path = tmp_path / "toy.safetensors"
    content = path.read_bytes()
    if damage == "foreign":
        save_file({"weights": torch.zeros(3)}, path)
    else:
        other = content.replace(b'\\"format\\": 1', b'\\"format\\": 0')
        assert other != content
        path.write_bytes(
            {"cut": content[:-7], "noise": b"\xff" * 99, "empty": b"", "other": other}[damage]
        )
    lines = []
    images = cache.load("toy", tmp_path, toy, lines.append)
    assert torch.equal(images.x, toy().x)
    assert str(path) in lines[0] and "made anew" in lines[0] and len(lines) == 2


@pytest.mark.parametrize("part", ["x", "y", "split/train", "class", "num_train"])
def test_one_flipped_bit_is_seen(tmp_path, part):
    source = toy(split=True)
    cache.load("toy", tmp_path, lambda: source, quiet)
    path = tmp_path / "toy.safetensors"
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    if part == "class":
        place = content.index(b"drei")
    elif part == "num_train":
        place = content.index(b"10", content.index(b"num_train"))
    else:
        place = start + header[part]["data_offsets"][0]
    content[place] ^= 1
    path.write_bytes(content)
    lines = []
    data = cache.load("toy", tmp_path, lambda: source, lines.append)
    assert "damaged" in lines[0] and "made anew" in lines[0]
    assert data.compute_digest() == source.compute_digest() and data.classes == source.classes


def test_a_data_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError) as error:
            cache.load("toy", folder, never)
        assert str(folder) in error.value.what and "--data-dir" in error.value.do


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_serves_what_it_holds(tmp_path):
    cache.load("toy", tmp_path, toy, quiet)
    tmp_path.chmod(0o555)
    try:
        assert len(cache.load("toy", tmp_path, never).y) == 12
        with pytest.raises(UsageError, match="cannot write to the data folder"):
            cache.load("other", tmp_path, never)
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.skipif(os.name == "nt", reason="the modes are those of POSIX")
def test_only_the_user_reads_cached_data(tmp_path):
    folder = tmp_path / "new"
    cache.load("toy", folder, toy, quiet)
    modes = [path.stat().st_mode & 0o777 for path in (folder, folder / "toy.safetensors")]
    assert modes == [0o700, 0o600]


def test_without_the_cache_the_same_data_are_kept_nowhere(tmp_path):
    data = cache.load("toy", tmp_path / "new", toy, quiet, keep=False)
    assert not (tmp_path / "new").exists()
    assert data.digest == cache.load("toy", tmp_path, toy, quiet).digest


def _load_slowly(folder, results):
    def decode():
        time.sleep(0.3)
        results.put("decoded")
        return toy()

    results.put(cache.load("toy", folder, decode, quiet).digest)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_two_processes_at_once_decode_once(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    workers = [context.Process(target=_load_slowly, args=(tmp_path, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seen = []
    while not results.empty():
        seen.append(results.get())
    assert sorted(seen) == sorted(["decoded", toy().compute_digest(), toy().compute_digest()])
    assert os.listdir(tmp_path) == ["toy.safetensors"]


def test_waiting_is_said_and_threads_do_not_meet(tmp_path):
    lines, started, waited = [], threading.Event(), threading.Event()

    def slow():
        started.set()
        assert waited.wait(60)
        return toy()

    def note(line):
        lines.append(line)
        waited.set()

    first = threading.Thread(target=cache.load, args=("toy", tmp_path, slow, quiet))
    first.start()
    started.wait()
    cache.load("toy", tmp_path, never, note)
    first.join()
    assert len(lines) == 1 and lines[0].startswith("waiting for another process")


@pytest.mark.parametrize("key", ["", "Toy", "../toy", "a/b", "-a", "a b"])
def test_a_key_that_is_no_file_name(tmp_path, key):
    with pytest.raises(ProtoflError, match="not a name for a file"):
        cache.load(key, tmp_path, never)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(12, 8, 8, dtype=torch.uint8)}, "x is 12×8×8 of torch.uint8"),
        ({"x": torch.zeros(12, 1, 8, 8, dtype=torch.float64)}, "x is 12×1×8×8 of torch.float64"),
        ({"x": torch.full((12, 5), 7), "vocabulary": 7}, "token ids leave 0…6"),
        ({"x": torch.zeros(12, 5, dtype=torch.int64)}, "need a vocabulary"),
        ({"y": torch.zeros(11, dtype=torch.int64)}, "y isn't"),
        ({"y": torch.full((12,), 3)}, "labels leave 0…2"),
        ({"num_train": 13}, "num_train is 13 of 12"),
        ({"split": [(torch.tensor([12]), torch.tensor([0]))]}, "rows of the split leave 0…11"),
    ],
)
def test_a_plugin_that_decodes_wrongly(tmp_path, change, message):
    images = toy()
    for name, value in change.items():
        setattr(images, name, value)
    with pytest.raises(ProtoflError, match=message):
        cache.load("toy", tmp_path, lambda: images, quiet)
    assert os.listdir(tmp_path) == []


def test_files_key_follows_path_size_time_and_options(tmp_path):
    file = tmp_path / "My Data (2).npz"
    file.write_bytes(b"1")
    os.utime(file, ns=(0, 1))
    key = files_key("npz", file, [file])
    assert key.startswith("npz-my-data-2-") and cache.cache_file(key, tmp_path)
    assert key == files_key("npz", file, [file])
    assert key != files_key("npz", file, [file], 32)
    os.utime(file, ns=(0, 2))
    later = files_key("npz", file, [file])
    file.write_bytes(b"2")
    os.utime(file, ns=(0, 2))
    assert later != files_key("npz", file, [file]), "another content of equal size and time"
    file.write_bytes(b"12")
    os.utime(file, ns=(0, 2))
    assert len({key, later, files_key("npz", file, [file])}) == 3
    strange = tmp_path / "数据.npz"
    strange.touch()
    assert cache.cache_file(files_key("npz", strange, [strange]), tmp_path)
