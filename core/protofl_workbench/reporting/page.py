"""`protofl.report`: a page about runs or a study as one HTML file."""

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
from protofl.records.result import Result
from protofl.runs.recorded_run import Run
from protofl.system.version import __version__
from protofl_workbench.comparing.run_groups import RunLike, runs_in, sound_runs
from protofl_workbench.comparing.text_formats import write_output
from protofl_workbench.reporting.comparison_page import comparison_page
from protofl_workbench.reporting.inline_svg import Drawings
from protofl_workbench.reporting.page_parts import (
    Command,
    Fact,
    Page,
    Part,
    Picture,
    Section,
    Table,
)
from protofl_workbench.reporting.run_page import run_page

if TYPE_CHECKING:
    from jinja2 import Template

    from protofl_workbench.studies.study_result import StudyResult


KINDS = {Fact: "fact", Table: "table", Picture: "picture", Command: "command", str: "text"}


def report(
    runs: RunLike | Iterable[RunLike] | StudyResult,
    out: str | Path | None = None,
    *,
    title: str = "",
    baseline: str = "",
) -> str:
    """Write a page about runs as one HTML file, which needs no network.

    Args:
        runs: Runs, their folders, folders of runs, a sweep's folder, or results of `pf.run`. One
            run has a page of its own; several runs are compared. Runs may be unfinished. Or the
            result of `pf.reproduce`: our figures next to the published ones, and the runs.
        out: The file, which is replaced if it exists; by default no file is written.
        title: Heading of the page; by default it is made from the runs.
        baseline: The baseline of differences; default: as in `pf.compare`.

    Returns:
        The page.

    Raises:
        UsageError: A folder has no run, a file is damaged, the baseline is unknown, or the page
            cannot be written.

    Examples:
        >>> pf.report("runs/first", "first.html")  # doctest: +SKIP
    """
    drawings = Drawings()
    foot = f"Made by protofl {__version__} on {datetime.now():%Y-%m-%d at %H:%M}."
    page = _page(runs, drawings, foot, baseline)
    page.title = title or page.title
    text = _html(page, drawings)
    if out is not None:
        write_output(out, text)
    return text


def _page(
    about: RunLike | Iterable[RunLike] | StudyResult, drawings: Drawings, foot: str, baseline: str
) -> Page:
    """Return the page of a study, of one run, or of several runs."""
    if not isinstance(about, (Run, Result, str, Path, Iterable)):
        from protofl_workbench.reporting.study_page import study_page

        return study_page(about, drawings, foot, baseline)
    each = [about] if isinstance(about, (Run, Result, str, Path)) else about
    found = {run.folder.resolve(): run for one in each for run in runs_in(one)}
    if not found:
        raise UsageError("no run is given", do="give the folder of a run, or a folder of runs")
    if len(found) == 1:
        return run_page(next(iter(found.values())), drawings, foot)
    notes: list[str] = []
    sound = sound_runs(found.values(), notes)
    return comparison_page(sound, drawings, foot, baseline, notes)


def _html(page: Page, drawings: Drawings) -> str:
    """Render a page. All texts are escaped; only drawings are inserted as they are."""
    taken: set[str] = set()
    for section in page.sections:
        _set_anchor(section, taken)
    look = files("protofl_workbench.reporting") / "look"
    style, script = ((look / n).read_text(encoding="utf-8") for n in ("page.css", "page.js"))
    text = _template().render(page=page, drawings=drawings, style=style, script=script)
    return text.lstrip()


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
    runs = groupby(parts, key=lambda part: KINDS[type(part)])
    return [(kind, list(group)) for kind, group in runs]
