"""Test of the benchmark's page: it is what its committed records say."""

from __future__ import annotations

from pathlib import Path

from protofl_workbench.reproductions.benchmark.benchmark_page import page_of
from protofl_workbench.reproductions.benchmark.benchmark_records import read_records
from protofl_workbench.reproductions.finding import find_reproduction

PAGE = Path(__file__).parents[2] / "docs/reference/benchmark.md"


def test_the_page_agrees_with_its_records():
    records = read_records(PAGE.with_suffix(""))
    made = page_of(find_reproduction("benchmark/htfl"), records, "benchmark")
    committed = PAGE.read_text(encoding="utf-8")
    assert made == committed, (
        "protofl reproduce benchmark/htfl --no-run --out docs/reference/benchmark.md --force"
    )
    assert not any(text in committed for text in ("/work/", "/tmp/", "/home/"))
