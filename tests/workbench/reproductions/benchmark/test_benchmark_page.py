"""Tests of the page of a benchmark: generated from records, and true for what they have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from protofl_workbench.reproductions.benchmark.benchmark_execution import BenchmarkProgress
from protofl_workbench.reproductions.benchmark.benchmark_page import page_of, statements, write_page
from protofl_workbench.reproductions.benchmark.benchmark_records import read_records
from protofl_workbench.reproductions.benchmark.standings import setting_of


def run(seed, clients):
    return {
        "seed": seed, "rounds": 9, "chosen_round": 5, "split": str(seed),
        "test_accuracy": float(np.mean(clients)), "client_test_accuracy": float(np.mean(clients)),
        "global_accuracy": 0.25, "clients": {str(n): float(a) for n, a in enumerate(clients)},
        "upload_bytes": 2_000_000, "download_bytes": 4_000_000, "seconds_per_round": 0.5,
        "validation_curve": [0.5], "test_curve": [0.5],
    }  # fmt: skip


def record(method, setting, shift, **others):
    draws = np.random.default_rng(0)
    return {
        "method": method, "setting": setting, "scale": "paper", "definition": "d",
        "options": {"dataset": "npz:few.npz"}, "lr": 0.1, "search": [{"lr": 0.1}] * 3,
        "runs": [run(seed, draws.uniform(0.2, 0.7, 10) + shift) for seed in (0, 1)],
        "commit": "abc1234567", "machine": {"processor": "A chip"},
        "versions": {"torch": "2.6", "python": "3.10"},
        "plugin": {"distribution": "protofl", "version": "0.1.0", "code": "c"}, **others,
    }  # fmt: skip


@pytest.fixture
def records():
    found = [
        record(method, setting, shift * sign)
        for setting, sign in (("equal", 1), ("unequal", -1))
        for method, shift in (("local", 0.0), ("fedproto", 0.1), ("fedtgp", 0.2))
    ]
    refused = {
        "method": "fedavg",
        "setting": "unequal",
        "definition": "d",
        "scale": "paper",
        "options": {"dataset": "npz:few.npz"},
        "refused": "it averages | whole models",
    }
    return [*found, record("centralised", "equal", 0.25), refused]


@pytest.fixture
def progress(small, records):
    keyed = {(r["method"], r["setting"]): r for r in records}
    return BenchmarkProgress(small, "paper", small.tuning, (), (), keyed)


@pytest.mark.slow
def test_the_page_is_made_again_from_its_folder_alone(progress, small, tmp_path):
    page = tmp_path / "docs" / "benchmark.md"
    page.parent.mkdir()
    write_page(progress, page)
    text = page.read_text(encoding="utf-8")
    write_page(BenchmarkProgress(small, "paper", small.tuning, (), ()), page)
    assert page.read_text(encoding="utf-8") == text
    assert text == page_of(small, read_records(page.with_suffix("")), "benchmark")


@pytest.mark.slow
def test_a_further_method_joins_the_records_that_are_there(progress, small, tmp_path):
    page = tmp_path / "benchmark.md"
    write_page(progress, page)
    mine = {("mine", "equal"): record("mine", "equal", 0.15)}
    write_page(BenchmarkProgress(small, "paper", small.tuning, (), (), mine), page)
    text = page.read_text(encoding="utf-8")
    assert "| mine |" in text and "| fedtgp |" in text


def test_the_page_says_what_ran_where(small, records):
    text = page_of(small, records, "benchmark")
    assert "7 pairs of method and setting, 21 tuning runs and 14 final runs" in text
    assert "abc1234567" in text and "A chip, torch 2.6, Python 3.10" in text
    assert "`fedavg`: it averages \\| whole models" in text


def test_statements_are_counted_from_the_standings(records):
    settings = [
        setting_of(name, [r for r in records if r["setting"] == name])
        for name in ("equal", "unequal")
    ]
    said = " ".join(statements(settings))
    assert "helps significantly in 1 of 2 settings" in said
    assert "equal: 2 of 2 methods beat `local`, 0 rank significantly below it" in said
    assert "unequal: 0 of 2 methods beat `local`, 2 rank significantly below it" in said
    assert "in all of these settings: no method" in said
    assert "equal: `fedtgp` has the best mean rank, and differs from all others" in said
    assert "equal: +5.0" in said
    bound = replace(settings[0].named("centralised"), diverged=1)
    others = [s for s in settings[0].standings if s.method != "centralised"]
    failing = replace(settings[0], standings=(*others, bound))
    assert "equal: +5.0 (1 of 2 runs of it diverged)" in " ".join(statements([failing]))
    weak = replace(settings[0], baseline="`local` is weak")
    assert "1 of 1 setting" in statements([weak])[0]
    assert statements([weak])[1] == "equal: `local` is weak."
    begun = setting_of("begun", [r for r in records if r["method"] == "local"][:1])
    assert " ".join(statements([*settings, begun])) == said


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_the_page_is_true_without_most_records(small, records, kept):
    text = page_of(small, records[:kept], "benchmark")
    assert "## Limits of these results" in text
    if not kept:
        assert "Nothing yet" in text


def test_a_smaller_scale_is_said_first(small, records):
    changed = [r | {"scale": "smoke"} for r in records]
    assert "**Scale smoke: the figures mean nothing.**" in page_of(small, changed, "benchmark")
