"""Tests of the page of a benchmark: generated from records, and true for what they have."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from protofl_workbench.reproductions.benchmark.benchmark_execution import BenchmarkProgress
from protofl_workbench.reproductions.benchmark.benchmark_page import page_of, statements, write_page
from protofl_workbench.reproductions.benchmark.benchmark_pictures import pictures
from protofl_workbench.reproductions.benchmark.benchmark_records import read_records
from protofl_workbench.reproductions.benchmark.standings import settings_of
from protofl_workbench.reproductions.finding import reproduction_of_file


def run(seed, clients):
    return {
        "seed": seed, "rounds": 9, "chosen_round": 5, "split": str(seed),
        "client_accuracy": float(np.mean(clients)),
        "clients": {str(n): float(a) for n, a in enumerate(clients)},
        "upload_bytes": 2_000_000, "download_bytes": 4_000_000,
    }  # fmt: skip


def record(method, setting, shift, **others):
    draws, noise = np.random.default_rng(0), np.random.default_rng(round(1000 * abs(shift)))
    return {
        "method": method, "setting": setting, "scale": "paper", "definition": "d",
        "options": {"dataset": "npz:few.npz"}, "lr": 0.1, "batches": 60,
        "search": [{"lr": 0.1, "weight": None, "validation_accuracy": [0.5, 0.6, None]}],
        "runs": [
            run(seed, draws.uniform(0.2, 0.7, 10) + shift + noise.normal(0, 0.002) * (shift != 0))
            for seed in range(4)
        ],
        "commit": "abc1234567", "machine": {"processor": "A chip"},
        "versions": {"torch": "2.6", "python": "3.11"},
        "plugin": {"distribution": "protofl", "version": "0.1.0", "code": "c"}, **others,
    }  # fmt: skip


@pytest.fixture
def small(benchmark_file):
    """Return the benchmark with a further row and a second setting in one of its groups."""
    text = benchmark_file.read_text(encoding="utf-8") + (
        '\n[columns.more]\nlabel = "n = 30"\ngroup = "equal nets"\nmodels = "cnn4"\n'
        '\n[rows]\nfedproto-head = { method = "fedproto", use = { inference = "local" }, '
        'note = "by its head" }\n'
    )
    benchmark_file.write_text(text, encoding="utf-8")
    return reproduction_of_file(benchmark_file)


@pytest.fixture
def records():
    found = [
        record(method, setting, shift * sign)
        for setting, sign in (("equal", 1), ("more", 1), ("unequal", -1))
        for method, shift in (("local", 0.0), ("fedproto", 0.1), ("fedproto-head", 0.15),
                              ("fedtgp", 0.2))
    ]  # fmt: skip
    refused = {
        "method": "fedavg", "setting": "unequal", "definition": "d", "scale": "paper",
        "options": {"dataset": "npz:few.npz"}, "refused": "it averages | whole models",
    }  # fmt: skip
    return [*found, record("centralised", "equal", 0.25), refused]


@pytest.fixture
def progress(small, records):
    keyed = {(r["method"], r["setting"]): r for r in records}
    return BenchmarkProgress(small, "paper", small.tuning, (), (), keyed)


def test_the_page_and_its_pictures_are_made_again_from_its_folder_alone(progress, small, tmp_path):
    page = tmp_path / "docs" / "benchmark.md"
    page.parent.mkdir()
    write_page(progress, page)
    text = page.read_text(encoding="utf-8")
    pictures = {p.name: p.read_bytes() for p in page.with_suffix("").glob("*.png")}
    assert {*pictures} == {"gaps.png", "traffic.png"}
    assert all(f"](benchmark/{name})" in text for name in pictures)
    write_page(BenchmarkProgress(small, "paper", small.tuning, (), ()), page)
    assert page.read_text(encoding="utf-8") == text
    assert text == page_of(small, read_records(page.with_suffix("")), "benchmark")
    again = {p.name: p.read_bytes() for p in page.with_suffix("").glob("*.png")}
    assert again == pictures


def test_settings_without_numbers_have_a_picture_of_all_methods(progress, small, tmp_path):
    columns = {
        name: dataclasses.replace(column, label=f"samples {name}")
        for name, column in small.columns.items()
    }
    words = dataclasses.replace(small, columns=columns)
    figures = pictures(words, settings_of(columns, progress.records.values()))
    (axes,) = figures["gaps"].axes
    assert [*figures] == ["gaps"]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["fedproto", "fedproto-head", "fedtgp"]  # not local, not the bound
    assert len(axes.containers) == 3
    drawn = axes.containers[0].lines[0]
    assert [*drawn.get_xdata()] == pytest.approx([10, 15, 20], abs=0.5)


def test_a_further_method_joins_the_records_that_are_there(progress, small, tmp_path):
    page = tmp_path / "benchmark.md"
    write_page(progress, page)
    mine = {("fedgh", "equal"): record("fedgh", "equal", 0.15)}
    write_page(BenchmarkProgress(small, "paper", small.tuning, (), (), mine), page)
    text = page.read_text(encoding="utf-8")
    assert "| fedgh |" in text and "| fedtgp |" in text


def test_the_page_says_what_ran_where(small, records):
    text = page_of(small, records, "benchmark")
    assert "13 pairs of method and setting, 39 tuning runs and 52 final runs" in text
    assert "abc1234567" in text and "A chip, torch 2.6, Python 3.11" in text
    assert "`fedavg`: it averages \\| whole models" in text
    assert "Rows that have not run yet" not in text
    tuning = small.tuning.model_copy(update={"rows": ["local", "fedproto", "fedgh"]})
    planned = page_of(dataclasses.replace(small, tuning=tuning), records, "benchmark")
    assert "- Rows that have not run yet: `fedgh`.\n" in planned


def test_a_table_has_the_gap_and_its_outcome_in_each_setting(small, records):
    text = page_of(small, records, "benchmark")
    table = text[text.index("| equal nets | n = 10 | n = 30 |") :].partition("\n\n")[0]
    row = next(line for line in table.splitlines() if line.startswith("| fedtgp |"))
    cells = [cell.strip() for cell in row.split("|")[2:4]]
    assert all(cell.startswith("+") and cell.endswith("▲") for cell in cells)
    assert "| local |" not in table and table.splitlines()[-1].startswith("| smallest gap |")


def test_statements_are_counted_from_the_standings(small, records):
    settings = settings_of(small.columns, records)
    said = statements(small, settings)
    assert said[0] == (
        "Better than `local`, of 3 settings: `fedproto` in 2, `fedproto-head` in 2, `fedtgp` in 2."
    )
    assert said[1] == ("Worse than `local`: `fedproto` in 1, `fedproto-head` in 1, `fedtgp` in 1.")
    assert said[2] == "Practically equal to `local`: no method."
    assert said[3].startswith("The largest gap: `fedtgp`, +")
    assert said[5].startswith("`fedproto-head` (by its head) is +1.8 points from `fedproto`")
    assert said[6].startswith("The bound `centralised` has gaps from +24.8 to")


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_the_page_is_true_without_most_records(small, records, kept):
    text = page_of(small, records[:kept], "benchmark")
    assert "## What this does not say" in text and ("gaps.png" in text) == (kept == 2)
    if not kept:
        assert "No method has finished runs." in text


def test_a_smaller_scale_is_said_first(small, records):
    changed = [r | {"scale": "smoke"} for r in records]
    assert "**Scale smoke: the figures mean nothing.**" in page_of(small, changed, "benchmark")
