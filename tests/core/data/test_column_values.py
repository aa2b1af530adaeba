"""Tests of the values of columns: objects, dates, gaps, and what is not a column."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pytest
from npz_files import read_npz

import protofl as pf
from protofl.data.partition import number_of_clients
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.members import choose
from protofl_plugins.datasets.arrays import ArrayData

N = 12
X = np.random.default_rng(0).normal(size=(N, 5)).astype(np.float32)
Y = np.arange(N) % 3


class NAType:
    """Stands for pandas' NA, whose comparisons are not truth values."""

    def __eq__(self, other):
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = None

    def __repr__(self):  # without it the id of a test would have an address
        return "<NA>"


def read(values):
    return ArrayData.of({"x_train": X, "y_train": Y, "site": values}).decoded({})


def clients_of(values, partitioner="column:site", **options):
    chosen = choose(Registry(), "partitioner", partitioner, options)

    def counting(**given):
        return chosen.call("count_clients", **given)

    return number_of_clients(read(values), None, 20, counting)


def objects(*values):
    found = np.empty(N, dtype=object)
    found[:] = [values[i % len(values)] for i in range(N)]
    return found


@pytest.mark.parametrize(
    ("values", "column"),
    [
        (objects("Köln", "Ulm"), ["Köln", "Ulm"]),
        (objects("Köln".encode(), b"Ulm"), ["Köln", "Ulm"]),
        (np.array(["a", "b"] * 6).astype("S"), ["a", "b"]),
        (objects(3, np.int64(5)), [3, 5]),
        (objects(True, False), [1, 0]),
        (objects(1, 2.5), [1.0, 2.5]),
        (objects(2**70, 1), [str(2**70), "1"]),
        (np.array([2**64 - 1, 7] * 6, np.uint64), [str(2**64 - 1), "7"]),
        (np.array([2**63 - 1, 7] * 6, np.uint64), [2**63 - 1, 7]),
        (
            objects(datetime.date(2024, 1, 2), datetime.date(2024, 1, 3)),
            ["2024-01-02", "2024-01-03"],
        ),
        (np.ma.masked_array([4, 9] * 6), [4, 9]),
    ],
    ids=lambda value: None,
)
def test_values_are_read_as_meant(values, column):
    assert read(values).columns["site"].tolist() == column * 6
    assert clients_of(values) == 2
    assert pf.datasets.Dataset(X, Y, N, [], columns={"site": values}).columns["site"].tolist() == (
        column * 6
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (Y[:N] + 1j, "complex128"),
        (np.zeros(N, "m8[s]"), "timedelta64"),
        (np.zeros(N, [("a", int)]), "'a'"),
        (objects("a", 1), "objects of the kind integer and text"),
        (objects(decimal.Decimal(1)), "objects of the kind Decimal"),
        (objects([1], (2, 3)), "objects of the kind list and tuple"),
        (np.array([b"\xc4", b"\xd6"] * 6), r"not UTF-8 (b'\xc4' in row 0)"),
    ],
)
def test_what_is_no_column_is_named(tmp_path, values, words):
    with pytest.raises(pf.UsageError) as caught:
        read(values)
    assert words in str(caught.value) and "'site'" in str(caught.value)
    if values.dtype != object:
        np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, site=values)
        with pytest.raises(pf.UsageError, match="column 'site'"):
            read_npz(tmp_path / "a.npz")


GAPS = [
    objects("a", None),
    objects("a", float("nan")),
    objects("a", NAType()),
    objects(1, None),
    objects(datetime.date(2024, 1, 2), np.datetime64("NaT", "D")),
    np.array(["2024-01-01", "NaT"] * 6, "M8[D]"),
    np.ma.masked_array(["a", "b"] * 6, mask=[False, True] * 6),
    np.ma.masked_array([3, 4] * 6, mask=[False, True] * 6),
    np.array([1.0, np.nan] * 6),
    *(np.array(["a", word] * 6) for word in ("", " ", "nan", "NaN", "None", "NaT", "<NA>", "NA")),
    *(np.array(["a", word] * 6) for word in ("null", "N/A", " nan ")),
]


@pytest.mark.parametrize("values", GAPS, ids=lambda values: repr(values[1]))
def test_gaps_are_not_clients(values):
    with pytest.raises(pf.UsageError, match="no client in 6 of 12 samples, the first in row 1"):
        clients_of(values)
    with pytest.raises(pf.UsageError, match="no domain in 6 of 12 samples, the first in row 1"):
        clients_of(values, "domain", column="site")


def test_words_with_a_gap_inside_are_names():
    assert clients_of(np.array(["Nantes", "none of them", "Na", "annan"] * 3)) == 4


@pytest.mark.parametrize(
    ("name", "words"), [("user", "columns: site"), ("sit", "columns: site; did you mean site?")]
)
def test_an_unknown_column(name, words):
    with pytest.raises(pf.UsageError, match=f"has no column '{name}'") as caught:
        clients_of(Y, f"column:{name}")
    assert caught.value.near == words


@pytest.mark.parametrize("name", [None, float("nan"), "nan", "None", ""])
def test_a_class_without_a_name(name):
    with pytest.raises(pf.UsageError, match=r"class 1 of 3 has no name|the class name None is"):
        ArrayData.of({"x_train": X, "y_train": Y, "classes": ["a", name, "c"]})


def test_a_file_with_a_class_without_a_name(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, classes=np.array(["a", "nan", "c"]))
    with pytest.raises(pf.UsageError, match=r"classes: class 1 of 3 has no name, but 'nan'"):
        read_npz(tmp_path / "a.npz")
