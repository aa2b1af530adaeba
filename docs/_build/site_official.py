"""The table of each method's ``variant=official`` against its published code: official.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from markdown_tables import code, table

FILE = Path(__file__).with_name("official.toml")


@cache
def comparisons() -> dict[str, dict[str, Any]]:
    """Return {method: its comparison with the published code}, as official.toml explains it."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def official_table() -> str:
    """Return a row for each method with ``variant=official``."""
    rows = []
    for method, row in comparisons().items():
        ran = row["how"] == "run"
        rows.append(
            (
                f"[{method}]({method}.md)",
                _source(row),
                f"{row['rounds']} rounds, {row['clients']} clients" if ran else row["how"],
                _difference(row) if ran else "",
                f"{row['moved']:g}" if ran else "",
                _remarks(row),
            )
        )
    head = (
        "method",
        "published code",
        "compared",
        "largest difference",
        "moved",
        "options and remarks",
    )
    return table(head, rows)


def official_line(method: str) -> str:
    """Return the sentence of a method's page."""
    row = comparisons()[method]
    if row["how"] == "run":
        text = (
            f"`variant=official` was run beside {_source(row)} for {row['rounds']} rounds with "
            f"{row['clients']} clients: the largest difference of a client's weight is "
            f"{_difference(row)}, and weights moved by up to {row['moved']:g}"
        )
    else:
        text = f"`variant=official` was not run beside {_source(row)}: {row['how']}"
    remarks = _remarks(row)
    return f"{text} ([all methods](index.md#published-code)). {remarks}".strip()


def _difference(row: dict[str, Any]) -> str:
    return f"{row['difference']:.1e}" if row["difference"] else "0"


def _source(row: dict[str, Any]) -> str:
    if not row["code"]:
        return "the published code"
    commit = f" at {code(row['commit'])}" if row["commit"] else ""
    return f"[{row['code']}](https://github.com/{row['code']}){commit}"


def _remarks(row: dict[str, Any]) -> str:
    options = f"With {code(row['options'])}. " if row.get("options") else ""
    return f"{options}{row.get('note', '')}".strip()
