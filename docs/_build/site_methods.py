"""The table of methods in README.md, and the navigation of their pages.

The first lines of a page say what the clients share::

    ---
    shares: prototypes
    ---
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from markdown_tables import code, table

FOLDER = "reference/methods"
PAGES = Path(__file__).parents[1] / FOLDER
INDEX = f"{FOLDER}/index.md"
SHARES = re.compile(r"\A---\nshares: (\S.*)\n---\n")


def families(pages: Path = PAGES) -> dict[str, list[str]]:
    """Return the methods by what their clients share, the most frequent first.

    Raises:
        ValueError: A page does not say it.
    """
    found: dict[str, list[str]] = {}
    for page in sorted(pages.glob("*.md")):
        if page.name == "index.md":
            continue
        shares = SHARES.match(page.read_text(encoding="utf-8"))
        if shares is None:
            raise ValueError(
                f"{page.name} does not say what the clients share; its first lines are:\n"
                f"---\nshares: WHAT\n---\nknown: {', '.join(found)}"
            )
        found.setdefault(shares[1].strip(), []).append(page.stem)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def family_table() -> str:
    """Return the table of README.md."""
    rows = [(shared, ", ".join(map(code, names))) for shared, names in families().items()]
    return table(("clients share", "methods"), rows)


def add_to_navigation(nav: object) -> None:
    """Add the pages of the methods to the section of mkdocs.yml that has their index."""
    if isinstance(nav, Mapping):
        nav = [*nav.values()]
    if not isinstance(nav, list):
        return
    if INDEX in nav:
        nav += [f"{FOLDER}/{name}.md" for name in sorted(sum(families().values(), []))]
        return
    for part in nav:
        add_to_navigation(part)
