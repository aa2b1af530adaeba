"""The hand-written page of a method: a Markdown file with the method's name.

The file lies next to the module of the method, as in the wheel of protofl, or in the folder
``docs/reference/methods`` of the checkout in which the module lies.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from inspect import getdoc
from pathlib import Path

IN_CHECKOUT = Path("docs/reference/methods")
"""Folder of the pages in a checkout."""

INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages: they do not belong to the checkout that a user keeps them in."""

SHARES = re.compile(r"\A---\nshares: (\S.*)\n---\n")
"""First lines of a page: they say what the clients share."""

_FIRST_LINES = re.compile(r"\A---\n.*?^---\n", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r"\A\s*# [^\n]*\n")


@dataclass(frozen=True)
class MethodPage:
    """The page of a method.

    Attributes:
        text: Markdown below the title; see `page_of`.
        shares: What the clients share; empty if the page does not say it.
        written: True if the method has a page; False if the text is that of its docstrings.
    """

    text: str
    shares: str
    written: bool


def page_of(name: str, method: type) -> MethodPage:
    """Return the page of a method, without its first lines and title.

    A method without a page has its docstring; see `docstring_of`.

    Args:
        name: Name of the method.
        method: The class.
    """
    path = page_file(name, method)
    if path is None:
        return MethodPage(_docstring(method), "", written=False)
    text = path.read_text(encoding="utf-8")
    shares = SHARES.match(text)
    body = _TITLE.sub("", _FIRST_LINES.sub("", text))
    return MethodPage(body.strip(), shares[1].strip() if shares else "", written=True)


def page_file(name: str, method: type) -> Path | None:
    """Return the file of a method's page, or None if it has none."""
    module = getattr(sys.modules.get(method.__module__), "__file__", None)
    if module is None:
        return None
    path = Path(module)
    folders = [path.parent]
    if not INSTALLED & {*path.parts}:
        folders += [parent / IN_CHECKOUT for parent in path.parents]
    files = (folder / f"{name}.md" for folder in folders)
    return next((file for file in files if file.is_file()), None)


def docstring_of(method: type) -> str:
    """Return the docstring that cites a method's paper, as it is written.

    It is that of the module. In a module of several methods each class has its own, which then has
    more than one paragraph.
    """
    own = getdoc(method) or ""
    if "\n\n" in own:
        return own
    return getattr(sys.modules.get(method.__module__), "__doc__", None) or own


def _docstring(method: type) -> str:
    """Return the docstring as Markdown; indented lines, such as equations, are code blocks."""
    return docstring_of(method).replace("``", "`").strip()
