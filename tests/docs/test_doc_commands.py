"""Test that every command in the documentation parses."""

from __future__ import annotations

import re
from functools import cache

import pytest
import typer
from doc_pages import DOCS, FENCE, ROOT, commands_of

from protofl_cli.app import app

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
SPAN = re.compile(r"(?<!`)`(protofl [^`]+)`(?!`)")
OPEN = ("…", "[", "NAME", "COMMAND", "KIND", "YOURS", "GROUP")
"""Strings that mark a placeholder in a command."""


def typed(path):
    """Yield the commands of a page: in shell blocks and in running text."""
    text = path.read_text(encoding="utf-8")
    blocks = [code for language, code in FENCE.findall(text) if language in ("", "bash")]
    spans = [" ".join(span.split()) for span in SPAN.findall(FENCE.sub("", text))]
    for words in commands_of(blocks + spans):
        if not any(mark in word for word in words for mark in OPEN):
            yield words


@cache
def whole():
    return typer.main.get_command(app)


def parse(words):
    """Parse a command line without running it."""
    command = whole()
    context = command.make_context("protofl", [], resilient_parsing=True)
    while hasattr(command, "list_commands"):
        if words[0] in ("--help", "--version"):
            return
        typed, (name, command, words) = words[0], command.resolve_command(context, words)
        assert command is not None, f"there is no command {typed!r}"
        named = not words or hasattr(command, "list_commands")  # a command that is only mentioned
        context = command.make_context(name, list(words), parent=context, resilient_parsing=named)


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
