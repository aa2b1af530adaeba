"""Tests of texts that other programs open: CSV in a spreadsheet, Markdown, comments of LaTeX."""

from __future__ import annotations

import csv
import io

import pytest

from protofl_workbench.comparing.figure_table import csv_text, markdown, tex_comments


def cells(text):
    return [*csv.reader(io.StringIO(text))]


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        '=HYPERLINK("http://x","y")',
        "+cmd|' /C calc'!A0",
        "-2+3",
        "-x",
        "@SUM(A1:A9)",
        "\t=1",
        " =1+1",
        "--1",
        "-1,2",
        "+",
        "-",
        "=",
        "-inf",
        "\n=2",
    ],
)
def test_no_cell_of_csv_is_a_formula(text):
    (head, row) = cells(csv_text([{text: text, "b": "x"}]))
    assert head == [f"'{text}", "b"] and row == [f"'{text}", "x"]


@pytest.mark.parametrize(
    "value",
    [-0.5, 3, -3, 1e-30, "-0.5", "+1.25", "-3e-05", "-.5", "12", "a-b", "a=b", "", "x@y", True],
)
def test_numbers_and_usual_texts_of_csv_stay_as_they_are(value):
    assert cells(csv_text([{"a": value, "b": "x"}]))[1] == [str(value), "x"]


def test_no_cell_of_csv_begins_a_line():
    assert cells(csv_text([{"a": "x\r=1", "b": "y\r\nz"}])) == [["a", "b"], ["x\n=1", "y\nz"]]


def test_a_missing_value_of_csv_is_empty():
    assert csv_text([{"a": None, "b": 1}]) == "a,b\n,1\n"


def test_texts_of_markdown_are_escaped_and_in_one_line():
    assert markdown("a|b") == r"a\|b"
    assert markdown("<img src=x>") == r"\<img src=x>"
    assert markdown("two\nlines\n\n# title") == "two lines # title"
    assert markdown("[text](http://x)") == r"[text]\(http://x)"
    assert markdown("plain text, 50 %") == "plain text, 50 %"


def test_a_note_cannot_end_its_comment():
    assert tex_comments(["one\n\\input{x}", "two"]) == ["% one \\input{x}", "% two"]
