"""Tests of what agents and scripts read: llms.txt, AGENTS.md, exit codes, events."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import site_llms
from doc_pages import DOCS, ROOT

from protofl_cli.json import event_lines

SCRIPTS = (DOCS / "how-to/use-in-scripts.md").read_text(encoding="utf-8")
UPDATE = "run python docs/_build/site_hooks.py"


def test_llms_txt_lists_every_page():
    text = (DOCS / "llms.txt").read_text(encoding="utf-8")
    assert text == site_llms.llms_text(), UPDATE
    links = re.findall(r"^- \[[^]]+\]\(([^)]+)\)", text, re.MULTILINE)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert len(links) == len({*links}) and {*links} == pages


def test_llms_txt_has_the_form_of_llmstxt_org():
    """A heading, a quotation, paragraphs, then sections of links alone."""
    head, *sections = re.split(r"^## ", site_llms.llms_text(), flags=re.MULTILINE)
    assert re.match(r"# protofl\n\n(> .*\n)+\n", head)
    for section in sections:
        title, *lines = section.strip().split("\n")
        assert title and not lines[0]
        assert all(re.match(r"- \[[^]]+\]\([^)]+\)(: .+)?$", line) for line in lines[1:]), section


def test_the_table_of_events_has_every_event():
    source = Path(event_lines.__file__).read_text(encoding="utf-8")
    names = {*re.findall(r'self\._write\(\s*"(\w+)"', source)}
    table = SCRIPTS.partition("| event |")[2]
    assert names == {*re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)}


@pytest.mark.parametrize("page", ["how-to/use-in-scripts.md", "reference/commands.md"])
def test_pages_name_the_exit_codes(page):
    from protofl import RunFailure, UsageError
    from protofl_cli.app import CLOSED
    from protofl_cli.interrupts import Terminated, interrupted

    codes = {0, RunFailure.exit_code, UsageError.exit_code, CLOSED}
    codes |= {Terminated.exit_code, interrupted(KeyboardInterrupt())}
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^\| (\d+) \|| (\d+): [a-z]", text, re.MULTILINE)
    assert {int(a or b) for a, b in found} >= codes


def test_agents_md_is_true():
    """Its commands are parsed in test_doc_commands.py, its links here."""
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    folders = re.findall(r"`((?:core|plugins|cli|tests|docs)/[a-z_/.]*)`", text)
    assert len(links) > 6 and len(folders) > 6
    assert not [path for path in (*links, *folders) if not (ROOT / path).exists()]
    assert "OMP_NUM_THREADS" in (ROOT / "conftest.py").read_text(encoding="utf-8")
