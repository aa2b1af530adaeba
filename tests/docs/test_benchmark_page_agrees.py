"""Tests of the benchmark's page: it is made from its records, and its figures follow from them.

The second test computes the figures in another way, from the accuracies of clients alone.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from protofl_workbench.reproductions.benchmark.benchmark_page import page_of
from protofl_workbench.reproductions.benchmark.benchmark_records import read_records
from protofl_workbench.reproductions.finding import find_reproduction

REFERENCE = Path(__file__).parents[2] / "docs/reference"
PAGES = {"benchmark/regimes": "benchmark", "benchmark/methods": "benchmark-methods"}

pytestmark = pytest.mark.parametrize("name", PAGES)


@pytest.fixture
def page(name):
    return REFERENCE / f"{PAGES[name]}.md"


def test_the_page_agrees_with_its_records(name, page):
    made = page_of(find_reproduction(name), read_records(page.with_suffix("")), page.stem)
    committed = page.read_text(encoding="utf-8")
    assert made == committed, (
        f"protofl reproduce {name} --no-run --out docs/reference/{page.name} --force"
    )
    assert not any(text in committed for text in ("/work/", "/tmp/", "/home/"))


@pytest.fixture
def accuracies(page):
    """Return {setting: {row: {seed: accuracy}}} in points."""
    found = {}
    for file in page.with_suffix("").glob("*/*.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        if "runs" in record:
            means = {r["seed"]: 100 * np.mean([*r["clients"].values()]) for r in record["runs"]}
            found.setdefault(record["setting"], {})[record["method"]] = means
    return found


def rate_of(page, setting, row):
    return json.loads((page.with_suffix("") / setting / f"{row}.json").read_text())["lr"]


def gap_of(rows, row, beside="local"):
    """Return the gap of each seed of a row that did not diverge before its first evaluation."""
    return np.array([accuracy - rows[beside][seed] for seed, accuracy in rows[row].items()])


def outcomes(rows, beside="local"):
    """Return {row: sign} of a setting: Holm's correction as a loop over sorted p."""
    others = [row for row in rows if row not in ("local", beside, "centralised")]
    gaps = {row: gap_of(rows, row, beside) for row in others}
    # Weight 0 may have been chosen: then all gaps are 0, and no test is needed.
    p = {row: stats.ttest_1samp(gap, 0).pvalue if gap.any() else 1 for row, gap in gaps.items()}
    signs, rejecting = {}, True
    for rank, row in enumerate(sorted(p, key=p.get)):
        rejecting = rejecting and p[row] * (len(p) - rank) < 0.05
        half = stats.sem(gaps[row]) * stats.t.ppf(0.975, len(gaps[row]) - 1)
        low, high = gaps[row].mean() - half, gaps[row].mean() + half
        sign = "▲" if gaps[row].mean() > 0 else "▼"
        signs[row] = "=" if low >= -0.5 and high <= 0.5 else sign if rejecting else "?"
    return signs


def test_every_gap_and_sentence_follows_from_the_accuracies_of_clients(name, page, accuracies):
    benchmark, text = find_reproduction(name), page.read_text(encoding="utf-8")
    signs = {setting: outcomes(rows) for setting, rows in accuracies.items()}
    checked = 0
    for table in text.partition("## What this does not say")[0].split("\n\n"):
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        if not table.startswith("| ") or len(lines) < 3:
            continue
        settings = [
            next(
                n
                for n, c in benchmark.columns.items()
                if (c.group, c.label) == (lines[0][0], label)
            )
            for label in lines[0][1:]
        ]
        for row, *cells in lines[2:-1]:
            for setting, cell in zip(settings, cells, strict=True):
                assert bool(cell) == (row in accuracies[setting])
                if cell:
                    gap = gap_of(accuracies[setting], row)
                    number, sign = float(cell.split(" ")[0]), cell[-1]
                    assert number == pytest.approx(gap.mean(), abs=0.051)
                    assert sign == signs[setting].get(row, sign)
                    checked += 1
    assert checked == sum(len(rows) - 1 for rows in accuracies.values())
    if any("local-twice" in rows for rows in accuracies.values()):
        line = next(line for line in text.splitlines() if "but not than `local-twice`" in line)
        said = {
            (row, title)
            for names, title in re.findall(r"((?:`[\w.-]+`(?:, | and )?)+) \(([^)]*)\)", line)
            for row in re.findall(r"`([\w.-]+)`", names)
        } - {("local-twice", benchmark.rows["local-twice"].note)}
        found = {
            (row, benchmark.columns[setting].title)
            for setting, rows in accuracies.items()
            for row, sign in outcomes(rows, "local-twice").items()
            if signs[setting][row] == "▲" and sign != "▲"
        }
        assert said == found
    slow = "- At a learning rate below 0.1"
    line = next((line for line in text.splitlines() if line.startswith(slow)), "")
    said = {
        (row, title)
        for names, title in re.findall(r"((?:`[\w.-]+`(?:, | and )?)+) \(([^)]*)\)", line)
        for row in re.findall(r"`([\w.-]+)`", names)
    }
    assert said == {
        (row, benchmark.columns[setting].title)
        for setting, rows in signs.items()
        for row, sign in rows.items()
        if sign == "▼" and rate_of(page, setting, row) < 0.1
    }
    for sign, words in (("▲", "Better than"), ("▼", "Worse than"), ("=", "Practically equal to")):
        times = Counter(
            row for rows in signs.values() for row, found in rows.items() if found == sign
        )
        ran = Counter(row for rows in signs.values() for row in rows)
        line = next(line for line in text.splitlines() if line.startswith(f"- {words} `local`"))
        found = re.findall(r"`([\w.-]+)` in (\d+)(?: of (\d+))?", line)
        said = {row: (int(n), int(of or len(signs))) for row, n, of in found}
        assert said == {row: (times[row], ran[row]) for row in times}
