"""Standings of a benchmark: the gap of each method to ``local`` in a setting, and what it decides.

A gap is the mean accuracy over clients minus that of ``local`` with the same seed and split. Seeds
are the units: a gap has Student's 95 % interval over seeds, and a paired t test whose p is
corrected over the methods of a setting (Holm). A gap whose interval lies within `REGION` counts as
equal, so that "equal" is a result and not the lack of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import numpy as np

from protofl_workbench.comparing.statistics import Floats, holm, interval
from protofl_workbench.reproductions.benchmark.benchmark_records import CENTRALISED, LOCAL

LEVEL, POWER = 0.05, 0.8
"""Significance level after Holm's correction, and the power of the smallest visible gap."""

REGION = 0.005
"""Gaps within ± half a point are practically equal."""

BETTER, WORSE, EQUAL, OPEN = "better", "worse", "equal", "not decided"
"""Outcomes of the comparison with ``local``."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Standing:
    """A method in a setting. Accuracies and gaps are shares, means over seeds.

    Attributes:
        method: The row of the benchmark.
        accuracy: Mean accuracy over clients.
        gap: Accuracy minus that of ``local``; NaN without ``local``.
        low: Lower end of the gap's 95 % interval over seeds; NaN below three seeds.
        high: Upper end.
        p: p of the gap, after Holm's correction; NaN if it is not tested.
        outcome: `BETTER`, `WORSE`, `EQUAL` or `OPEN`; empty without an interval.
        seeds: Number of seeds that ``local`` has, too.
        worst: Accuracy of the worst client.
        worse_off: Share of clients that are less accurate than alone.
        upload: Bytes uploaded by a client up to the chosen round.
        download: Bytes downloaded.
        rounds: The round that is read.
        batches: Mini-batches that a client trains on in a run.
        rate: The learning rate that the search chose.
        weight: ``NAME=VALUE`` of the main weight; empty if there is none.
        diverged: Number of seeds whose run diverged, and which count with their best round before.
    """

    method: str
    accuracy: float
    gap: float
    low: float
    high: float
    p: float
    outcome: str
    seeds: int
    worst: float
    worse_off: float
    upload: float
    download: float
    rounds: float
    batches: float
    rate: float
    weight: str
    diverged: int


@dataclass(frozen=True)
class BenchmarkSetting:
    """The methods of a setting.

    Attributes:
        name: Name of the setting.
        standings: Methods with finished runs, the largest gap first.
        visible: The smallest gap that the test of the median method would have found in
            `POWER` of all cases, as a share; NaN without tests.
        refused: {method: reason}.
        failed: {method: reason}.
    """

    name: str
    standings: tuple[Standing, ...]
    visible: float
    refused: Mapping[str, str]
    failed: Mapping[str, str]

    def named(self, method: str) -> Standing | None:
        """Return the standing of a method; None if it has none."""
        return next((s for s in self.standings if s.method == method), None)


def settings_of(names: Iterable[str], records: Iterable[Record]) -> list[BenchmarkSetting]:
    """Return the standings of each setting with a record, in the order of the names.

    Args:
        names: Names of the settings; others follow.
        records: Records of methods in settings.
    """
    by_setting: dict[str, list[Record]] = {name: [] for name in names}
    for record in records:
        by_setting.setdefault(str(record["setting"]), []).append(record)
    return [setting_of(name, found) for name, found in by_setting.items() if found]


def setting_of(name: str, records: Sequence[Record], beside: str = LOCAL) -> BenchmarkSetting:
    """Return the standings of a setting.

    ``centralised`` is a bound, which is neither tested nor counted.

    Args:
        name: Name of the setting.
        records: Records of the setting.
        beside: The row from which gaps are counted.
    """
    done = {str(r["method"]): r for r in records if r.get("runs")}
    alone = done.get(beside)
    gaps = {method: gaps_of(record, alone) for method, record in done.items()}
    untested = LOCAL, beside, CENTRALISED
    tested = [m for m, each in gaps.items() if m not in untested and len(each) > 2]
    p = dict(zip(tested, holm([t_test(gaps[m]) for m in tested]), strict=True))
    standings = [
        _standing(record, alone, gaps[method], p.get(method)) for method, record in done.items()
    ]
    # The first step of Holm's correction divides the level by the number of tests.
    visible = [smallest_visible(gaps[m], LEVEL / len(tested)) for m in tested]
    return BenchmarkSetting(
        name,
        tuple(sorted(standings, key=lambda s: (-s.gap, s.method))),
        median(visible) if visible else math.nan,
        {str(r["method"]): str(r["refused"]) for r in records if "refused" in r},
        {str(r["method"]): str(r["failed"]) for r in records if "failed" in r},
    )


def gaps_of(record: Record, alone: Record | None) -> Floats:
    """Return the gap to ``local`` of each seed that both have with the same split."""
    known = {(run["seed"], run["split"]): run for run in (alone or {}).get("runs", ())}
    pairs = [
        (run, known[key]) for run in record["runs"] if (key := (run["seed"], run["split"])) in known
    ]
    return np.array([a["client_accuracy"] - b["client_accuracy"] for a, b in pairs])


def _standing(record: Record, alone: Record | None, gaps: Floats, p: float | None) -> Standing:
    runs = record["runs"]
    clients = len(runs[0]["clients"])
    low, high = interval(gaps)
    theirs = {run["seed"]: run["clients"] for run in (alone or {}).get("runs", ())}
    lost = [
        fmean(theirs[run["seed"]][c] > a for c, a in run["clients"].items())
        for run in runs
        if run["seed"] in theirs
    ]
    weight = record.get("weight")
    standing = Standing(
        method=str(record["method"]),
        accuracy=fmean(run["client_accuracy"] for run in runs),
        gap=float(gaps.mean()) if len(gaps) else math.nan,
        low=low,
        high=high,
        p=math.nan if p is None else p,
        outcome="",
        seeds=len(gaps),
        worst=fmean(min(run["clients"].values()) for run in runs),
        worse_off=fmean(lost) if lost else math.nan,
        upload=fmean(run["upload_bytes"] for run in runs) / clients,
        download=fmean(run["download_bytes"] for run in runs) / clients,
        rounds=fmean(run["chosen_round"] for run in runs),
        batches=record.get("batches", math.nan) / clients,
        rate=float(record.get("lr", math.nan)),
        weight=f"{weight['name']}={weight['value']:g}" if weight else "",
        diverged=sum(bool(run.get("diverged")) for run in runs),
    )
    return standing if p is None else replace(standing, outcome=_outcome(standing))


def _outcome(standing: Standing) -> str:
    if -REGION <= standing.low and standing.high <= REGION:
        return EQUAL
    if standing.p >= LEVEL:
        return OPEN
    return BETTER if standing.gap > 0 else WORSE


def t_test(gaps: Floats) -> float:
    """Return the two-sided p of a paired t test.

    Args:
        gaps: The gap of each seed, [n], n ≥ 2.
    """
    from scipy.special import stdtr

    error = _error(gaps)
    if error == 0:
        return 0.0 if gaps.mean() else 1.0
    return 2 * float(stdtr(len(gaps) - 1, -abs(gaps.mean()) / error))


def smallest_visible(gaps: Floats, level: float) -> float:
    """Return the gap that a t test with this spread finds in `POWER` of all cases, about.

    Args:
        gaps: The gap of each seed, [n], n ≥ 2.
        level: The level of the test.
    """
    from scipy.special import stdtrit

    freedom = len(gaps) - 1
    return float(stdtrit(freedom, 1 - level / 2) + stdtrit(freedom, POWER)) * _error(gaps)


def _error(gaps: Floats) -> float:
    """Return the standard error of the mean."""
    return float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
