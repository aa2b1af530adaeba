"""FedTGP's Table 10 from committed records: the table on docs/reference/published-tables.md."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import protofl as pf
from markdown_tables import table

RECORDS = Path(__file__).parents[1] / "reference/benchmark/table-10"
METHODS = ("fedproto", "fedtgp", "lg-fedavg", "feddistill", "local")


def accuracies(method: str) -> list[float]:
    """Return the test accuracy in % of each round of a record."""
    run = pf.load_run(RECORDS / f"{method}-pathological-s0")
    return [100 * row.test_accuracy for row in run.rows_of(0, evaluated=True)]


def table_10() -> str:
    """Return the records beside the published figures."""
    published = pf.reproduction("fedtgp/table-10").published
    rows = []
    for method in METHODS:
        rounds = accuracies(method)
        best = max(rounds)
        after = rounds.index(best) + 1
        shown = f"{rounds[-1]:.2f}", f"{fmean(rounds[-10:]):.2f}", f"{best:.2f} ({after})"
        rows.append((f"`{method}`", *shown, published.get((method, "pathological"), "–")))
    return table(("", "last", "ten", "best (round)", "published"), rows)
