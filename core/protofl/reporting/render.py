"""A page as HTML: the template, its style and its script in one file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING

from protofl.reporting.drawing import Drawings
from protofl.reporting.parts import Command, Fact, Page, Part, Picture, Section, Table

if TYPE_CHECKING:
    from jinja2 import Template

KINDS = {Fact: "fact", Table: "table", Picture: "picture", Command: "command", str: "text"}


def html(page: Page, drawings: Drawings) -> str:
    """The page.

    Args:
        page: What stands in it; all its texts are escaped, drawings alone are taken as they are.
        drawings: The figures in it, for their colours.
    """
    taken: set[str] = set()
    for section in page.sections:
        _anchor(section, taken)
    look = files("protofl.reporting") / "look"
    return (
        _template()
        .render(
            page=page,
            drawings=drawings,
            style=(look / "page.css").read_text(encoding="utf-8"),
            script=(look / "page.js").read_text(encoding="utf-8"),
        )
        .lstrip()
    )


def _anchor(section: Section, taken: set[str]) -> None:
    """Give a section and those within it addresses, of which no two are the same."""
    stem = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"
    number, anchor = 2, stem
    while anchor in taken:
        anchor, number = f"{stem}-{number}", number + 1
    taken.add(anchor)
    section.anchor = anchor
    for one in section.inner:
        _anchor(one, taken)


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("protofl.reporting", "look"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["groups"] = _groups
    return environment.get_template("page.html.jinja")


def _groups(parts: Iterable[Part]) -> list[tuple[str, list[Part]]]:
    """Parts of one kind that stand side by side, with the kind's name."""
    runs = groupby(parts, key=lambda part: KINDS[type(part)])
    return [(kind, list(group)) for kind, group in runs]
