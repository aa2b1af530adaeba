"""FedTGP's Table 10 from committed records: the table on docs/reference/published-tables.md.

``docs/reference/benchmark/table-10/METHOD-PARTITION-sSEED/`` has the record of a run, without
weights. This command copies the records of finished and diverged runs there, and updates the page:

    python docs/_build/site_table10.py RUN...

Without runs it only updates the page. A run is made with the command that the page shows.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from scipy.stats import binomtest

import protofl as pf
from protofl.records.layout import PREDICTIONS
from protofl.records.result import chosen_row
from markdown_tables import table
from protofl_workbench.comparing.statistics import holm
from protofl_workbench.reproductions.reproduction import PublishedFigure, published_figure

RECORDS = Path(__file__).parents[1] / "reference/benchmark/table-10"
FILES = ("config.json", "summary.json", "metrics.jsonl", "partition.json", "failure.json")

METHODS = ("fedproto", "fedtgp", "lg-fedavg", "feddistill", "local")
"""Methods of the table that are run first; the page names their missing records."""

SEEDS = (0, 1, 2)
PARTITIONS = ("pathological", "practical")
NAME = re.compile(rf"(.+)-({'|'.join(PARTITIONS)})-s(\d+)")

SETTING: dict[str, Any] = {
    "models": "htcnn8", "clients": 20, "rounds": 60, "batch_size": 10, "lr": 0.01,
    "local_epochs": 1, "participation": 1.0, "feature_dim": 512, "shuffle": False,
    "drop_last": True, "trials": 1,
}  # fmt: skip
"""Options that every record must have."""

DIGEST = "1dc8e6fa97c43252270df452686b054518767c3e69fc55a9cd003006fd305785"
"""Digest of Fashion-MNIST's 70,000 images."""


@dataclass(frozen=True)
class Record:
    """A committed record of a run.

    Attributes:
        method: The method.
        partition: ``pathological`` or ``practical``.
        seed: The seed.
        run: The run.
    """

    method: str
    partition: str
    seed: int
    run: pf.Run

    @property
    def diverged(self) -> bool:
        """True if training ended in NaN."""
        return self.run.state == "diverged"

    def has_predictions(self, which: str) -> bool:
        """Return True if the predictions of a round, ``last`` or ``best``, are recorded."""
        try:
            return bool(self.run.predictions(which))
        except pf.UsageError:
            return False

    def accuracy(self, which: str) -> float:
        """Return the test accuracy in % of a round: ``last``, ``best`` or ``validation``.

        ``ten`` is the mean of the last ten rounds. NaN without validation samples.
        """
        rows = self.run.rows_of(0, evaluated=True)
        if which == "ten":
            return 100 * fmean(row.test_accuracy for row in rows[-10:])
        chosen = chosen_row(rows, which)
        return float("nan") if chosen is None else 100 * chosen.test_accuracy


# --- records --------------------------------------------------------------------------------------


def name_of(run: pf.Run) -> str:
    """Return METHOD-PARTITION-sSEED."""
    _, _, partition = run.config["partition"].partition(":")
    return f"{run.config['method']}-{partition}-s{run.config['seed']}"


def problem_of(run: pf.Run, name: str) -> str:
    """Return why a run is not one of the table; empty if it is."""
    if not NAME.fullmatch(name) or name != name_of(run):
        return f"it is {name_of(run)}, with --partition {run.config['partition']}"
    if run.config["data"]["digest"] != DIGEST:
        return "its data are not Fashion-MNIST"
    variant = run.config["options"].get(run.config["method"], {}).get("variant", "official")
    if variant != "official":
        return f"its variant is {variant}, not official"
    differing = {key: run.config[key] for key in SETTING if run.config[key] != SETTING[key]}
    return ", ".join(f"{key} is {v!r}, not {SETTING[key]!r}" for key, v in differing.items())


