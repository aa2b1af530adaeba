"""Standings of a benchmark: figures of each method in a setting, significance, groups and ranks.

Two methods are compared over blocks: the accuracies of the same client with the same seed, both in
the rounds that validation samples chose (Wilcoxon's signed-rank test). The p of all pairs of a
setting are corrected together (Holm). Methods that are next to each other by their mean rank over
blocks, and of which no two differ significantly, are a group, as in a critical-difference diagram.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from protofl_workbench.comparing.statistics import Floats, holm, interval, wilcoxon
from protofl_workbench.reproductions.benchmark.benchmark_records import CENTRALISED, LOCAL

LEVEL = 0.05
"""Significance level after Holm's correction."""

BETTER, WORSE, EQUAL = "better", "worse", "no significant difference"
"""Outcomes of a test of two methods."""

DROP = 0.05
"""Loss of validation accuracy from search to final runs at which ``local`` is a weak baseline."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Standing:
    """A method in a setting. Figures are means over seeds, in the chosen rounds.

    Attributes:
        method: The method.
        accuracy: Accuracy over the test samples of all clients, 0 to 1.
        low: Lower end of the 95 % interval of the accuracy over seeds.
        high: Upper end.
        seeds: Number of finished seeds.
        global_accuracy: Accuracy of each client's model on all classes alike.
        worst: Accuracy of the worst client.
        worse_off: Clients that are less accurate than alone; NaN without ``local``.
        chance: Number of such clients that coin tosses would give.
        upload: Bytes uploaded up to the chosen round.
        download: Bytes downloaded up to the chosen round.
        rounds: The chosen round, from 1.
        seconds: Seconds of a round.
        rate: The learning rate that the search chose.
        weight: ``NAME=VALUE`` of the main weight; empty if there is none.
        diverged: Number of seeds whose run diverged, and which count with their best round before.
        mean_rank: Mean rank over blocks, 1 is best; NaN for methods that are not ranked.
        rank: Place by the mean rank; 0 for methods that are not ranked.
        groups: Letters of the groups: methods with a common letter do not differ significantly.
    """

    method: str
    accuracy: float
    low: float
    high: float
    seeds: int
    global_accuracy: float
    worst: float
    worse_off: float
    chance: float
    upload: float
    download: float
    rounds: float
    seconds: float
    rate: float
    weight: str
    diverged: int = 0
    mean_rank: float = math.nan
    rank: int = 0
    groups: str = ""


@dataclass(frozen=True)
class BenchmarkSetting:
    """The methods of a setting.

    Attributes:
        name: Name of the setting.
        standings: Methods with finished runs, best mean rank first, then those that are not ranked.
        p: {(method, method): p after Holm's correction}, methods in the order of ranks.
        cliques: The groups of two or more methods, in the order of ranks.
        blocks: Number of blocks: clients × seeds.
        refused: {method: reason}.
        failed: {method: reason}.
        notes: Remarks.
        baseline: Why comparisons with ``local`` may flatter the others; empty without a reason.
    """

    name: str
    standings: tuple[Standing, ...]
    p: Mapping[tuple[str, str], float]
    cliques: tuple[tuple[str, ...], ...]
    blocks: int
    refused: Mapping[str, str]
    failed: Mapping[str, str]
    notes: tuple[str, ...] = ()
    baseline: str = ""

    def named(self, method: str) -> Standing | None:
        """Return the standing of a method; None if it has none."""
        return next((s for s in self.standings if s.method == method), None)

    @property
    def ranked(self) -> list[Standing]:
        """The ranked methods, best first."""
        return [standing for standing in self.standings if standing.rank]

    def differ(self, one: str, two: str) -> bool:
        """Return True if two ranked methods differ significantly."""
        p = self.p.get((one, two), self.p.get((two, one), math.nan))
        return p < LEVEL

    def against(self, method: str, other: str) -> str:
        """Compare two methods by their test: `BETTER`, `WORSE` or `EQUAL`.

        Returns:
            The outcome for the first method; empty if one of them is not ranked, or both are one.
        """
        one, two = self.named(method), self.named(other)
        if one is None or two is None or one is two or not (one.rank and two.rank):
            return ""
        if not self.differ(method, other):
            return EQUAL
        return BETTER if one.mean_rank < two.mean_rank else WORSE


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


def setting_of(name: str, records: Sequence[Record]) -> BenchmarkSetting:
    """Return the standings of a setting.

    Methods are ranked if they have all seeds, and the splits that most methods have. The bound
    ``centralised`` is not ranked.

    Args:
        name: Name of the setting.
        records: Records of the setting.
    """
    done = {str(r["method"]): r for r in records if r.get("runs")}
    alone = done.get(LOCAL)
    standings = {method: standing_of(record, alone) for method, record in done.items()}
    ranked, notes = _comparable(done)
    notes += _diverged(done) + _short_of_local(done)
    blocks, table = _blocks([done[method] for method in ranked])
    ranks = mean_ranks(table)
    order = sorted(range(len(ranked)), key=lambda n: (ranks[n], ranked[n]))
    names = [ranked[n] for n in order]
    p = significance(names, table[order]) if len(names) > 1 and blocks else {}
    cliques = groups_of(names, p)
    letters = {name: "" for name in names}
    for number, clique in enumerate(cliques):
        for method in clique:
            letters[method] += _letter(number)
    placed = [
        replace(standings[m], mean_rank=float(ranks[n]), rank=place, groups=letters[m])
        for place, (m, n) in enumerate(zip(names, order, strict=True), 1)
    ]
    rest = sorted((s for m, s in standings.items() if m not in names), key=lambda s: -s.accuracy)
    return BenchmarkSetting(
        name,
        (*placed, *rest),
        p,
        tuple(cliques),
        blocks,
        {str(r["method"]): str(r["refused"]) for r in records if "refused" in r},
        {str(r["method"]): str(r["failed"]) for r in records if "failed" in r},
        tuple(notes),
        _weak_baseline([done[method] for method in ranked], alone),
    )


def standing_of(record: Record, alone: Record | None) -> Standing:
    """Return the figures of a method in a setting, without its rank."""
    runs = record["runs"]
    accuracies = [run["test_accuracy"] for run in runs]
    low, high = interval(accuracies)
    worse = [found for run in runs if (found := worse_off(run, alone)) is not None]
    weight = record.get("weight")
    return Standing(
        method=str(record["method"]),
        accuracy=_mean(accuracies),
        low=low if math.isnan(low) else max(0.0, low),
        high=high if math.isnan(high) else min(1.0, high),
        seeds=len(runs),
        global_accuracy=_mean([run["global_accuracy"] for run in runs]),
        worst=_mean([min(run["clients"].values()) for run in runs]),
        worse_off=_mean([count for count, _ in worse]),
        chance=_mean([chance for _, chance in worse]),
        upload=_mean([run["upload_bytes"] for run in runs]),
        download=_mean([run["download_bytes"] for run in runs]),
        rounds=_mean([run["chosen_round"] for run in runs]),
        seconds=_mean([run["seconds_per_round"] for run in runs]),
        rate=float(record.get("lr", math.nan)),
        weight=f"{weight['name']}={weight['value']:g}" if weight else "",
        diverged=sum(bool(run.get("diverged")) for run in runs),
    )


def worse_off(run: Mapping[str, Any], alone: Record | None) -> tuple[float, float] | None:
    """Return the number of clients that are less accurate than alone, and its chance level.

    The chance level is half of the clients whose accuracy differs. None without a run of ``local``
    with the same seed and split.
    """
    same = [
        r for r in (alone or {}).get("runs", ())
        if (r["seed"], r["split"]) == (run["seed"], run["split"])
    ]  # fmt: skip
    if not same:
        return None
    theirs = same[0]["clients"]
    lost = [theirs[client] - ours for client, ours in run["clients"].items() if client in theirs]
    return float(sum(one > 0 for one in lost)), sum(one != 0 for one in lost) / 2


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def _letter(number: int) -> str:
    """Return the letter of a group: a, b, … z, aa and so on."""
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return letters


# --- blocks and tests -----------------------------------------------------------------------------


def _comparable(done: Mapping[str, Record]) -> tuple[list[str], list[str]]:
    """Return the methods with all seeds and the common splits, and notes about the others."""
    keys = {
        method: frozenset((run["seed"], run["split"]) for run in record["runs"])
        for method, record in done.items()
        if method != CENTRALISED
    }
    if not keys:
        return [], []
    most = max((len(key) for key in keys.values()), default=0)
    full = Counter(key for key in keys.values() if len(key) == most)
    common = full.most_common(1)[0][0]
    others = [method for method, key in keys.items() if key != common]
    notes = [f"{method} is not ranked: other seeds or splits than the others" for method in others]
    return [method for method, key in keys.items() if key == common], notes


def _diverged(done: Mapping[str, Record]) -> list[str]:
    """Return a note about final runs that diverged; empty for none."""
    seeds = {m: [run["seed"] for run in r["runs"] if run.get("diverged")] for m, r in done.items()}
    told = [
        f"{method} (seed{'s' * (len(each) > 1)} {', '.join(map(str, each))})"
        for method, each in seeds.items()
        if each
    ]
    if not told:
        return []
    return [f"Final runs that diverged count with their best round before: {', '.join(told)}"]


def _short_of_local(done: Mapping[str, Record]) -> list[str]:
    """Return a note about methods whose search ends far below ``local``; empty for none.

    Such a search compares candidates that have hardly begun to train.
    """
    best = {method: _searched(record) for method, record in done.items()}
    alone = best.get(LOCAL, math.nan)
    weak = [f"{method} ({100 * a:.1f})" for method, a in best.items() if a < alone / 2]
    if not weak:
        return []
    return [
        "At the end of the search no candidate of these methods had half of local's validation "
        f"accuracy ({100 * alone:.1f} %), so their rates and weights may be poor: {', '.join(weak)}"
    ]


def _weak_baseline(ranked: Sequence[Record], alone: Record | None) -> str:
    """Return why comparisons with ``local`` may flatter the others; empty without a reason.

    The rate that its search chose may fail on the seeds of the final runs. It does if ``local``
    is `DROP` below its search there, although most methods are not below theirs.
    """
    if alone is None:
        return ""
    changes = [_final_validation(record) - _searched(record) for record in ranked]
    searched, final = _searched(alone), _final_validation(alone)
    if not (searched - final > DROP and float(np.median(changes)) >= 0):
        return ""
    return (
        f"`local` has {100 * final:.1f} % of the validation samples right in its final runs, less "
        f"than the {100 * searched:.1f} % of its much shorter search. Its learning rate of "
        f"{alone['lr']:.2g} may not suit their seeds, and comparisons with `local` may flatter the "
        "other methods"
    )


def _searched(record: Record) -> float:
    """Return the validation accuracy of the best candidate; NaN without a search."""
    found = [one.get("validation_accuracy") for one in record.get("search", ())]
    return max((a for a in found if a is not None), default=math.nan)


def _final_validation(record: Record) -> float:
    """Return the mean validation accuracy of the final runs in their best rounds; NaN for none."""
    curves = [[a for a in run["validation_curve"] if a is not None] for run in record["runs"]]
    return _mean([max(curve) for curve in curves if curve])


def _blocks(records: Sequence[Record]) -> tuple[int, Floats]:
    """Return the number of blocks, and the accuracies of methods in them, [methods, blocks]."""
    each = [
        {(run["seed"], client): a for run in record["runs"] for client, a in run["clients"].items()}
        for record in records
    ]
    common = sorted(set.intersection(*map(set, each))) if each else []
    table = np.array([[a[key] for key in common] for a in each], dtype=np.float64)
    return len(common), table.reshape(len(records), len(common))


def mean_ranks(table: Floats) -> Floats:
    """Return the mean rank of each method over blocks, 1 for the most accurate.

    Args:
        table: Accuracies, [methods, blocks]. Equal accuracies get the mean of their ranks.

    Returns:
        [methods]; NaN without blocks.
    """
    from scipy.stats import rankdata

    if not table.size:
        return np.full(len(table), math.nan)
    ranks: Floats = rankdata(-table.round(12), axis=0).mean(1)
    return ranks


def significance(names: Sequence[str], table: Floats) -> dict[tuple[str, str], float]:
    """Return the corrected p of each pair of methods.

    Args:
        names: The methods.
        table: Accuracies in the blocks, [methods, blocks].
    """
    pairs = [*combinations(range(len(names)), 2)]
    corrected = holm([wilcoxon(table[one] - table[two]) for one, two in pairs])
    return {(names[a], names[b]): p for (a, b), p in zip(pairs, corrected, strict=True)}


def groups_of(
    names: Sequence[str], p: Mapping[tuple[str, str], float], level: float = LEVEL
) -> list[tuple[str, ...]]:
    """Return the largest groups of neighbours of which no two differ significantly.

    Args:
        names: The methods in the order of their mean ranks.
        p: {(earlier method, later method): corrected p}; NaN counts as not significant.
        level: Significance level.
    """
    found: list[tuple[int, int]] = []
    for start in range(len(names)):
        end = start
        while end + 1 < len(names) and not any(
            p.get((names[n], names[end + 1]), math.nan) < level for n in range(start, end + 1)
        ):
            end += 1
        if end > start and not any(a <= start and end <= b for a, b in found):
            found.append((start, end))
    return [tuple(names[start : end + 1]) for start, end in found]
