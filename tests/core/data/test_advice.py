"""Tests of the advice that errors about arrays print: each line is run, and its result read."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pytest
import torch
from npz_files import read_npz

import protofl as pf
from protofl_plugins.datasets.arrays import ArrayData

rng = np.random.default_rng(0)
Y = np.arange(30) % 3
RAMP = np.linspace(0, 4095, 30 * 16 * 16).reshape(30, 16, 16)
FLAT = rng.normal(size=(30, 4))
NAMED = np.array(["cat", "dog", "eel"])[Y]


def failure(x, y=Y, **options):
    with pytest.raises(pf.UsageError) as error:
        pf.datasets.dataset_from_arrays([(x, y, "data.npz")], **options)
    return error.value


def advised(x, y=Y, **options):
    """Return the data set after the lines of an error have been run literally."""
    advice = failure(x, y, **options).do
    lines = re.search(r"\b((?:from|classes,|keep|x|y) .*)", advice)
    assert lines, advice
    statements = [part for part in lines[1].split("; ") if re.match(r"[a-z, ]+ = |from ", part)]
    names = {"x": x, "y": y, "numpy": np}
    exec("\n".join(statements), names)
    classes = names.get("classes")
    data = pf.datasets.dataset_from_arrays(
        [(names["x"], names["y"], "data.npz")], classes=classes, **options
    )
    return data


def test_16_bit_images_keep_their_order():
    data = advised(RAMP.astype("uint16"))
    values = data.x.flatten()
    assert (values.diff() >= 0).all() and (values.min(), values.max()) == (-1, 1)
    assert len(values.unique()) == len(np.unique(RAMP.astype("uint16")))
    assert data.note == ""


def test_images_of_signed_numbers_and_of_64_bits():
    for kind in ("int16", "int32", "int64", "uint32"):
        x = RAMP.astype(kind) - (1024 if kind[0] == "i" else 0)
        values = advised(x).x.flatten()
        assert (values.diff() >= 0).all() and (values.min(), values.max()) == (-1, 1)


def test_images_of_0_to_255_in_other_integers_become_uint8():
    x = rng.integers(0, 256, (30, 8, 8))
    data = advised(x)
    assert data.x.dtype == torch.uint8 and np.array_equal(data.x[:, 0].numpy(), x)


def test_masks_become_numbers():
    data = advised(RAMP > 2000)
    assert np.array_equal(data.x[:, 0].numpy(), np.where(RAMP > 2000, 1, -1)) and not data.note


def test_masks_as_uint8_are_noted_and_the_note_helps():
    x = (RAMP > 2000).astype("uint8")
    note = pf.datasets.dataset_from_arrays([(x, Y, "a")]).note
    assert "uint8 from 0 to 1" in note and "x * 255" in note
    assert pf.datasets.dataset_from_arrays([(x * 255, Y, "a")]).note == ""


def test_images_of_large_floats_are_noted_and_the_note_helps():
    x = RAMP.astype("float32") - 1024
    note = pf.datasets.dataset_from_arrays([(x, Y, "a")]).note
    names = {"x": x}
    exec(re.search(r"\((x = .*) brings", note)[1], names)
    assert (names["x"].min(), names["x"].max()) == (-1, 1)
    assert pf.datasets.dataset_from_arrays([(names["x"], Y, "a")]).note == ""


@pytest.mark.parametrize("channels", [2, 4, 7])
def test_channels_come_second_and_are_not_scrambled(channels):
    x = rng.integers(0, 256, (30, 32, 24, channels), dtype=np.uint8)
    data = advised(x)
    assert data.x.shape == (30, channels, 32, 24)
    assert np.array_equal(data.x.numpy(), x.transpose(0, 3, 1, 2))
    assert "reshape" not in failure(x).do


def test_labels_as_texts():
    data = advised(FLAT, NAMED)
    assert data.classes == ["cat", "dog", "eel"] and data.y.tolist() == Y.tolist()


def test_labels_of_two_parts_are_numbered_together():
    with pytest.raises(pf.UsageError, match="labels are") as error:
        pf.datasets.dataset_from_arrays([(FLAT, NAMED, "train"), (FLAT[:2], NAMED[:2], "test")])
    assert "of all parts together" in error.value.do


def test_labels_as_objects_and_booleans():
    assert advised(FLAT, NAMED.astype(object)).classes == ["cat", "dog", "eel"]
    assert advised(FLAT, Y > 0).classes == ["False", "True"]


def test_whole_and_other_floats_as_labels():
    assert advised(FLAT, Y + 1.0).classes == ["1.0", "2.0", "3.0"]
    data = advised(FLAT, Y + 0.5)
    assert data.classes == ["0.5", "1.5", "2.5"] and data.y.tolist() == Y.tolist()


def test_labels_that_are_missing():
    y = Y.astype(float)
    y[3] = np.nan
    assert "leave out samples without a label" in failure(FLAT, y).do
    keep = np.arange(30) != 3
    assert np.allclose(advised(FLAT[keep], y[keep]).x, FLAT[keep])
    negative = np.where(np.arange(30) % 7 == 0, -1, Y)
    assert "5 of 30 labels are negative" in failure(FLAT, negative).near
    assert advised(FLAT, negative).y.tolist() == negative[negative >= 0].tolist()


def test_labels_that_are_one_hot():
    assert advised(FLAT, np.eye(3)[Y]).y.tolist() == Y.tolist()
    assert "dataset.task=multilabel" in failure(FLAT, np.ones((30, 3), int)).do


def test_a_table_with_named_columns():
    x = np.zeros(30, [("age", "f4"), ("bmi", "i4")])
    x["age"], x["bmi"] = np.arange(30), np.arange(30) * 2
    assert "named columns (age, bmi)" in failure(x).what
    assert np.array_equal(advised(x).x.numpy(), np.stack([x["age"], x["bmi"]], 1))


def test_one_number_for_each_sample():
    error = failure(FLAT[:, 0])
    assert "the shape 30, one number for each sample" in error.what and "images" not in error.what
    assert np.allclose(advised(FLAT[:, 0]).x[:, 0], FLAT[:, 0])


def test_numbers_as_texts_and_objects():
    for kind in ("U20", "S20", object):
        assert np.allclose(advised(FLAT.astype(kind)).x, FLAT)
    words = FLAT.astype(object)
    words[3, 2] = "red"
    assert "pandas.get_dummies" in failure(words).do
    assert advised(FLAT > 0).x.unique().tolist() == [0, 1]


def test_axes_of_tables_and_series():
    x = rng.normal(size=(30, 2, 3))
    assert np.allclose(advised(x, kind="table").x, x.reshape(30, 6))
    wide = rng.normal(size=(30, 2, 3, 8))
    assert np.allclose(advised(wide, kind="series").x[:, 4], wide[:, 1, 1])


def test_series_of_more_channels_than_readings_are_noted():
    x = rng.normal(size=(30, 128, 9))
    note = pf.datasets.dataset_from_arrays([(x, Y, "a")], kind="series").note
    assert "128 channels and 9 readings" in note and "numpy.moveaxis(x, 2, 1)" in note
    turned = pf.datasets.dataset_from_arrays([(np.moveaxis(x, 2, 1), Y, "a")], kind="series")
    assert turned.note == "" and np.allclose(turned.x[0, 3], x[0, :, 3])


def test_tokens_as_floats():
    ids = rng.integers(0, 9, (30, 5)).astype(float)
    assert np.array_equal(advised(ids, kind="tokens").x.numpy(), ids)
    assert "kind=table" in failure(ids + 0.5, kind="tokens").do


def test_all_rows_that_are_not_finite_are_counted():
    x = FLAT.astype("float64")
    x[4, 1], x[9, 3], x[11, 1] = np.nan, np.inf, 1e300
    error = failure(x)
    assert error.near == "3 of 30 samples hold such numbers, in column 1, 3 (from 0)"
    assert len(advised(x).y) == 27


def test_masked_values():
    x = np.ma.masked_array(FLAT, np.zeros(FLAT.shape, bool))
    assert np.allclose(pf.datasets.dataset_from_arrays([(x, Y, "a")]).x, FLAT)
    x[5, 2] = np.ma.masked
    assert "1 values of samples are masked" in failure(x).what
    filled = advised(x).x
    assert len(filled) == 30 and np.allclose(filled[5, 2], float(x.mean()))
    with pytest.raises(pf.UsageError, match="masked"):
        ArrayData.of((x, Y)).decoded({})
    labels = np.ma.masked_array(Y, np.arange(30) == 2)
    assert len(advised(FLAT, labels).y) == 29


def test_equal_samples_are_noted():
    data = pf.datasets.dataset_from_arrays([(np.zeros((30, 8, 8), np.uint8), Y, "a")])
    assert data.note == "all 30 images are equal"


# --- names of classes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        ["cat", "dog", "eel"],
        ("cat", "dog", "eel"),
        np.array(["cat", "dog", "eel"]),
        np.array([b"cat", b"dog", b"eel"]),
        {2: "eel", 0: "cat", 1: "dog"},
        {np.int64(2): "eel", np.int64(0): "cat", np.int64(1): "dog"},
    ],
)
def test_names_in_the_order_of_their_labels(given):
    data = ArrayData.of({"x_train": FLAT, "y_train": Y, "classes": given}).decoded({})
    assert data.classes == ["cat", "dog", "eel"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cat": 0, "dog": 1, "eel": 2}, "keys cat, dog, eel"),
        ({1: "cat", 2: "dog", 3: "eel"}, "keys 1, 2, 3"),
        ({"0": "cat", "1": "dog", "2": "eel"}, "keys 0, 1, 2"),
        ({True: "dog", False: "cat"}, "keys"),
        ({"cat", "dog", "eel"}, "set, which has no order"),
        ({"cat": 0, "dog": 1}.keys(), "dict_keys"),
        ("cat", "classes is str"),
        (b"cat", "classes is bytes"),
        (iter(["cat"]), "iterator"),
        (["cat", "cat", "eel"], "classes 0 and 1 have the same name 'cat'"),
        (["cat", None, "eel"], "NoneType"),
        (np.array([b"K\xf6ln", b"Ulm", b"Bern"]), "not UTF-8"),
        (np.array([["cat"], ["dog"]]), r"shape \(2, 1\)"),
    ],
)
def test_names_without_an_order_or_twice_are_refused(given, words):
    with pytest.raises(pf.UsageError, match=words) as error:
        ArrayData.of({"x_train": FLAT, "y_train": Y, "classes": given})
    assert error.value.do


def test_a_mapping_that_is_turned_round_and_bytes_that_are_decoded_as_advised():
    names = {"classes": {"dog": 1, "cat": 0, "eel": 2}, "numpy": np}
    with pytest.raises(pf.UsageError) as error:
        ArrayData.of({"x_train": FLAT, "y_train": Y, "classes": names["classes"]})
    exec(error.value.do.partition(": ")[2], names)
    found = ArrayData.of({"x_train": FLAT, "y_train": Y, "classes": names["classes"]})
    assert found.classes == ["cat", "dog", "eel"]
    names = {"classes": np.array([b"K\xf6ln", b"Ulm", b"Bern"]), "numpy": np}
    with pytest.raises(pf.UsageError) as error:
        ArrayData.of({"x_train": FLAT, "y_train": Y, "classes": names["classes"]})
    exec(error.value.do.partition(": ")[2], names)
    found = ArrayData.of({"x_train": FLAT, "y_train": Y, "classes": names["classes"]})
    assert found.classes == ["Köln", "Ulm", "Bern"]


def test_bytes_that_are_not_utf_8_merge_no_clients(tmp_path):
    site = np.array([b"\xc4", b"\xd6", b"\xdc"])[Y]
    np.savez(tmp_path / "a.npz", x_train=FLAT, y_train=Y, site=site)
    with pytest.raises(pf.UsageError, match="not UTF-8"):
        read_npz(tmp_path / "a.npz")


def test_a_dataset_with_names_twice_does_not_fit_together():
    data = pf.datasets.dataset_from_arrays([(FLAT, Y, "a")])
    data.classes = ["cat", "cat", "eel"]
    assert "same name 'cat'" in data.faults()[0]


# --- files that are something else --------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words", "do"),
    [
        (b"a,b,LABEL\n1,2,x\n3,4,y\n", "CSV, with commas", "--dataset csv:"),
        ("größe;label\n1;x\n3;y\n".encode("latin-1"), "CSV, with semicolons", "--dataset csv:"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS", "git lfs pull"),
        (b"../.git/annex/objects/aa/bb/SHA256E-s1--0.npz\n", "git-annex", "git annex get"),
        (b"\n<!doctype HTML>\n<html>", "web page", "browser"),
        (gzip.compress(b"abc", mtime=0), "gzip", "gunzip"),
        (b'{"x_train": [1]}', "JSON", "savez"),
        (b"\x80\x04\x95\x05\x00\x00\x00", "pickled objects", "plain arrays"),
        (b"\x89HDF\r\n\x1a\n", "HDF5", "savez"),
        (b"", "empty", "again"),
        (b"just words\n", "a text", ".npz"),
        (b"\x00\x01\x02\x03\xff\xfe", "no other known kind", "savez"),
    ],
)
def test_what_is_no_npz_file_is_named(tmp_path, content, words, do):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(pf.UsageError) as error:
        read_npz(path)
    assert str(path) in error.value.what and words in error.value.what and do in error.value.do
    assert ("pickled" in error.value.what) == (content[:1] == b"\x80")


def test_pickled_objects_are_named_with_their_array(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=FLAT, y_train=NAMED.astype(object))
    with pytest.raises(pf.UsageError, match="the array y_train holds pickled") as error:
        read_npz(tmp_path / "a.npz")
    assert "y_train.astype(str)" in error.value.do


@pytest.mark.parametrize(
    ("name", "table"),
    [("my.csv", "csv"), ("my.TSV", "csv"), ("a/b.parquet", "parquet")],
)
def test_a_table_without_its_data_set_is_told_the_name(name, table):
    with pytest.raises(pf.UsageError) as error:
        pf.run("local", models="mlp", dataset=name, progress=False)
    assert f"write {table}:{name} --set dataset.label=COLUMN" in error.value.do


@pytest.mark.parametrize("name", ["my.xlsx", "h5:x"])
def test_a_file_that_no_data_set_reads_is_not_taken_for_another_data_set(name):
    with pytest.raises(pf.UsageError, match="files are not read") as error:
        pf.run("local", models="mlp", dataset=name, progress=False)
    assert "npz:FILE" in error.value.near and "numpy.savez_compressed" in error.value.do
    assert "did you mean" not in str(error.value)


def test_missing_values_among_objects_are_counted_and_left_out():
    pandas = pytest.importorskip("pandas")
    for gap in (None, pandas.NA, pandas.NaT):
        x = FLAT.astype(object)
        x[3, 1] = x[3, 2] = x[5, 0] = gap
        advice = failure(x).do
        assert "3 values are missing" in advice and "get_dummies" not in advice
        names = {"x": x, "y": Y, "pandas": pandas}
        exec(advice.partition("such samples: ")[2], names)
        data = pf.datasets.dataset_from_arrays([(names["x"], names["y"], "a")])
        assert data.x.shape == (28, 4)


def test_sparse_matrices_are_refused_with_the_conversion():
    sparse = pytest.importorskip("scipy.sparse")
    for make in (sparse.csr_matrix, sparse.csr_array, sparse.coo_matrix):
        for given in ((make(FLAT), Y), {"x_train": make(FLAT), "y_train": Y}):
            with pytest.raises(pf.UsageError, match="x_train is a sparse matrix") as error:
                ArrayData.of(given)
            assert "x.toarray()" in error.value.do and "960 bytes" in error.value.near


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_tables_of_libraries_are_refused_with_a_way(library):
    module = pytest.importorskip(library)
    make = getattr(module, "DataFrame", None) or module.table
    with pytest.raises(pf.UsageError, match="is a table with named columns") as error:
        ArrayData.of(make({"age": FLAT[:, 0], "label": Y}))
    assert "dataset='parquet:FILE'" in error.value.do


@pytest.mark.parametrize("mode", ["P", "HSV", "YCbCr", "CMYK"])
def test_pictures_of_other_modes_become_colours(mode):
    from PIL import Image

    red = Image.new("RGB", (8, 8), (250, 10, 10)).convert(mode)
    data = ArrayData.of(Pictures([red] * 4)).decoded({})
    assert data.x.shape == (4, 3, 8, 8)
    found = data.x.float().mean((0, 2, 3)).tolist()
    assert found == pytest.approx([250, 10, 10], abs=16)


class Pictures(torch.utils.data.Dataset):
    def __init__(self, pictures):
        self.pictures = pictures

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, row):
        return self.pictures[row], row % 2
