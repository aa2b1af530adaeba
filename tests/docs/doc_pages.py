"""Find the code blocks of pages and the commands in them, and parse commands."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import typer

from protofl_cli.app import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```([a-z]*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks_of(path, language):
    """Return the code blocks of a page in one language."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return [code for found, code in FENCE.findall(text) if found == language]


def commands_of(blocks):
    """Yield the words of each ``protofl …`` line, without comments, with continued lines joined."""
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        start = line.find("protofl ")
        if start == 0 or (start > 0 and line[start - 1] == "/"):
            words = shlex.split(line[start:], comments=True)[1:]
            shell = next((n for n, word in enumerate(words) if word in SHELL), len(words))
            yield words[:shell]


SHELL = ("|", ">", "2>")
"""Words at which a command ends: pipes and redirections."""


OPEN = ("…", "[", "NAME", "COMMAND", "KIND", "YOURS", "GROUP")
"""Strings that mark a placeholder in a command."""


def is_placeholder(words):
    """Return True if a command line has a placeholder, as ``NAME``."""
    return any(mark in word for word in words for mark in OPEN)


@cache
def whole():
    return typer.main.get_command(app)


def parse(words):
    """Parse a command line without running it."""
    words = [word for word in words if not word.startswith("--help")]
    command = whole()
    context = command.make_context("protofl", [], resilient_parsing=True)
    while hasattr(command, "list_commands"):
        if not words or words[0] in ("--version", "--install-completion", "--show-completion"):
            return
        typed, (name, command, words) = words[0], command.resolve_command(context, words)
        assert command is not None, f"there is no command {typed!r}"
        named = not words or hasattr(command, "list_commands")  # a command that is only mentioned
        context = command.make_context(name, list(words), parent=context, resilient_parsing=named)
