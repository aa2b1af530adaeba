"""Test that lists on pages name everything that they claim to list."""

from __future__ import annotations

import re

import pytest
from doc_pages import DOCS

from protofl.hooks.discovery.kinds import KINDS
from protofl.hooks.discovery.registry import Registry


def ours(kind):
    """Return the names of protofl's plugins of a kind."""
    return {p.name for p in Registry().plugins(kind) if p.distribution.startswith("protofl")}


LISTS = {
    "tutorials/first-plugin.md": {*KINDS} - {"reproduction"},
    "background/architecture.md": ours("backend"),
}
"""{page: the names that it lists}."""


@pytest.mark.parametrize("page", LISTS)
def test_the_page_names_all(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    spans = {span for span in re.findall(r"`([^`\n]+)`", text)}
    assert LISTS[page] and LISTS[page] <= spans, sorted(LISTS[page] - spans)
