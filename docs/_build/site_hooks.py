"""What mkdocs calls while it builds the site: fills in the generated parts of pages.

A page says where with a comment on a line of its own. ``<!-- generated: NAME [ARGUMENT] -->`` is
filled in when the site is built. ``<!-- kept: NAME [ARGUMENT] -->`` is followed by what was
generated last, up to ``<!-- end -->``, so that the page can be read in the repository; write it
anew with ``python docs/_build/site_hooks.py``. Nothing here needs mkdocs, so tests can read the
pages without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from site_api import api
from site_commands import command_reference
from site_hook_reference import hook_reference
from site_plugins import method_table, plugin_reference, wire_table

DOCS = Path(__file__).parents[1]
MARK = re.compile(r"^<!-- generated: (\w+) ?([\w./-]*) -->$", re.MULTILINE)
KEPT = re.compile(r"^(<!-- kept: (\w+) ?([\w./-]*) -->\n).*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def figure(path: str) -> str:
    """A drawing set into the page, so that it takes the page's colours."""
    return (DOCS / path).read_text(encoding="utf-8").strip()


PARTS: dict[str, Callable[..., str]] = {
    "api": api,
    "commands": command_reference,
    "figure": figure,
    "hooks": hook_reference,
    "methods": method_table,
    "plugins": plugin_reference,
    "wire": wire_table,
}


def kept(markdown: str) -> str:
    """A page with its kept parts as they are now."""

    def made(found: re.Match[str]) -> str:
        return f"{found[1]}\n{_part(found[2], found[3])}\n\n<!-- end -->"

    return KEPT.sub(made, markdown)


def whole(markdown: str) -> str:
    """A page with all its generated parts filled in."""
    return MARK.sub(lambda m: _part(m[1], m[2]), kept(markdown))


def _part(name: str, argument: str) -> str:
    text = PARTS[name](*filter(None, (argument,)))
    return "\n".join(line.rstrip() for line in text.splitlines())


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called by mkdocs for every page."""
    return whole(markdown)


if __name__ == "__main__":
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (now := kept(text)) != text:
            page.write_text(now, encoding="utf-8")
            print(page)
