"""Tests of sections that other packages add to a report."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import protofl as pf
from protofl_workbench.reporting import further_sections

CALLS = []


def good(run):
    CALLS.append(run.config["method"])
    table = {"caption": "A <table>", "columns": ["name", "n"], "rows": [["x", "3"]], "numbers": [1]}
    picture = {"title": "Dot", "png": b"\x89PNG", "alternative": "a dot", "caption": "small"}
    return {"title": "Good", "parts": ["A paragraph.", table, picture]}


def nothing(run):
    return None


def broken(run):
    raise KeyError("gone")


def test_sections_are_on_the_page_and_a_broken_one_says_so(runs, monkeypatch):
    names = ("good", "nothing", "broken")
    points = [EntryPoint(n, f"{__name__}:{n}", further_sections.GROUP) for n in names]
    functions = {"good": good, "nothing": nothing, "broken": broken}
    monkeypatch.setattr(EntryPoint, "load", lambda self: functions[self.name])
    monkeypatch.setattr(further_sections, "_points", lambda: points)
    first, second = further_sections.further_sections(pf.load_run(runs / "proto"))
    assert CALLS == ["fedproto"]
    assert (first.title, second.title) == ("broken", "Good")
    assert "is missing" in first.parts[0] and "gone" in first.parts[0]
    paragraph, table, picture = second.parts
    assert paragraph == "A paragraph." and table.rows == [["x", "3"]]
    assert picture.drawing == "data:image/png;base64,iVBORw=="


def test_packages_without_sections_change_nothing(runs):
    assert further_sections.further_sections(pf.load_run(runs / "proto")) == []
