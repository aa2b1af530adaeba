"""Tests of figures and results of reproductions against numbers computed by hand."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from protofl.records.row import Row
from protofl_workbench.reproductions import reproduction_pictures
from protofl_workbench.reproductions.reproduction import (
    ReadFigure,
    Reproduction,
    Scale,
    TableLine,
    published_figure,
)
from protofl_workbench.reproductions.reproduction_figures import figure_of
from protofl_workbench.reproductions.reproduction_pictures import draw
from protofl_workbench.reproductions.reproduction_result import (
    CellResult,
    ReproductionResult,
    conditions_of,
    facts_of,
)
from protofl_workbench.reproductions.reproduction_texts import as_text


def row(trial, number, accuracy, server=None, **more):
    return Row(
        {
            "trial": trial,
            "round": number,
            "test_accuracy": accuracy,
            "client_test_accuracy": accuracy,
            "upload_floats": 1000,
            "download_floats": 500 * number,
            "upload_bytes": 4000,
            "download_bytes": 2000 * number,
            "extra": {} if server is None else {"server_test_accuracy": server},
            "seconds": {"total": 2.0},
            **more,
        }
    )


ROWS = [
    row(0, 0, 0.25, 0.5),
    row(0, 1, 0.75, 0.25),
    row(0, 2, 0.5, measures={"flops": {"training": 8e9}}),
    row(1, 0, 0.125),
    row(1, 1, 0.25),
    row(1, 2, 0.375, 0.125),
]
ROWS[0]["extra"]["by_class"] = [0.25, 0.5]


@pytest.mark.parametrize(
    ("figure", "values"),
    [
        (ReadFigure(read="best"), [75, 37.5]),
        (ReadFigure(read="final"), [50, 37.5]),
        (ReadFigure(read="best", error=True), [25, 62.5]),
        (ReadFigure(read="best-server"), [50, 12.5]),
        (ReadFigure(read="final-server"), [25, 12.5]),
        (ReadFigure(read="floats"), [0.0015, 0.0015]),
        (ReadFigure(read="floats", round=3, unit="K"), [2, 2]),
        (ReadFigure(read="bytes-up"), [0.004, 0.004]),
        (ReadFigure(read="rounds-to", target=0.3), [2, 3]),
        (ReadFigure(read="rounds-to", target=0.5), [2, None]),
        (ReadFigure(read="floats-to", target=0.375, unit=""), [2500, 4500]),
        (ReadFigure(read="seconds-to", target=0.25), [2, 4]),
        (ReadFigure(read="seconds-to", target=0.5, of="extra.server_test_accuracy"), [2, None]),
        (ReadFigure(read="value", of="measures.flops.training", unit="B"), [8, None]),
        (ReadFigure(read="value", of="extra.by_class.1", round=1), [0.5, None]),
        (ReadFigure(read="value", of="extra.by_class.2", round=1), [None, None]),
        (ReadFigure(read="value", of="test_accuracy", round=2, unit="%"), [75, 25]),
    ],
)
def test_figures(figure, values):
    assert figure_of(ROWS, figure) == pytest.approx(values)


def test_only_the_rounds_asked_for_count():
    assert figure_of(ROWS, ReadFigure(read="best"), rounds=1) == [25, 12.5]
    assert figure_of(reversed(ROWS), ReadFigure(read="final"), rounds=2) == [75, 25]


@pytest.mark.parametrize(
    ("text", "mean", "std", "decimals"),
    [("86.82±0.26", 86.82, 0.26, 2), ("2.05M", 2.05, None, 2), ("99.81B†", 99.81, None, 2)],
)
def test_figures_as_printed(text, mean, std, decimals):
    found = published_figure(text)
    assert (found.mean, found.std, found.decimals) == (mean, std, decimals)


@pytest.mark.parametrize("text", ["", "n/a", "12±", "±3", "1.2.3", "12 %x"])
def test_what_is_no_figure(text):
    assert published_figure(text) is None


# --- results --------------------------------------------------------------------------------------


@pytest.fixture
def result():
    rows = {"a": TableLine("a", "A_1"), "b": TableLine("b", "B", note="of our own")}
    columns = {"x": TableLine("x", "10 %", "Group"), "y": TableLine("y", "τ = 1", "Group")}
    scales = {"paper": Scale("paper")}
    reproduction = Reproduction("p/t", "A table", rows, columns, "Paper", "Table 1", scales=scales)
    entries = {
        ("a", "x"): CellResult("a", "x", "done", values=(50.0, 52.0), text="50.5±0.2"),
        ("a", "y"): CellResult("a", "y", "empty", text="–"),
        ("b", "x"): CellResult("b", "x", "done", values=(49.96,), text="50.0"),
        ("b", "y"): CellResult("b", "y", "missing", text="40", why="cifar10 is not here"),
    }
    options = [{"partition": "dirichlet", "trials": 2, "rounds": 60, "hold_split": True}]
    facts = facts_of(reproduction, "paper", "", options)
    return ReproductionResult(reproduction, ("a", "b"), ("x", "y"), entries, "paper", facts)


def test_scale_paper_is_of_reproductions_with_published_figures(result):
    published = replace(result.reproduction, published={("a", "x"): "1.0"})
    assert facts_of(published, "paper", "", [])[0] == "scale paper"
    assert "scale paper" not in facts_of(result.reproduction, "paper", "", [])


def test_a_title_says_all_that_belongs_to_it(result):
    assert result.title == (
        "Paper, Table 1: A table (protofl's splits of seed 0, one for all trials; "
        "2 trials; 60 rounds; best round on test samples)"
    )
    assert result.notes == [
        "on average 0.23 points above the published figures (2 cells)",
        "B: of our own",
        "cifar10 is not here (B, Group, τ = 1)",
    ]


def test_conditions_that_are_not_the_published_ones(result):
    theirs = [{"dataset": "cifar10", "rounds": n, "trials": 3} for n in (60, 100)]
    ours = [{"dataset": "npz:/a/b/few.npz", "rounds": 2, "trials": 1}] * 2
    text = conditions_of(ours, theirs)
    assert text == (
        "not the published conditions: data npz:few.npz in place of cifar10, "
        "2 rounds in place of 60 to 100, 1 trial in place of 3"
    )
    assert conditions_of(theirs, theirs) == ""
    part = [{**own, "subset": 0.1} for own in theirs]
    text = conditions_of(part, theirs)
    assert text.endswith("data cifar10 (subset 0.1) in place of cifar10")
    unlike = replace(result, conditions=text)
    for form in ("md", "csv", "json"):
        assert "(subset 0.1) in place of" in as_text(unlike, form)
    ((_, figure),) = reproduction_pictures.figures_of(unlike)
    assert "(subset 0.1) in place of" in figure.get_supxlabel().replace("\n", " ")


def test_the_mean_difference_has_a_sign(result):
    low = replace(result["a", "x"], values=(20.0,))
    entries = {**result.entries, ("a", "x"): low}
    assert replace(result, entries=entries).distance == "15.27 points below"
    flops = ReadFigure(read="flops")
    other = replace(result["b", "x"], figure=flops)
    assert replace(result, entries={**entries, ("b", "x"): other}).distance == ""


def test_ours_beside_the_published(result):
    entry = result["a", "x"]
    assert (entry.mean, entry.std, entry.difference) == (51, 1, pytest.approx(0.5))
    assert (entry.ours, entry.apart) == ("51.0±1.0", "+0.5")
    assert result["b", "x"].apart == "0.0", "not a zero with a sign"
    assert result["a", "y"].ours == "–"


def test_a_mark_stands_after_our_figure():
    figure = ReadFigure(mark="seed chosen to fit")
    assert CellResult("a", "x", "done", figure, (80.0,)).ours == "80.00 (seed chosen to fit)"
    short = CellResult("a", "x", "broken off", figure, (80.0,), partial="2 of 3 rounds, diverged")
    assert short.ours == "80.00 (2 of 3 rounds, diverged, seed chosen to fit)"
    assert CellResult("a", "x", "not run", figure).ours == ""


def test_derived_figures_are_not_called_published(result):
    derived = replace(result, reproduction=replace(result.reproduction, derived=True))
    assert "ours / derived / difference in points" in as_text(derived, "md")
    assert "ours / published / difference in points" in as_text(result, "md")


def test_markdown(result):
    lines = as_text(result, "md").splitlines()
    assert lines[4] == "|  | Group 10 % | Group τ = 1 |"
    assert lines[6:8] == [
        "| A\\_1 | 51.0±1.0 / 50.5±0.2 / +0.5 | – |",
        "| B | 50.0 / 50.0 / 0.0 | no data / 40 |",
    ]


def test_comma_separated_and_json_hold_the_numbers(result):
    found = [*csv.DictReader(io.StringIO(as_text(result, "csv")))]
    assert [(r["row"], r["column"], r["state"]) for r in found] == [
        ("a", "x", "done"), ("a", "y", "empty"), ("b", "x", "done"), ("b", "y", "missing"),
    ]  # fmt: skip
    first = found[0]
    assert (float(first["ours"]), float(first["ours_std"]), float(first["difference"])) == (
        51,
        1,
        0.5,
    )
    cells = json.loads(as_text(result, "json"))["cells"]
    assert cells[2]["published"] == 50.0 and cells[2]["trials"] == 1


def test_what_a_cell_is_read_from_may_name_its_column():
    rows = {"a": TableLine("a", "A", figure=ReadFigure(read="value", of="extra.by_class.{column}"))}
    reproduction = Reproduction(
        "s", "t", rows, {"1": TableLine("1", "class 1"), "x.y": TableLine("x.y", "")}
    )
    assert reproduction.figure_of("a", "1").of == "extra.by_class.1"
    assert reproduction.figure_of("a", "x.y").of == "extra.by_class.x.y"


def test_a_table_is_drawn_as_differences_to_the_published(result, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        reproduction_pictures, "bar_chart", lambda series, title, **_: drawn | series
    )
    ((name, found),) = reproduction_pictures.figures_of(result)
    monkeypatch.undo()
    ours, theirs = 1.0, 0.2  # standard deviations of cell (a, x): their squares add up
    spread = pytest.approx((ours**2 + theirs**2) ** 0.5)
    assert name == ""
    assert found == {
        "Group, 10 % (points)": {"A_1": (0.5, spread), "B": (pytest.approx(-0.04), 0.0)}
    }
    (file,) = draw(result, tmp_path / "table.svg")
    assert "ours − published" in file.read_text(encoding="utf-8")


def test_bars_of_columns_that_are_called_alike_stay_apart(tmp_path):
    """FedPKD has the same α for two data sets, which must be two bars."""
    columns = {
        c: TableLine(c, "α = 0.1", group=g) for c, g in (("x", "CIFAR-10"), ("y", "CIFAR-100"))
    }
    reproduction = Reproduction("s", "t", {"a": TableLine("a", "A")}, columns, kind="bars")
    entries = {
        ("a", c): CellResult("a", c, "done", values=(v,)) for c, v in (("x", 50.0), ("y", 25.0))
    }
    found = ReproductionResult(reproduction, ("a",), ("x", "y"), entries, "paper", ())
    (file,) = draw(found, tmp_path / "bars.svg")
    drawn = file.read_text(encoding="utf-8")
    assert "CIFAR-10, α = 0.1" in drawn and "CIFAR-100, α = 0.1" in drawn
