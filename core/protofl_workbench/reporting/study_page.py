"""The page of a study: our figures next to the published ones, then the runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofl.errors import UsageError
from protofl.runs.recorded_run import Run
from protofl_workbench.comparing.run_groups import sound_runs
from protofl_workbench.reporting.comparison_page import comparison_page
from protofl_workbench.reporting.inline_svg import Drawings
from protofl_workbench.reporting.number_formats import count, integer, sentence
from protofl_workbench.reporting.page_parts import Fact, Page, Part, Picture, Section, Table
from protofl_workbench.studies.study_figures import figure_title, unit_of
from protofl_workbench.studies.study_pictures import figures_of
from protofl_workbench.studies.study_texts import headings, lines_of

if TYPE_CHECKING:
    from protofl_workbench.studies.study_result import Entry, StudyResult


def study_page(result: StudyResult, drawings: Drawings, foot: str, baseline: str = "") -> Page:
    """Return the page of a study.

    Args:
        result: The result so far.
        drawings: The figures of the page.
        foot: Last line.
        baseline: The baseline of differences; empty for the default one.
    """
    folders = dict.fromkeys(e.folder for e in result.entries.values() if e.folder is not None)
    notes: list[str] = []
    runs = sound_runs(map(Run.of, folders), notes)
    page = Page("", "", "", "", [], [], foot)
    if runs:
        page = comparison_page(runs, drawings, foot, baseline)
    cells = [entry for entry in result.entries.values() if entry.state != "empty"]
    done = [entry for entry in cells if entry.state in ("done", "not reached")]
    page.title = result.study.heading
    page.kicker = f"protofl · {result.study.name}"
    page.lead = f"{sentence('; '.join(result.facts))}." if result.facts else ""
    page.state = "" if len(done) == len(cells) else f"{len(done)} of {len(cells)} cells"
    page.facts = [
        *_facts(done, len(cells)),
        *(fact for fact in page.facts if fact.label in ("Trials", "Time")),
    ]
    title = "Comparison with the published figures" if result.has_published else "Table"
    first = Section(title, [_table(result), *_pictures(result, drawings)])
    first.parts += [f"{note}." for note in (*result.notes, *notes)]
    page.sections.insert(0, first)
    return page


def _table(result: StudyResult) -> Table:
    """Return rows × columns: our figure, the published figure, and their difference."""
    columns = ("", *headings(result))
    rows = [
        (result.study.rows[row].label, *(_cell(result[row, c]) for c in result.columns))
        for row in result.rows
    ]
    caption = "Our figures"
    if result.has_published:
        caption = "Our figure (· not run), the published figure, the difference"
    names = {_name(e) for e in result.entries.values() if e.state != "empty"}
    caption += f": {names.pop()}" if len(names) == 1 else ""
    return Table(caption, columns, rows, frozenset(range(1, len(columns))))


def _name(entry: Entry) -> str:
    unit = unit_of(entry.figure)
    return figure_title(entry.figure) + (f" ({unit})" if unit else "")


def _cell(entry: Entry) -> str:
    if entry.state == "empty":
        return "–"
    ours, *others = lines_of(entry)
    return "\n".join(filter(None, [ours or "·", *others]))


def _facts(done: list[Entry], cells: int) -> list[Fact]:
    """Return the distance of our figures to the published ones."""
    apart = [abs(e.difference) for e in done if e.difference is not None]
    found = [Fact("Done", integer(len(done)), f"of {count(cells, 'cell')}", lead=not apart)]
    units = {unit_of(e.figure) for e in done if e.difference is not None}
    if len(units) == 1:
        unit = units.pop()
        unit = {"%": " points"}.get(unit, f" {unit}" if unit else "")
        mean = f"{sum(apart) / len(apart):.2f}{unit}"
        note = f"on average over {count(len(apart), 'cell')}; at most {max(apart):.2f}"
        found.insert(0, Fact("Difference to the published", mean, note, lead=True))
    return found


def _pictures(result: StudyResult, drawings: Drawings) -> list[Part]:
    if result.study.kind not in ("curves", "bars", "pictures"):
        return []
    found: list[Part] = []
    try:
        for name, figure in figures_of(result):
            column = result.study.columns.get(name)
            title = (column.label if column else name.replace("-", ", ")) or result.study.place
            words = f"{result.study.heading}: {title}. The table has its numbers."
            found.append(Picture(title or "Our figures", drawings.inline(figure), words))
    except UsageError:  # observations are missing
        return []
    return found
