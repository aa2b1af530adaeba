"""Tests of what agents and scripts read: llms.txt, AGENTS.md, schemas, exit codes, events."""

from __future__ import annotations

import re
from typing import get_args

import pytest
import site_json
import site_llms
from doc_pages import DOCS, ROOT

from protofl_cli.json.events import EventLine

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


@pytest.mark.satellites
def test_the_schemas_are_those_of_the_code():
    stored = {path.stem: path.read_text(encoding="utf-8") for path in site_json.FOLDER.iterdir()}
    made = {name: site_json.text_of(schema) for name, schema in site_json.schemas().items()}
    assert stored == made, UPDATE


def test_the_page_describes_every_key():
    page = site_json.json_reference()
    for name, schema in site_json.schemas().items():
        section = page.partition(f"{{ #{name} }}")[2].partition("\n## ")[0]
        assert f"[{name}.json](schemas/{name}.json)" in section
        for key in schema.get("properties", {}):
            assert f"| `{key}` |" in section, (name, key)


def test_the_table_of_events_has_every_event():
    union, *_ = get_args(EventLine)
    names = {get_args(each.model_fields["event"].annotation)[0] for each in get_args(union)}
    rows = {*re.findall(r"^\| `(\w+)` \|", SCRIPTS, re.MULTILINE)}
    assert names == rows


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
