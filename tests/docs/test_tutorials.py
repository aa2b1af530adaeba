"""Tests that walk the ways of a person: what a tutorial types, in order."""

from __future__ import annotations

import csv
import re

import pytest
from doc_pages import FENCE, ROOT, commands_of
from installing import forget_new_plugins, write_dist_info
from typer.testing import CliRunner

from protofl_cli.app import app

pytestmark = pytest.mark.slow


@pytest.fixture
def walk(tmp_path, monkeypatch):
    """Return ``walk(page, section)``: it types what is below a heading, and returns screens."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")

    def run(page, section):
        text = (ROOT / f"docs/tutorials/{page}.md").read_text(encoding="utf-8")
        sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
        screens = []
        for language, code in FENCE.findall(sections[section]):
            if language == "python":
                exec(compile(code, section, "exec"), {"__name__": section})
                continue
            for words in commands_of([code]):
                result = CliRunner().invoke(app, words)
                assert result.exit_code == 0, f"protofl {' '.join(words)}\n{result.output}"
                screens.append(result.output)
        return screens

    return run


def test_hospitals_and_a_late_one(walk, tmp_path):
    walk("own-data", "Two tables")
    (plan,) = walk("own-data", "See what protofl understood")
    assert "Berlin" in plan and "balanced accuracy stands beside" in plan
    _, fedproto, compared, _, crossed = walk("own-data", "Train and compare")
    *_, table = fedproto.split("client   samples")
    assert {"Berlin", "Kiel", "Ulm"} <= {line.split()[0] for line in table.splitlines() if line}
    scores = [float(found) for found in re.findall(r"([\d.]+)% ±", table)]
    assert scores == sorted(scores) and len(scores) == 6
    assert "majority guess" in compared and "balanced accuracy (%)" in compared
    assert len(re.findall(r"\d+\.\d %", crossed)) == 36
    assert (tmp_path / "clients.pdf").stat().st_size
    joined, scored = walk("own-data", "Add a hospital")
    assert "Rostock" in joined
    with open(tmp_path / "rostock.csv", encoding="utf-8") as stream:
        patients = len([*csv.DictReader(stream)])
    assert len(re.findall(r"\b(?:home|ward|died)\b", scored)) >= patients


def test_clinics(walk, tmp_path):
    trained, _ = walk("own-data", "Images of clinics")
    assert "left out: 1 of 280 images" in trained and "Bern/ill/7.png" in trained
    assert {"Basel", "Bern", "Genf", "Zug"} <= {*re.findall(r"^(\w+) +\d+ +htcnn8", trained, re.M)}
    assert "Genf" in (tmp_path / "clinics.html").read_text(encoding="utf-8")


def test_an_own_method(walk, tmp_path, monkeypatch):
    result = CliRunner().invoke(app, ["new-plugin", "my-method"])
    assert result.exit_code == 0
    package = tmp_path / "protofl-my-method"
    write_dist_info(package, package / "src")  # for the page's pip install
    monkeypatch.syspath_prepend(str(package / "src"))
    forget_new_plugins()
    walk("first-plugin", "Check it")
    swept, *_, verified = walk("first-plugin", "From a sweep to a table of a paper")
    assert "lambda" in swept and "best" in swept
    table = (tmp_path / "table.tex").read_text(encoding="utf-8")
    assert r"\label{" in table and "my-method" in table and r"\textbf" in table
    assert "verified: repeated 1 of 2 runs" in verified
