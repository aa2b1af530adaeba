"""`protofl.report`: a page about runs or a reproduction as one HTML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
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
from protofl_workbench.reporting.number_formats import count, integer, sentence
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
from protofl_workbench.reproductions.reproduction_figures import figure_title, unit_of
from protofl_workbench.reproductions.reproduction_pictures import figures_of
from protofl_workbench.reproductions.reproduction_texts import headings, lines_of

if TYPE_CHECKING:
    from jinja2 import Template

    from protofl_workbench.reproductions.reproduction_result import CellResult, ReproductionResult


KINDS = {Fact: "fact", PageTable: "table", Picture: "picture", Command: "command", str: "text"}


def report(
    runs: RunLike | Iterable[RunLike] | ReproductionResult,
    out: str | Path | None = None,
    *,
    title: str = "",
    baseline: str = "",
    labels: Labels = (),
    order: str | Sequence[str] = (),
    note: Callable[[str], None] = lambda line: None,
) -> str:
    """Write a page about runs as one HTML file, which needs no network.

    Args:
        runs: Runs, their folders, folders of runs, a sweep's folder, or results of `pf.run`. One
            run has a page of its own; several runs are compared. Runs may be unfinished. Or the
            result of `pf.reproduce`: our figures next to the published ones, and the runs.
        out: The file, which is replaced if it exists; by default no file is written.
        title: Heading of the page; by default it is made from the runs.
        baseline: The baseline of differences; default: as in `pf.compare`.
        labels: {group: its name on the page}, see `pf.compare`.
        order: Names of groups in the order in which the page shows them, see `pf.compare`. The
            i-th name has colour i in all figures, also on other pages with this order.
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
    page = page_about(runs, drawings, foot, baseline, labels, order, note)
    page.title = title or page.title
    text = html_of(page, drawings)
    if out is not None:
        write_output(out, text)
    return text


def page_about(
    about: RunLike | Iterable[RunLike] | ReproductionResult,
    drawings: Drawings,
    foot: str,
    baseline: str = "",
    labels: Labels = (),
    order: str | Sequence[str] = (),
    note: Callable[[str], None] = lambda line: None,
) -> Page:
    """Return the page of a reproduction, of one run, or of several runs."""
    if not isinstance(about, (Run, Result, str, Path, Iterable)):
        return reproduction_page(about, drawings, foot, baseline, labels, order, note)
    each = [about] if isinstance(about, (Run, Result, str, Path)) else about
    runs_by_folder = {run.folder.resolve(): run for one in each for run in runs_in(one)}
    if not runs_by_folder:
        raise UsageError("no run is given", do="give the folder of a run, or a folder of runs")
    if len(runs_by_folder) == 1:
        if labels or order:
            flag, does = ("--label", "names") if labels else ("--order", "sorts")
            raise UsageError(
                f"{flag} {does} the groups of several runs, and one run was given",
                do="leave it out; --title changes the heading",
            )
        return run_page(next(iter(runs_by_folder.values())), drawings, foot)
    notes: list[str] = []
    sound = sound_runs(runs_by_folder.values(), notes)
    return comparison_page(sound, drawings, foot, baseline, notes, labels, order, note)


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


def reproduction_page(
    result: ReproductionResult,
    drawings: Drawings,
    foot: str,
    baseline: str = "",
    labels: Labels = (),
    order: str | Sequence[str] = (),
    note: Callable[[str], None] = lambda line: None,
) -> Page:
    """Return the page of a reproduction.

    Args:
        result: The result so far.
        drawings: The figures of the page.
        foot: Last line.
        baseline: The baseline of differences; empty for the default one.
        labels: New names of groups of runs.
        order: Order of groups of runs.
        note: Takes a line for each group with a new name.
    """
    folders = dict.fromkeys(e.folder for e in result.entries.values() if e.folder is not None)
    notes: list[str] = []
    runs = sound_runs(map(Run.of, folders), notes)
    page = Page("", "", "", "", [], [], foot)
    if runs:
        page = comparison_page(runs, drawings, foot, baseline, (), labels, order, note)
    cells = [entry for entry in result.entries.values() if entry.state != "empty"]
    finished = [entry for entry in cells if entry.state in ("done", "not reached")]
    page.title = result.reproduction.heading
    page.kicker = f"protofl · {result.reproduction.name}"
    texts = ("; ".join(result.facts), result.conditions)
    page.lead = " ".join(f"{sentence(text)}." for text in texts if text)
    page.state = "" if len(finished) == len(cells) else f"{len(finished)} of {len(cells)} cells"
    page.facts = [
        *_facts(result, len(finished), len(cells)),
        *(fact for fact in page.facts if fact.label in ("Trials", "Time")),
    ]
    title = f"Comparison with the {result.origin} figures" if result.has_published else "Table"
    first = Section(title, [_table(result), *_pictures(result, drawings)])
    first.parts += [f"{note}." for note in (*result.notes, *notes)]
    page.sections.insert(0, first)
    return page


def _table(result: ReproductionResult) -> PageTable:
    """Return rows × columns: our figure, the published figure, and their difference."""
    columns = ("", *headings(result))
    rows = [
        (result.reproduction.rows[row].label, *(_cell(result[row, c]) for c in result.columns))
        for row in result.rows
    ]
    caption = "Our figures"
    if result.has_published:
        caption = (
            f"Our figure (· not run), the {result.origin} figure, the {result.difference_words}"
        )
    names = {_name(e) for e in result.entries.values() if e.state != "empty"}
    caption += f": {names.pop()}" if len(names) == 1 else ""
    return PageTable(caption, columns, rows, frozenset(range(1, len(columns))))


def _name(entry: CellResult) -> str:
    unit = unit_of(entry.figure)
    return figure_title(entry.figure) + (f" ({unit})" if unit else "")


def _cell(entry: CellResult) -> str:
    if entry.state == "empty":
        return "–"
    ours, *others = lines_of(entry)
    return "\n".join(filter(None, [ours or "·", *others]))


def _facts(result: ReproductionResult, finished: int, cells: int) -> list[Fact]:
    """Return the difference of our figures to the published ones, with its sign."""
    apart = [e.difference for e in result.compared if e.difference is not None]
    facts = [Fact("Done", integer(finished), f"of {count(cells, 'cell')}", lead=not apart)]
    if distance := result.distance:
        low, high = (f"{value:+.2f}".replace("-", "−") for value in (min(apart), max(apart)))
        note = f"on average over {count(len(apart), 'cell')}"
        note += f", from {low} to {high}" if len(apart) > 1 else ""
        facts.insert(0, Fact(f"Difference to the {result.origin}", distance, note, lead=True))
    return facts


def _pictures(result: ReproductionResult, drawings: Drawings) -> list[Part]:
    if result.reproduction.kind not in ("curves", "bars", "pictures"):
        return []
    pictures: list[Part] = []
    try:
        for name, figure in figures_of(result):
            column = result.reproduction.columns.get(name)
            title = (
                column.label if column else name.replace("-", ", ")
            ) or result.reproduction.place
            description = f"{result.reproduction.heading}: {title}. The table has its numbers."
            pictures.append(Picture(title or "Our figures", drawings.inline(figure), description))
    except UsageError:  # observations are missing
        return []
    return pictures
