"""Tests that the glossary has few words, and that the public interface is made of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import protofl as pf
from protofl.hooks.discovery.kinds import KINDS
from protofl.system.options.table import OPTIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
WORDS = re.findall(r"^- \*\*(.+?)\*\*: ", PAGE, re.MULTILINE)


def test_there_are_few_words_in_order():
    assert len(WORDS) <= 31 and [*dict.fromkeys(WORDS)] == WORDS == sorted(WORDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_plugin_is_a_word(kind):
    assert kind.replace("-", " ").replace("dataset", "data set") in WORDS


@pytest.mark.parametrize("group", sorted({o.panel for o in OPTIONS.values() if o.panel}))
def test_every_group_of_options_is_explained(group):
    assert f"*{group}*" in PAGE.replace("\n  ", " ")


@pytest.mark.parametrize("option", [n for n, o in OPTIONS.items() if o.chooses and o.panel])
def test_every_option_that_chooses_a_plugin_is_explained(option):
    flag = OPTIONS[option].flag or option
    assert f"`--{flag.replace('_', '-')}`" in PAGE or f"`--{flag.replace('_', '-')};" in PAGE


@pytest.mark.parametrize("name", [n for n in pf.__all__ if n != "__version__"])
def test_every_public_name_is_explained(name):
    assert f"`pf.{name}`" in PAGE


def test_the_site_shows_it():
    assert "Glossary: reference/glossary.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
