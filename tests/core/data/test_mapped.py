"""Tests of large arrays in temporary files, and of columns that are read in blocks."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

import protofl as pf
from protofl.data import columns, mapped
from protofl.datasets import distinct, mapped_column, mapped_zeros


def test_large_arrays_lie_in_a_file(tmp_path):
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")

    def private():
        [line] = [v for v in status.read_text().splitlines() if v.startswith("VmData")]
        return int(line.split()[1]) * 1024

    before = private()
    numbers = mapped_zeros((1 << 20, 64), tmp_path)
    assert private() - before < 1 << 26
    assert numbers.shape == (1 << 20, 64) and not numbers[::100_000].any()
    numbers[5] = 1
    assert numbers[5].sum() == 64 and not [*tmp_path.iterdir()]


def test_a_full_disk_is_an_error_and_a_closed_folder_none(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "LARGE", 1)
    (tmp_path / "file").write_text("")
    assert not mapped_zeros((2, 3), tmp_path / "file").any()

    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mapped.os, "posix_fallocate", full, raising=False)
    with pytest.raises(pf.UsageError, match="has no room for") as error:
        mapped_zeros((1000, 1000), tmp_path)
    assert "--data-dir" in error.value.do


@pytest.mark.parametrize(
    "values",
    [
        np.array(["b", "a", "ä", "", "b", "a b"]),
        np.array([3, -1, 3, 7, 0]),
        np.array([0.5, np.nan, -2.0, np.nan, 0.5]),
        np.array([], dtype="U4"),
        np.array([], dtype=np.int64),
    ],
)
@pytest.mark.parametrize("block", [2, 100])
def test_different_values_are_those_of_numpy(values, block, tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "_BLOCK", block)
    names, places = distinct(values)
    expected, inverse = np.unique(values, return_inverse=True)
    assert names.dtype == values.dtype and places.dtype == np.int64
    assert np.array_equal(names, expected, equal_nan=values.dtype.kind == "f")
    assert np.array_equal(places, inverse)
    monkeypatch.setattr(mapped, "LARGE", 1)
    again = mapped_column(names, places, tmp_path)
    assert np.array_equal(again, values, equal_nan=values.dtype.kind == "f")
