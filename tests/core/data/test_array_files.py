"""Tests of files of arrays that others made: archives that inflate, odd members, cut arrays."""

from __future__ import annotations

import io
import re
import warnings
import zipfile

import numpy as np
import pytest
from npz_files import read_npz

import protofl as pf
from protofl.data import array_files
from protofl.datasets import open_arrays


def opened(path, **given):
    with path.open("rb") as file:
        found = open_arrays(file, path, **given)
        return found if isinstance(found, np.ndarray) else {k: found[k] for k in found.files}


def refused(path):
    with pytest.raises(pf.UsageError) as caught:
        opened(path)
    assert str(path) in caught.value.what
    return str(caught.value)


def array_bytes(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def archive(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as out:
        for name, content in members:
            out.writestr(name, content)
    return path


def header(shape, dtype="|u1"):
    """Return the start of a .npy file that claims a shape."""
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_numpy_reads_them(tmp_path, save):
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.array(["x", "yy"]),
        "scalar": np.array(3),
        "empty": np.zeros((0, 4)),
        "fortran": np.asfortranarray(np.eye(3)),
        "table": np.zeros(3, dtype=[("λ", int), ("b", float)]),
        "with/slash": np.ones(2),
    }
    file = tmp_path / "x.npz"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns about names in other alphabets
        save(file, **arrays)
    found = opened(file)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    np.save(tmp_path / "x.npy", arrays["a"])
    np.testing.assert_array_equal(opened(tmp_path / "x.npy"), arrays["a"])
    np.savez(tmp_path / "none.npz")
    assert opened(tmp_path / "none.npz") == {}


def test_an_archive_that_inflates_is_refused_before_it_is_read(tmp_path, monkeypatch):
    """4 MiB in place of the limit of 1 GiB; `zipfile` is not asked for the arrays."""
    monkeypatch.setattr(array_files, "FREE", 4 << 20)
    bomb = tmp_path / "bomb.npz"
    np.savez_compressed(bomb, x_train=np.zeros((5 << 20,), np.uint8), y_train=np.zeros(3, int))
    assert bomb.stat().st_size < 10_000
    words = refused(bomb)
    assert re.search(r"bomb.npz has 0.00\d+ MiB, and its arrays would have 5 MiB", words)
    assert "numpy.savez" in words
    np.savez(bomb, x_train=np.zeros((5 << 20,), np.uint8))  # the advice
    assert opened(bomb)["x_train"].size == 5 << 20
    noise = np.random.default_rng(0).integers(0, 255, 5 << 20).astype(np.uint8)
    np.savez_compressed(bomb, x_train=noise)  # of a usual ratio
    np.testing.assert_array_equal(opened(bomb)["x_train"], noise)


def test_the_arrays_of_an_archive_count_together(tmp_path, monkeypatch):
    monkeypatch.setattr(array_files, "FREE", 4 << 20)
    parts = {f"part{n}": np.zeros((1 << 20,), np.uint8) for n in range(5)}
    np.savez_compressed(tmp_path / "many.npz", **parts)
    assert "would have 5 MiB" in refused(tmp_path / "many.npz")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("readme.txt", b"hello", "its member 'readme.txt' is not an array"),
        ("x_train", b"hello", "its member 'x_train' is not an array"),
        ("x\x1b[31m", b"", r"its member 'x\x1b[31m' is not an array"),
        ("folder/", b"", "its member 'folder/' is not an array"),
        ("text.npy", b"hello, this is text", "'text.npy' is not an array"),
        ("none.npy", b"", "'none.npy' is not an array"),
        ("y_train.npy", array_bytes(np.zeros(3)), "holds 'y_train.npy' twice"),
        ("cut.npy", header((1 << 50,)), "'cut.npy' is cut"),
        ("cut.npy", array_bytes(np.zeros(100))[:-200], "'cut.npy' is cut"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_is_not_an_array(tmp_path, name, content, words):
    members = [("y_train.npy", array_bytes(np.zeros(3, int))), (name, content)]
    file = archive(tmp_path / "odd.npz", members)
    assert words in refused(file)
    with pytest.raises(pf.UsageError, match=re.escape(words)):
        read_npz(file)


def test_a_single_array_that_is_cut(tmp_path):
    file = tmp_path / "x.npy"
    file.write_bytes(header((1 << 50, 3)))
    assert "is cut" in refused(file)
    file.write_bytes(array_bytes(np.zeros(1000))[:500])
    assert "is cut" in refused(file)


def test_pickled_objects_are_read_with_consent_only(tmp_path):
    file = tmp_path / "objects.npz"
    np.savez(file, data=np.array({"x": 1}, dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        opened(file)
    assert opened(file, pickles=True)["data"].item() == {"x": 1}


def test_every_reader_of_npz_files_checks_them():
    """No other code of the package calls `numpy.load`, which checks nothing."""
    from pathlib import Path

    root = Path(__file__).parents[3]
    found = [
        file.relative_to(root).as_posix()
        for part in ("core", "cli", "plugins")
        for file in (root / part).rglob("*.py")
        if "tests" not in file.parts and "np.load(" in file.read_text("utf-8")
    ]
    assert found == ["core/protofl/data/array_files.py"]
