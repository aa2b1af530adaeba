"""Tests of a method's figures in the benchmark, from records with chosen accuracies."""

from __future__ import annotations

import numpy as np
import pytest
import site_cards
from benchmark_figures import benchmark_rows, settings_of
from measurements import Measurements

from protofl_workbench.reproductions.benchmark.benchmark_records import write_record
from protofl_workbench.reproductions.finding import find_reproduction

CLIENTS, SEEDS = 10, 3


@pytest.fixture(scope="module")
def benchmark():
    return find_reproduction("benchmark/regimes")


def record(method, setting, level):
    """Return a record in which clients have the level, about, and their own offsets."""
    runs = []
    for seed in range(SEEDS):
        own = np.random.default_rng(seed).uniform(-0.1, 0.1, CLIENTS)
        clients = {
            str(c): float(level + own[c] + 0.001 * seed * (level != 0.6)) for c in range(CLIENTS)
        }
        runs.append(
            {
                "seed": seed,
                "split": f"split {seed}",
                "clients": clients,
                "client_accuracy": float(np.mean([*clients.values()])),
                "upload_bytes": 20_000_000,
                "download_bytes": 10_000_000,
                "chosen_round": 5,
                "rounds": 9,
            }
        )
    base = {"method": method, "setting": setting, "scale": "paper", "definition": method}
    return base | {"lr": 0.06, "runs": runs}


@pytest.fixture
def runs(benchmark, tmp_path):
    """Return a folder of records: a method is better in one setting, and a row of it worse."""
    first, second, *_ = benchmark.columns
    for setting in (first, second):
        write_record(tmp_path, record("local", setting, 0.6))
    write_record(tmp_path, record("fedproto", first, 0.7))
    write_record(tmp_path, record("fedproto-head", second, 0.5))
    return tmp_path


def test_all_rows_of_a_method_are_on_its_page(benchmark, runs):
    settings = settings_of(benchmark, runs)
    rows = benchmark_rows("fedproto", benchmark, settings)
    titles = [column.title for column in benchmark.columns.values()][:2]
    found = [(title, standing.method, standing.outcome) for title, standing in rows]
    assert sorted(found) == sorted(
        [(titles[0], "fedproto", "better"), (titles[1], "fedproto-head", "worse")]
    )
    assert benchmark_rows("fedgh", benchmark, settings) == []


class Mine:
    """A method."""


def test_the_page_has_the_gaps(benchmark, runs):
    rows = benchmark_rows("fedproto", benchmark, settings_of(benchmark, runs))
    nothing = Measurements((), "local", (), None, {"cost": "no"}, {})
    name = benchmark.name
    card = site_cards.Card("fedproto", Mine, "", nothing, rows, name, [])
    text = site_cards.measured_sections(card).partition("## Benchmark")[2].partition("\n## ")[0]
    assert "| fedproto | +10.1 ± 0.2 ▲ | " in text and "| fedproto-head | -9.9 ± 0.2 ▼ | " in text
    assert "| 2 | 1 | 0.06 |" in text
    assert "`protofl reproduce benchmark/regimes --only fedproto`" in text