def read_records(folder: Path) -> list[Record]:
    """Read all committed records of the table.

    Raises:
        ValueError: A run is not one of the table, or is unfinished.
    """
    found = []
    for place in sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else ():
        run = pf.load_run(place)
        problem = problem_of(run, place.name)
        if not problem and run.state not in ("finished", "diverged"):
            problem = f"it is {run.state}"
        if problem:
            raise ValueError(f"{place}: {problem}")
        match = NAME.fullmatch(place.name)
        assert match is not None
        found.append(Record(match[1], match[2], int(match[3]), run))
    order = {method: place for place, method in enumerate(METHODS)}
    last = len(order)
    return sorted(
        found,
        key=lambda r: (
            order.get(r.method, last),
            r.method,
            PARTITIONS.index(r.partition),
            r.seed,
        ),
    )


def add_record(source: Path, folder: Path) -> Path | None:
    """Copy the record of a run, without weights and paths of the machine.

    Returns:
        The new folder; None for a run that is not over.

    Raises:
        ValueError: The run is not one of the table.
    """
    run = pf.load_run(source)
    if problem := problem_of(run, name_of(run)):
        raise ValueError(f"{source}: {problem}")
    if run.state not in ("finished", "diverged"):
        return None
    target = folder / name_of(run)
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if (source / PREDICTIONS).is_dir():
        shutil.copytree(source / PREDICTIONS, target / PREDICTIONS, dirs_exist_ok=True)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    kind, colon, place = config["dataset"].partition(":")
    config["dataset"] = f"{kind}{colon}{Path(place).name}"
    config.pop("data_dir", None)
    text = json.dumps(config, indent=1, ensure_ascii=False)
    (target / "config.json").write_text(text + "\n", encoding="utf-8")
    return target


# --- the page -------------------------------------------------------------------------------------


def table_10() -> str:
    """Return the tables of the committed records, and what is missing."""
    return page_part(read_records(RECORDS), pf.reproduction("fedtgp/table-10").published)


def page_part(records: Sequence[Record], printed: Mapping[tuple[str, str], str]) -> str:
    """Return Markdown of records beside the published figures.

    Args:
        records: The records.
        printed: {(method, partition): figure as it is printed}.
    """
    each = {place: published_figure(text) for place, text in printed.items()}
    published = {place: figure for place, figure in each.items() if figure is not None}
    parts = []
    for partition in PARTITIONS:
        here = [record for record in records if record.partition == partition]
        if here:
            parts += [f"**{partition.capitalize()}**", _table(here, published)]
            parts += [_correlation(here, published), *_diverged(here), *_mcnemar(here)]
    if not records:
        parts.append(
            "No record of these runs is committed yet. The table, its rank correlation and its p "
            "values appear here with the first ones."
        )
    return "\n\n".join([*filter(None, parts), _missing(records)])


def _by_method(records: Iterable[Record]) -> dict[str, list[Record]]:
    result: dict[str, list[Record]] = {}
    for record in records:
        result.setdefault(record.method, []).append(record)
    return result


def _table(records: Sequence[Record], published: Mapping[tuple[str, str], PublishedFigure]) -> str:
    rows = []
    for method, of_method in _by_method(records).items():
        over = [record for record in of_method if not record.diverged]
        figure = published.get((method, of_method[0].partition))
        rows.append(
            [
                f"`{method}`",
                ", ".join(f"{r.seed}{' (NaN)' * r.diverged}" for r in of_method),
                *(_spread([r.accuracy(which) for r in over]) for which in ("last", "ten")),
                _with_rounds(of_method, "best"),
                _with_rounds(of_method, "validation"),
                figure.text if figure else "–",
            ]
        )
    heads = ["", "seeds", "last", "ten", "best (rounds)", "chosen on validation", "published"]
    return table(heads, rows)


def _spread(values: Sequence[float]) -> str:
    """Return mean ± population standard deviation; a dash for nothing or NaN."""
    if not values or any(value != value for value in values):
        return "–"
    return f"{fmean(values):.2f}" + (f"±{pstdev(values):.2f}" if len(values) > 1 else "")


def _with_rounds(records: Sequence[Record], which: str) -> str:
    text = _spread([record.accuracy(which) for record in records])
    chosen = [chosen_row(record.run.rows_of(0), which) for record in records]
    rounds = ", ".join(str(row.round) for row in chosen if row is not None)
    return text if text == "–" else f"{text} ({rounds})"


