"""Tests of class texts: names, files of descriptions, and refused files."""

from __future__ import annotations

import pytest

import protofl as pf
from protofl_plugins.shared.class_descriptions import (
    check_descriptions,
    class_texts,
    read_descriptions,
)


def test_texts_of_names_and_of_descriptions():
    assert class_texts(["sea_lion", "cat"], None) == (
        ["A photo of a sea lion.", "A photo of a cat."],
        [0, 1],
    )
    found = class_texts(["cat", "dog"], {"dog": ["barks", "runs"], "cat": ["{class}"]})
    texts = ["A photo of a cat: {class}", "A photo of a dog: barks", "A photo of a dog: runs"]
    assert found == (texts, [0, 1, 1])


def test_a_text_file(tmp_path):
    file = tmp_path / "d.txt"
    file.write_text("# ours\ncat: small: and soft\n\ndog:barks\n cat : quick\n", encoding="utf-8")
    expected = {"cat": ["small: and soft", "quick"], "dog": ["barks"]}
    assert read_descriptions(file) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cat: soft\ndog barks", "line 2: expected CLASS: description, got 'dog barks'"),
        ("cat:", "line 1: expected CLASS: description"),
    ],
)
def test_a_bad_file_is_named(tmp_path, text, words):
    (tmp_path / "d.txt").write_text(text)
    with pytest.raises(pf.UsageError) as caught:
        read_descriptions(tmp_path / "d.txt")
    assert words in caught.value.what and "d.txt" in caught.value.what


def test_a_class_without_description_is_named():
    check_descriptions({"cat": ["a"], "dog": ["b"], "cow": ["c"]}, ["cat", "dog"], "d.txt")
    with pytest.raises(pf.UsageError) as caught:
        check_descriptions({"cat": ["a"], "dogs": ["b"]}, ["cat", "dog"], "d.txt")
    assert caught.value.what == "d.txt has no description of the class 'dog'"
    assert caught.value.near == "did you mean 'dogs'?"
