"""Tests of a method's figures in the benchmark, from records with chosen accuracies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import site_cards
from benchmark_figures import BENCHMARK, benchmark_rows, settings_of
from measurements import Measurements

from protofl_workbench.reproductions.benchmark.benchmark_records import write_record
from protofl_workbench.reproductions.finding import find_reproduction

CLIENTS, SEEDS = 10, 3


@pytest.fixture(scope="module")
def benchmark():
    return find_reproduction(BENCHMARK)


def record(method, setting, level, *, noise=0.0, **more):
    """Return a record in which clients have the level and their own offsets, or a refusal."""
    base = {"method": method, "setting": setting, "scale": "paper", "definition": method} | more
    if level is None:
        return base
    runs = []
    for seed in range(SEEDS):
        own = np.random.default_rng(seed).uniform(-0.1, 0.1, CLIENTS)
        extra = noise * np.random.default_rng(99 + seed).choice([-1, 1], CLIENTS)
        clients = {str(c): float(level + own[c] + extra[c]) for c in range(CLIENTS)}
        mean = float(np.mean([*clients.values()]))
        runs.append(
            {
                "seed": seed,
                "split": f"split {seed}",
                "clients": clients,
                "test_accuracy": mean,
                "client_test_accuracy": mean,
                "global_accuracy": 0.3,
                "upload_bytes": 2_000_000,
                "download_bytes": 1_000_000,
                "chosen_round": 5,
                "rounds": 9,
                "seconds_per_round": 0.5,
                "validation_curve": [mean],
            }
        )
    return base | {"lr": 0.06, "runs": runs}


@pytest.fixture
def runs(benchmark, tmp_path):
    """Return a folder of runs: one method better, one worse, one equal, and one that is refused."""
    first, second, third, *_ = benchmark.columns
    for setting in (first, second, third):
        write_record(tmp_path, record("local", setting, 0.6))
    write_record(tmp_path, record("mine", first, 0.7))
    write_record(tmp_path, record("mine", second, 0.5))
    write_record(tmp_path, record("mine", third, 0.6, noise=0.01))
    fourth = [*benchmark.columns][3]
    write_record(tmp_path, record("mine", fourth, None, refused="it needs one architecture"))
    return tmp_path


def test_a_method_against_local(benchmark, runs):
    settings = settings_of(benchmark, runs)
    rows = benchmark_rows("mine", benchmark, settings)
    assert [row.setting for row in rows] == [*benchmark.columns][:4]
    outcomes = [row.against_local for row in rows]
    assert outcomes == ["better", "worse", "no significant difference", ""]
    better, *_, refused = rows
    assert better.accuracy - better.local == pytest.approx(0.1)
    assert better.low < better.accuracy < better.high
    assert (better.rank, better.ranked, better.seeds) == (1, 2, 3)
    assert (better.upload, better.download) == (2_000_000, 1_000_000)
    assert (refused.seeds, refused.accuracy, refused.reason) == (
        0,
        None,
        "it needs one architecture",
    )
    assert benchmark_rows("local", benchmark, settings)[0].against_local == ""
    assert benchmark_rows("other", benchmark, settings) == []


class Mine:
    """A method."""


def test_the_page_says_when_a_method_works(benchmark, runs):
    settings = settings_of(benchmark, runs)
    nothing = Measurements((), "local", (), None, {"cost": "no"}, {})
    settings[0] = replace(settings[0], baseline="`local` is weak")
    rows = benchmark_rows("mine", benchmark, settings)
    card = site_cards.Card("mine", Mine, "", nothing, rows, [])
    text = site_cards.measured_sections(card).partition("## Benchmark")[2].partition("\n## ")[0]
    labels = [column.label for column in benchmark.columns.values()]
    assert f"- Significantly more accurate than `local`: {labels[0]}.\n" in text
    assert f"- Significantly less accurate than `local`: {labels[1]}.\n" in text
    assert f"- Not significantly different from `local`: {labels[2]}.\n" in text
    assert f"- {labels[3]}: it needs one architecture.\n" in text
    assert text.count("`local` is weak") == 1 and f"- {labels[0]}: `local` is weak.\n" in text
    own = rows[0]
    assert f"| {labels[0]} | {100 * own.accuracy:.1f} | " in text
    assert "| 1 of 2 | 2 | 1 |" in text
    assert "`protofl reproduce benchmark/htfl --only mine`" in text