def _correlation(
    records: Sequence[Record], published: Mapping[tuple[str, str], PublishedFigure]
) -> str:
    """Return a line with the rank correlation of our best rounds and the published figures."""
    pairs = []
    for method, of_method in _by_method(records).items():
        figure = published.get((method, of_method[0].partition))
        best = fmean(record.accuracy("best") for record in of_method)
        if figure is not None and best == best:  # a run that diverged at once has none
            pairs.append((best, figure.mean))
    if len(pairs) < 3:
        return "Rank correlation: computed from three methods on."
    return (
        f"Spearman's rank correlation of the best rounds with the published figures is "
        f"{signed(spearman(*zip(*pairs, strict=True)))} over {len(pairs)} methods."
    )


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal figures share their mean rank."""
    from scipy.stats import spearmanr

    return float(spearmanr(ours, theirs).statistic)


def signed(value: float) -> str:
    """Return a correlation with two decimals and its sign."""
    return f"{'−' if value < 0 else '+'}{abs(value):.2f}"


def _diverged(records: Sequence[Record]) -> list[str]:
    lines = [
        f"- `{r.method}`, seed {r.seed}: ended in NaN in round {r.run.rounds_done}, best before "
        f"{r.accuracy('best'):.2f}."
        for r in records
        if r.diverged
    ]
    return ["\n".join(lines)] if lines else []


def _mcnemar(records: Sequence[Record]) -> list[str]:
    """Return McNemar's tests against FedTGP over recorded predictions, for each round and seed.

    A diverged run has no last round of the table.
    """
    parts = []
    for which, words in (("last", "last round"), ("best", "best on test")):
        tested = [
            r for r in records if r.has_predictions(which) and not (which == "last" and r.diverged)
        ]
        seeds = sorted({r.seed for r in tested if r.method == "fedtgp"})
        for seed in seeds:
            right = {r.method: r.run.predictions(which).right for r in tested if r.seed == seed}
            if len(right) > 1:
                of = f", seed {seed}" if len(seeds) > 1 else ""
                parts += [f"test accuracy, {words}{of}: difference to fedtgp in percentage points:"]
                parts += [_tests(right)]
    if parts:
        parts.append(
            "These are McNemar's exact tests of the recorded predictions (SciPy's `binomtest`). "
            "They take the trained models as fixed, and the best round was chosen on the same "
            "samples."
        )
    return parts


def _tests(right: Mapping[str, Any]) -> str:
    """Return a table of tests; ``right`` has for each method whether each test sample is right."""
    theirs, rows = right["fedtgp"], []
    for method, ours in right.items():
        if method != "fedtgp":
            alone = int((ours & ~theirs).sum()), int((~ours & theirs).sum())
            p = float(binomtest(alone[0], sum(alone)).pvalue) if sum(alone) else 1.0
            rows.append((method, len(ours), 100 * (alone[0] - alone[1]) / len(ours), alone, p))
    corrected = holm([row[-1] for row in rows])
    return table(
        ("method", "samples", "difference", "right alone: method / fedtgp", "p", "Holm"),
        [
            (name, f"{count:,}", signed(points), "{:,} / {:,}".format(*alone), _p(p), _p(p_holm))
            for (name, count, points, alone, p), p_holm in zip(rows, corrected, strict=True)
        ],
    )


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _missing(records: Sequence[Record]) -> str:
    there = {(record.method, record.partition, record.seed) for record in records}
    parts = []
    for partition in PARTITIONS:
        lacking = [
            f"`{method}` ({', '.join(map(str, seeds))})"
            for method in METHODS
            if (seeds := [seed for seed in SEEDS if (method, partition, seed) not in there])
        ]
        if lacking:
            parts.append(f"{partition}: {', '.join(lacking)}")
    return f"Missing records (seeds): {'; '.join(parts)}." if parts else "No record is missing."


if __name__ == "__main__":
    from site_hooks import update_kept

    for place in map(Path, sys.argv[1:]):
        print(f"{place}: {add_record(place, RECORDS) or 'not over yet, left out'}")
    for page in update_kept():
        print(f"updated {page}")
