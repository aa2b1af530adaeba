"""`protofl.report`: a page about runs as one HTML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from protofl.errors import UsageError
from protofl.records.result import Result
from protofl.system.formatting import visible
from protofl.system.version import __version__
from protofl_workbench.comparing.figure_table import write_output
from protofl_workbench.comparing.run_groups import Labels, RunLike, runs_in, sound_runs
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.reporting.comparison_page import comparison_page
from protofl_workbench.reporting.page_parts import (
    Command,
    Drawings,
    Fact,
    Page,
    PageTable,
    Part,
    Picture,
    Section,
)
from protofl_workbench.reporting.run_page import run_page

if TYPE_CHECKING:
    from jinja2 import Template

KINDS = {Fact: "fact", PageTable: "table", Picture: "picture", Command: "command", str: "text"}


def report(
    runs: RunLike | Iterable[RunLike],
    out: str | Path | None = None,
    *,
    title: str = "",
    baseline: str = "",
    labels: Labels = (),
    note: Callable[[str], None] = lambda line: None,
) -> str:
    """Write a page about runs as one HTML file, which needs no network.

    Args:
        runs: Runs, their folders, folders of runs, a sweep's folder, or results of `pf.run`. One
            run has a page of its own; several runs are compared. Runs may be unfinished.
        out: The file, which is replaced if it exists; by default no file is written.
        title: Heading of the page; by default it is made from the runs.
        baseline: The baseline of differences; default: as in `pf.compare`.
        labels: {group: its name on the page}, see `pf.compare`.
        note: Takes a line for each group with a new name.

    Returns:
        The page.

    Raises:
        UsageError: A folder has no run, a file is damaged, the baseline is unknown, or the page
            cannot be written.

    Examples:
        >>> page = pf.report("runs/first", "first.html")
    """
    drawings = Drawings()
    foot = f"Made by protofl {__version__} on {datetime.now():%Y-%m-%d at %H:%M}."
    page = page_about(runs, drawings, foot, baseline, labels, note)
    page.title = title or page.title
    text = html_of(page, drawings)
    if out is not None:
        write_output(out, text)
    return text


def page_about(
    about: RunLike | Iterable[RunLike],
    drawings: Drawings,
    foot: str,
    baseline: str = "",
    labels: Labels = (),
    note: Callable[[str], None] = lambda line: None,
) -> Page:
    """Return the page of one run, or of several runs."""
    each = [about] if isinstance(about, (Run, Result, str, Path)) else about
    runs_by_folder = {run.folder.resolve(): run for one in each for run in runs_in(one)}
    if not runs_by_folder:
        raise UsageError("no run is given", do="give the folder of a run, or a folder of runs")
    if len(runs_by_folder) == 1:
        if labels:
            raise UsageError(
                "--label names the groups of several runs, and one run was given",
                do="leave it out; --title changes the heading",
            )
        return run_page(next(iter(runs_by_folder.values())), drawings, foot)
    notes: list[str] = []
    sound = sound_runs(runs_by_folder.values(), notes)
    return comparison_page(sound, drawings, foot, baseline, notes, labels, note)


def html_of(page: Page, drawings: Drawings) -> str:
    """Render a page. All texts are escaped; only drawings are inserted as they are.

    Args:
        page: The page.
        drawings: The figures of the page.
    """
    taken: set[str] = set()
    for section in page.sections:
        _set_anchor(section, taken)
    look = files("protofl_workbench.reporting") / "look"
    style, script = ((look / n).read_text(encoding="utf-8") for n in ("page.css", "page.js"))
    text = _template().render(page=page, drawings=drawings, style=style, script=script)
    return visible(text.lstrip())


def _set_anchor(section: Section, taken: set[str]) -> None:
    """Give a section and its subsections unique anchors."""
    stem = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"
    number, anchor = 2, stem
    while anchor in taken:
        anchor, number = f"{stem}-{number}", number + 1
    taken.add(anchor)
    section.anchor = anchor
    for one in section.inner:
        _set_anchor(one, taken)


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
    """Return consecutive parts of one kind together, with the name of the kind."""
    runs = groupby(parts, key=lambda part: KINDS[str if isinstance(part, str) else type(part)])
    return [(kind, list(group)) for kind, group in runs]
