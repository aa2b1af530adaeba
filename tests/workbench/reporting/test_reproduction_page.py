"""Tests of a reproduction's page: our results beside the published ones, and our runs."""

from __future__ import annotations

import re

import pytest
from reported_pages import facts_of, read, tables_of
from runtime_toys import install

import protofl as pf

REPRODUCTION = """
title = "Accuracy (%) of toys"
paper = "Nobody 2026"
place = "Table 0"
figure = "final"

[options]
models = "toy"
dataset = "tiny"
partition = "iid"
clients = 4
batch-size = 6
rounds = 1
trials = 2

[rows]
fedproto = {}
local = {}

[columns]
low = {}
high = { lr = 0.2 }

[published]
fedproto = "61.3±0.2 70.0"
local = "55.5 –"
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Run one cell of the reproduction, and return the reproduction's result."""
    folder = tmp_path_factory.mktemp("reproduction")
    (folder / "toys.toml").write_text(REPRODUCTION)
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        reproduction = folder / "toys.toml"
        where = {"runs": folder / "runs", "data_dir": folder / "data"}
        where |= {"device": "cpu", "backend": "local"}
        pf.reproduce(str(reproduction), only=["fedproto"], columns=["low"], at_once=0, **where)
        yield pf.reproduce(str(reproduction), start=False, **where)


def test_ours_stand_beside_the_published(result, undrawn):
    page = read(pf.report(result))
    tables = tables_of(page)
    caption = next(c for c in tables if c.startswith("Our "))
    heads, rows = tables[caption]
    cell = result["fedproto", "low"]
    assert len(heads) == 3 and [row[0] for row in rows] == ["fedproto", "local"]
    assert rows[0][1].split() == [cell.ours, "61.3±0.2", cell.apart]
    assert rows[0][2].split() == ["·", "70.0"] and rows[1][1].split() == ["·", "55.5"]
    assert "1 of 3 cells" in page.all("header")[0].words
    assert facts_of(page)["Difference to the published"] == (
        f"{abs(cell.difference):.2f} points {'below' if cell.difference < 0 else 'above'}"
    )
    # The cell's runs are below the table.
    assert page.all("h1")[0].words == "Nobody 2026, Table 0: Accuracy (%) of toys"
    names = [e.all("h3")[0].words for e in page.all("details") if e.has_class("inner")]
    assert names and all(re.match("fedproto", name) for name in names)
