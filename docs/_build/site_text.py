"""Markdown out of docstrings, for the generated parts of the site."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from markdown_tables import code

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example", "Examples")
EXAMPLES = ("Example", "Examples")
DOCTEST = re.compile(r"\s+# doctest: .*")
CODE = re.compile(r"``([^`]+)``|`([^`]+)`")


def first_line(documented: object) -> str:
    """The first line of a docstring, without its full stop."""
    return next(iter((inspect.getdoc(documented) or "").splitlines()), "").rstrip(".")


def prose(docstring: str, link: Callable[[str], str] = code) -> str:
    """A docstring of the Google convention as Markdown.

    Args:
        docstring: The docstring, cleaned of its indentation.
        link: What stands in place of a name in backticks.
    """
    found: list[str] = []
    section = ""
    for line in [*docstring.splitlines(), ""]:
        inside = line.startswith("    ") or (section and not line)
        if section in EXAMPLES and not line.startswith("    "):
            found.append("```\n")
            section = ""
        if line.rstrip(":") in SECTIONS and line.endswith(":"):
            section = line.rstrip(":")
            found += ["", f"**{'Arguments' if section == 'Args' else section}**", ""]
            found += ["```py"] if section in EXAMPLES else []
        elif not section or not inside:
            section = ""
            found.append(line)
        elif section in ("Args", "Attributes", "Raises") and line[4:5] not in ("", " "):
            name, _, meaning = line.strip().partition(": ")
            found.append(f"- `{name}`: {meaning}")
        else:
            line = DOCTEST.sub("", line) if section in EXAMPLES else line
            found.append(line[4:] if section in ("Returns", "Yields", *EXAMPLES) else line[2:])
    parts = re.split(r"(^```py$.*?^```$)", "\n".join(found), flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [CODE.sub(lambda m: link(m[1] or m[2]), part) for part in parts[::2]]
    return re.sub(r"\n{3,}", "\n\n", "".join(parts)).strip()
