"""The table of combinations of methods, from the stored outcomes in tests/contract/mixing.txt."""

from __future__ import annotations

from pathlib import Path

from markdown_tables import code, table

STORED = Path(__file__).parents[2] / "tests/contract/mixing.txt"


def mixing_table() -> str:
    """Return how many combinations run and how many are refused, for each option.

    A line of the file that starts with ``--`` is an option. Any other one is a main method, and for
    each outcome the donors: ``MAIN | OUTCOME = DONOR DONOR | …``.
    """
    counts: dict[str, list[int]] = {}
    for line in STORED.read_text(encoding="utf-8").splitlines():
        if line.startswith("--"):
            found = counts.setdefault(line, [0, 0])
        for group in line.split(" | ")[1:]:
            outcome, _, donors = group.rpartition(" = ")
            found[outcome.startswith("refused")] += len(donors.split())
    rows = [
        (code(f"{option}={_donor(option)}"), str(run + refused), str(run), str(refused))
        for option, (run, refused) in counts.items()
    ]
    return table(("option", "combinations", "run", "refused"), rows)


def _donor(option: str) -> str:
    return "OTHER.TERM" if option == "--add local_loss" else "OTHER"
