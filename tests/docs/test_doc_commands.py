"""Test that every command in the documentation parses."""

from __future__ import annotations

import re

import pytest
import typer
from doc_pages import DOCS, FENCE, ROOT, commands_of, is_placeholder, parse

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
ADDED = re.compile(r'^\[project.entry-points."protofl.commands"\]\n([\w-]+) = ', re.MULTILINE)
"""The command that a page's own package adds."""
SPAN = re.compile(r"(?<!`)`(protofl [^`]+)`(?!`)")


def typed(path):
    """Yield the commands of a page: in shell blocks and in running text."""
    text = path.read_text(encoding="utf-8")
    blocks = [code for language, code in FENCE.findall(text) if language in ("", "bash")]
    spans = [" ".join(span.split()) for span in SPAN.findall(FENCE.sub("", text))]
    added = ADDED.findall(text)
    for words in commands_of(blocks + spans):
        if not is_placeholder(words) and words[0] not in added:
            yield words


@pytest.mark.satellites
def test_every_command_can_be_typed():
    commands = [(path, words) for path in PAGES for words in typed(path)]
    assert len(commands) > 80 and {ROOT / "README.md", DOCS / "tutorials/first-run.md"} <= {
        p for p, _ in commands
    }
    wrong = []
    for path, words in commands:
        try:
            parse(words)
        except (typer.BadParameter.__mro__[1], AssertionError) as error:
            wrong.append(f"{path.relative_to(ROOT)}: {' '.join(words)}: {error}")
    assert not wrong


@pytest.mark.parametrize(
    "words", [["run", "local", "--drop-last", "true"], ["run", "--modles", "x"], ["rum", "local"]]
)
def test_a_wrong_one_is_noticed(words):
    mistake = typer.BadParameter.__mro__[1]
    with pytest.raises((mistake, AssertionError)):
        parse(words)
