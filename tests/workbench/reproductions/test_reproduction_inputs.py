"""Tests of user input for a whole reproduction: files that it names, and options of plugins."""

from __future__ import annotations

import pytest

from protofl import UsageError
from protofl_workbench.reproductions.account import traffic
from protofl_workbench.reproductions.cells import Change, cells_of
from protofl_workbench.reproductions.finding import find_reproduction, reproduction_of_file
from protofl_workbench.reproductions.reproduction_execution import run_reproduction
from protofl_workbench.reproductions.reproduction_plan import plan_reproduction

TABLE = """
title = "Generators"
paper = "A paper"

[files]
mine = "a generator of mine, of my page"

[options]
models = "cnn4"
dataset = "digits"

[columns]
xl = { generator = "stylegan-xl", set = { generator.weights = "{mine}" } }
own = { generator = "tiny-style" }

[rows]
fedktl = {}
fedproto = { set = { lambda = 1 } }

[scales.smoke]
generator = { stylegan-xl = "tiny-style" }
"""


@pytest.fixture
def reproduction(tmp_path):
    path = tmp_path / "table.toml"
    path.write_text(TABLE, encoding="utf-8")
    return reproduction_of_file(path)


def by_place(reproduction, **change):
    return {(c.row, c.column): c for c in cells_of(reproduction, Change(**change))}


def test_a_file_stands_where_the_reproduction_names_it(reproduction):
    cell = by_place(reproduction)["fedktl", "xl"]
    assert cell.lacks == {"mine": "a generator of mine, of my page"}
    cell = by_place(reproduction, files={"mine": "a/b.pkl"})["fedktl", "xl"]
    assert not cell.lacks and cell.options["set"] == {"generator.weights": "a/b.pkl"}
    assert not by_place(reproduction)["fedktl", "own"].lacks


def test_a_scale_s_generator_takes_the_place_of_another_with_its_options(reproduction):
    cell = by_place(reproduction, scale="smoke")["fedktl", "xl"]
    assert cell.options["generator"] == "tiny-style"
    assert not cell.lacks and "set" not in cell.options


def test_options_of_plugins_concern_the_cells_that_have_them(reproduction):
    said = {"generator.repo": "code", "generator.batch": 4, "fedktl.mu": 7, "lambda": 3}
    found = by_place(reproduction, options={"set": said}, only=("fedktl", "fedproto"))
    assert found["fedktl", "xl"].said == said
    assert found["fedktl", "own"].said == {"generator.batch": 4, "fedktl.mu": 7, "lambda": 3}
    assert found["fedproto", "own"].said == {"lambda": 3}, "it has no generator"
    assert found["fedktl", "xl"].request().said["generator"] == {"repo": "code", "batch": 4}


def test_an_option_that_no_cell_has_is_told(reproduction):
    cells = by_place(reproduction, options={"set": {"fedsa.alpha": 1}})
    assert all("fedsa.alpha" in cell.options["set"] for cell in cells.values())


def test_mistakes_with_files(reproduction, tmp_path):
    with pytest.raises(UsageError, match="unknown file of table in --file 'mien'") as found:
        by_place(reproduction, files={"mien": "x"})
    assert "'mine'" in found.value.near
    path = tmp_path / "other.toml"
    path.write_text(TABLE.replace("{mine}", "{mien}"), encoding="utf-8")
    with pytest.raises(UsageError, match=r"other\.toml, columns\.xl: unknown file of ") as found:
        reproduction_of_file(path)
    assert "'mien'" in found.value.what


def test_files_that_lack_are_told_at_once_with_the_words_to_type():
    reproduction = find_reproduction("fedktl/table-6")
    change = Change(files={"bench": "b.pkl"}, options={"set": {"generator.repo": "code"}})
    with pytest.raises(
        UsageError, match="3 files are needed and not given: afhqv2, ffhq-u, w"
    ) as e:
        run_reproduction(reproduction, change)
    assert "stylegan3-t-afhqv2-512x512.pkl" in e.value.near
    words = "--file afhqv2=PATH --file ffhq-u=PATH --file wikiart=PATH"
    assert f"add {words} --set generator.trust_pickle=true; or" in e.value.do
    assert "bench=" not in e.value.do and "--skip-missing" in e.value.do


def test_files_that_lack_leave_cells_empty_where_the_user_says_so():
    result = run_reproduction(
        find_reproduction("fedktl/table-6"), Change(), start=False, skip_missing=True
    )
    assert {entry.state for entry in result.entries.values()} == {"missing"}


def test_a_plan_needs_no_files(reproduction, tmp_path):
    change = Change(only=("fedktl",), columns=("xl",), rounds=3)
    planned = plan_reproduction(reproduction, change, tmp_path / "runs")
    assert planned.files == {"mine": "a generator of mine, of my page"}
    (run,) = planned.runs
    assert run.missing == "without mine" and run.steps > 0 and run.seconds


@pytest.mark.slow
def test_an_account_knows_the_sizes_of_generators_that_are_not_here(tmp_path):
    """FedKTL's traffic of Table 5: Σ|C_i| = 898 classes, ETFs of K = C = 100, images of 3072."""
    given = {"data_dir": tmp_path, "models": "cnn4", "set": {"fedktl.E_S": 1}}
    change = Change(only=("fedktl",), columns=("upload",), options=given)
    (cell,) = cells_of(find_reproduction("fedktl/table-5"), change)
    line = traffic(cell.request())[1]
    assert line["upload_floats"] == 898 * 100
    assert line["download_floats"] == 20 * 100 * (3072 + 512)


@pytest.mark.parametrize("table", ["table-1", "table-2", "table-3", "table-4"])
@pytest.mark.parametrize("scale", ["paper", "smoke"])
def test_papers_share_the_runs_of_the_methods_that_both_have(table, scale):
    ours, theirs = (find_reproduction(f"{paper}/{table}") for paper in ("fedktl", "fedtgp"))
    names = {"clients-50": "50-clients", "clients-100": "100-clients"}
    known = {(c.row, c.column): c for c in cells_of(theirs, Change(scale=scale)) if c.options}
    shared = 0
    for cell in cells_of(ours, Change(scale=scale)):
        other = known.get((cell.row, names.get(cell.column, cell.column)))
        if other is not None:
            assert cell.key == other.key, cell.name
            assert (
                ours.published[cell.row, cell.column] == theirs.published[other.row, other.column]
            )
            shared += 1
    assert shared == {"table-1": 48, "table-2": 36, "table-3": 18, "table-4": 18}[table]
