"""A page about runs: built, and rendered as one HTML file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from protofl.errors import UsageError
from protofl.records.folder.result import Result
from protofl.runs.reuse.run import Run
from protofl.system.files.atomic import replacing
from protofl.system.version import __version__
from protofl_workbench.comparing.run_groups import RunLike, runs_in
from protofl_workbench.reporting.drawing import Drawings
from protofl_workbench.reporting.one import page_of
from protofl_workbench.reporting.parts import Command, Fact, Page, Part, Picture, Section, Table

if TYPE_CHECKING:
    from jinja2 import Template

    from protofl_workbench.studies.result import StudyResult


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
    look = files("protofl_workbench.reporting") / "look"
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
        loader=PackageLoader("protofl_workbench.reporting", "look"),
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


def report(
    runs: RunLike | Iterable[RunLike] | StudyResult,
    out: str | Path | None = None,
    *,
    title: str = "",
) -> str:
    """Write a page about runs: HTML in one file, which needs no network.

    Args:
        runs: Runs, their folders, folders in which they lie or a sweep's, or what `pf.run`
            returned. One run has a page of its own, of several there is one that compares them.
            They may be going on. Or what `pf.reproduce` returned: ours beside the published
            figures, and the runs.
        out: The file to write, with whatever lies there replaced; none for the text alone.
        title: The page's heading, in place of one made of what the runs are.

    Returns:
        The page.

    Raises:
        UsageError: A folder holds no run, a file of one is damaged, or the page can't be written.

    Examples:
        >>> pf.report("runs/first", "first.html")  # doctest: +SKIP
    """
    drawings = Drawings()
    foot = f"Made by protofl {__version__} on {datetime.now():%Y-%m-%d at %H:%M}."
    page = _page(runs, drawings, foot)
    page.title = title or page.title
    text = html(page, drawings)
    if out is not None:
        write(text, Path(out))
    return text


def _page(about: RunLike | Iterable[RunLike] | StudyResult, drawings: Drawings, foot: str) -> Page:
    """The page of a study, of one run, or of several."""
    if not isinstance(about, (Run, Result, str, Path, Iterable)):
        from protofl_workbench.reporting.of_study import page_of_study

        return page_of_study(about, drawings, foot)
    each = [about] if isinstance(about, (Run, Result, str, Path)) else about
    found = {run.folder.resolve(): run for one in each for run in runs_in(one)}
    if not found:
        raise UsageError("no run is given", do="give the folder of a run, or one with runs in it")
    if len(found) == 1:
        return page_of(next(iter(found.values())), drawings, foot)
    from protofl_workbench.reporting.several import page_of_all

    return page_of_all([*found.values()], drawings, foot)


def write(text: str, path: Path) -> None:
    """Write a page; it takes its place in one step.

    Raises:
        UsageError: It can't be written.
    """
    try:
        with replacing(path.expanduser()) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path} can't be written: {error.strerror or error}", do="choose another file"
        ) from None
