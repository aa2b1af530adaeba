"""Figures of a method in the benchmark: its standing in each setting, and against ``local``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from protofl_workbench.reproductions.benchmark import standings
from protofl_workbench.reproductions.benchmark.benchmark_records import (
    LOCAL,
    read_records,
)
from protofl_workbench.reproductions.benchmark.standings import BenchmarkSetting
from protofl_workbench.reproductions.reproduction import Reproduction

BENCHMARK = "benchmark/htfl"
"""The reproduction whose records are read."""

RECORDS = Path(__file__).parents[1] / "reference/benchmark"
"""Folder of the committed records."""


@dataclass(frozen=True)
class BenchmarkRow:
    """A method in a setting of the benchmark.

    Attributes:
        setting: Name of the setting.
        label: Description of the setting.
        seeds: Number of finished seeds; 0 if the method did not run.
        accuracy: Mean accuracy over the test samples of all clients, 0 to 1; None without a run.
        low: Lower end of the 95 % interval over seeds; None if there is no interval.
        high: Upper end.
        local: The accuracy of ``local``; None if it has no record.
        against_local: ``better``, ``worse`` or ``no significant difference``; empty for ``local``
            itself and for methods that are not ranked.
        baseline: Why comparisons with ``local`` may flatter other methods; may be empty.
        rank: Place by the mean rank over clients and seeds; None for methods that are not ranked.
        ranked: Number of ranked methods.
        upload: Bytes uploaded by all clients up to the chosen round; None without a run.
        download: Bytes downloaded.
        reason: Why the method does not fit, or why its runs failed.
    """

    setting: str
    label: str
    seeds: int
    accuracy: float | None
    low: float | None
    high: float | None
    local: float | None
    against_local: str
    baseline: str
    rank: int | None
    ranked: int
    upload: float | None
    download: float | None
    reason: str


def settings_of(benchmark: Reproduction, folder: Path = RECORDS) -> list[BenchmarkSetting]:
    """Return the standings of all methods with a record, by setting in the benchmark's order."""
    return standings.settings_of(benchmark.columns, read_records(folder))


def benchmark_rows(
    method: str, benchmark: Reproduction, settings: Sequence[BenchmarkSetting]
) -> list[BenchmarkRow]:
    """Return the figures of a method in the settings in which it has a record."""
    rows = []
    for setting in settings:
        standing = setting.named(method)
        reason = setting.refused.get(method) or setting.failed.get(method) or ""
        if standing is None and not reason:
            continue
        column = benchmark.columns.get(setting.name)
        local = setting.named(LOCAL)
        rows.append(
            BenchmarkRow(
                setting.name,
                column.label if column else setting.name,
                standing.seeds if standing else 0,
                _known(standing.accuracy) if standing else None,
                _known(standing.low) if standing else None,
                _known(standing.high) if standing else None,
                _known(local.accuracy) if local else None,
                setting.against(method, LOCAL),
                setting.baseline,
                (standing.rank or None) if standing else None,
                len(setting.ranked),
                _known(standing.upload) if standing else None,
                _known(standing.download) if standing else None,
                reason,
            )
        )
    return rows


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
