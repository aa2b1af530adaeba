"""What mkdocs calls while it builds the site: fills in the generated parts of pages.

A page says where with a comment on a line of its own: ``<!-- generated: NAME [ARGUMENT] -->``.
Nothing here needs mkdocs, so tests can read the pages without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from site_commands import command_reference
from site_hook_reference import hook_reference
from site_plugins import method_table, plugin_reference, wire_table

DOCS = Path(__file__).parents[1]
MARK = re.compile(r"^<!-- generated: (\w+) ?([\w./-]*) -->$", re.MULTILINE)


def figure(path: str) -> str:
    """A drawing set into the page, so that it takes the page's colours."""
    return (DOCS / path).read_text(encoding="utf-8").strip()


PARTS: dict[str, Callable[..., str]] = {
    "commands": command_reference,
    "figure": figure,
    "hooks": hook_reference,
    "methods": method_table,
    "plugins": plugin_reference,
    "wire": wire_table,
}


def whole(markdown: str) -> str:
    """A page with its generated parts filled in."""
    return MARK.sub(lambda m: PARTS[m[1]](*filter(None, (m[2],))), markdown)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called by mkdocs for every page."""
    return whole(markdown)
