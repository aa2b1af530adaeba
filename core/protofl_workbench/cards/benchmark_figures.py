"""Figures of a method in the benchmark: its standing in each setting, and against ``local``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.hooks.discovery.registry import Registry
from protofl_workbench.reproductions.benchmark import standings
from protofl_workbench.reproductions.benchmark.benchmark_records import (
    LOCAL,
    folder_of,
    read_records,
)
from protofl_workbench.reproductions.benchmark.standings import BenchmarkSetting
from protofl_workbench.reproductions.reproduction import Reproduction

BENCHMARK = "benchmark/htfl"
"""The reproduction whose records are read."""

IN_CHECKOUT = Path("docs/reference/benchmark")
"""Folder of the committed records in a checkout of protofl."""

INSTALLED = "records"
"""Folder of the same records beside the reproduction's file in an installed package."""


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


def record_folders(benchmark: Reproduction, runs: Path | None = None) -> list[Path]:
    """Return the folders with records: those of the checkout or package, then those of runs.

    Args:
        benchmark: The benchmark.
        runs: Folder of runs, as ``--runs`` of ``protofl reproduce`` takes it.
    """
    folders = [Path(__file__).parents[3] / IN_CHECKOUT, *_installed(benchmark)]
    folders += [folder_of(runs, benchmark, "paper")] if runs else []
    return [folder for folder in folders if folder.is_dir()]


def _installed(benchmark: Reproduction) -> list[Path]:
    """Return the folder of records in the package of a benchmark."""
    try:
        plugin = Registry().find("reproduction", benchmark.name.partition("/")[0])
        package = files(plugin.target.partition(":")[0])
    except (UsageError, ImportError, TypeError):  # a reproduction of a file
        return []
    place = package / INSTALLED
    return [place] if isinstance(place, Path) else []


def settings_of(benchmark: Reproduction, folders: Iterable[Path]) -> list[BenchmarkSetting]:
    """Return the standings of all methods with a record, by setting in the benchmark's order.

    Of several records of a method in a setting, that of the first folder counts.

    Raises:
        UsageError: A record is damaged.
    """
    records: dict[tuple[str, str], dict[str, Any]] = {}
    for folder in folders:
        for record in read_records(folder):
            records.setdefault((record["setting"], record["method"]), record)
    return standings.settings_of(benchmark.columns, records.values())


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
