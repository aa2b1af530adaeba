"""Tests of the table of each method's ``variant=official`` against its published code."""

from __future__ import annotations

import re

import pytest
import site_official
from doc_pages import DOCS
from site_plugins import option_table

import protofl as pf
from protofl.hooks.discovery.registry import Registry

ROWS = site_official.comparisons()
HOW = ("run", "read, not run", "from memory")


def with_variants():
    """Return the names of protofl's methods that have ``variant=official``."""
    registry = Registry()
    ours = [p.name for p in registry.plugins("method") if p.distribution.startswith("protofl")]
    configs = {name: getattr(registry.load("method", name), "Config", object) for name in ours}
    return sorted(name for name, config in configs.items() if issubclass(config, pf.VariantConfig))


def test_every_method_with_a_variant_has_a_row():
    assert [*ROWS] == with_variants()


@pytest.mark.parametrize("method", ROWS)
def test_a_row_says_what_was_compared(method):
    row = ROWS[method]
    assert row["how"] in HOW
    assert row["how"] == "from memory" or re.fullmatch("[0-9a-f]{7}", row["commit"])
    if row["how"] == "run":
        assert row["rounds"] >= 2 and row["clients"] >= 2
        assert row["difference"] < 1e-6 * max(1, row["moved"]) and row["moved"] > 0.1
    else:
        assert row["note"] and not {"difference", "moved"} & {*row}


@pytest.mark.parametrize("method", ROWS)
def test_clients_start_alike_where_they_do_in_the_published_code(method):
    config = Registry().load("method", method).Config
    assert config.official.get("same_init", False) == ROWS[method].get("same_init", False)


@pytest.mark.parametrize("method", ROWS)
def test_the_page_has_the_line_of_its_row(method):
    page = (DOCS / f"reference/methods/{method}.md").read_text(encoding="utf-8")
    assert f"<!-- generated: options {method} -->" in page
    assert site_official.official_line(method) in option_table(method)
    assert f"[{method}]({method}.md)" in site_official.official_table()
