"""Find the code blocks of pages, and the commands in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

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
        if start == 0 or line[:start].endswith("/"):
            yield shlex.split(line[start:], comments=True)[1:]
