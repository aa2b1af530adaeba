"""Figures of a method in the benchmark: its gap to ``local`` in each setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protofl_workbench.reproductions.benchmark import standings
from protofl_workbench.reproductions.benchmark.benchmark_records import read_records
from protofl_workbench.reproductions.benchmark.standings import BenchmarkSetting, Standing
from protofl_workbench.reproductions.reproduction import Reproduction

REFERENCE = Path(__file__).parents[1] / "reference"

BENCHMARKS = {
    "benchmark/regimes": REFERENCE / "benchmark",
    "benchmark/methods": REFERENCE / "benchmark-methods",
}
"""{reproduction: folder of its committed records}."""


def settings_of(benchmark: Reproduction, folder: Path) -> list[BenchmarkSetting]:
    """Return the standings of all rows with a record, by setting in the benchmark's order."""
    return standings.settings_of(benchmark.columns, read_records(folder))


def benchmark_rows(
    method: str, benchmark: Reproduction, settings: Sequence[BenchmarkSetting]
) -> list[tuple[str, Standing]]:
    """Return the title of each setting and the standing of each row of a method in it."""
    rows = [name for name, row in benchmark.rows.items() if row.options.get("method") == method]
    return [
        (benchmark.columns[setting.name].title, standing)
        for row in rows
        for setting in settings
        if (standing := setting.named(row))
    ]
