"""Test that the page of the record names every figure, stage and summary key."""

from __future__ import annotations

import re

import pytest
from doc_pages import DOCS

from protofl.federation.round.round_totals import STAGES
from protofl.records.row import Figure, Row
from protofl.records.schema import Summary

PAGE = (DOCS / "reference/record.md").read_text(encoding="utf-8")
WORDS = {word for span in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"\w+", span)}
FIGURES = [name for name, value in vars(Row).items() if isinstance(value, Figure)]


@pytest.mark.parametrize("name", [*FIGURES, *STAGES, *Summary.model_fields])
def test_the_page_names_it(name):
    assert name in WORDS
