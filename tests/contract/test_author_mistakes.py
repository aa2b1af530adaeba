"""Every mistake is found before training, and its message says what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from author_mistakes import everything, in_a_cell

import protofl as pf
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy
from protofl.testing.toy_plugins import Prototypes

PAGE = Path(__file__).parents[2] / "docs/how-to/fix-a-method.md"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return everything(tmp_path_factory.mktemp("mistakes"))


def test_each_names_the_hook_and_what_to_do(found):
    for mistake, told in found:
        label = f"{mistake.hook}, {mistake.words}: {told}"
        if told.error is None:
            assert len(told.notes) == 1 and mistake.hook in told.notes[0], label
            continue
        assert isinstance(told.error, pf.UsageError), label
        assert mistake.hook in told.error.what, label
        assert told.error.near and told.error.do, label
        assert len(str(told.error)) < 900, label


def test_the_page_quotes_their_messages(found):
    said = {(f"`{m.hook}`", m.words): in_a_cell(told) for m, told in found}
    rows = re.findall(r"^\| (`\w+`) \| (.+?) \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(rows) >= 10
    assert {row[:2]: row[2] for row in rows} == {row[:2]: said.get(row[:2]) for row in rows}


def test_what_hurts_and_is_allowed_is_a_note(found):
    notes = {m.words for m, told in found if told.error is None}
    assert notes == {
        "float64",
        "a weight made with `.item()`",
        "a draw",
        "no declaration",
        "`upload_paylod`, misspelt",
    }


def test_the_sound_method_passes_without_a_word(tmp_path):
    notes = []
    plan = toy.make_plan("mine", tmp_path, extra={("method", "mine"): Prototypes})
    dry_run(plan, notes.append)
    assert notes == []
