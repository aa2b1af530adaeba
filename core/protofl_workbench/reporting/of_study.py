"""The page of a study: ours beside the published figures, then the runs that ours are of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofl.errors import UsageError
from protofl.runs.reuse.run import Run, load_run
from protofl_workbench.reporting.drawing import Drawings
from protofl_workbench.reporting.numbers import count, sentence, whole
from protofl_workbench.reporting.parts import Fact, Page, Part, Picture, Section, Table
from protofl_workbench.reporting.several import page_of_all
from protofl_workbench.studies.figures import unit_of, words_of
from protofl_workbench.studies.pictures import figures_of
from protofl_workbench.studies.texts import headings, lines_of

if TYPE_CHECKING:
    from protofl_workbench.studies.result import Entry, StudyResult


def page_of_study(result: StudyResult, drawings: Drawings, foot: str) -> Page:
    """The page of a study.

    Args:
        result: What came of it so far.
        drawings: Takes its figures.
        foot: The last line.
    """
    runs = runs_of(result)
    page = page_of_all(runs, drawings, foot) if runs else Page("", "", "", "", [], [], foot)
    cells = [entry for entry in result.entries.values() if entry.state != "empty"]
    done = [entry for entry in cells if entry.state in ("done", "not reached")]
    page.title = result.study.heading
    page.kicker = f"protofl · {result.study.name}"
    page.lead = sentence("; ".join(result.facts)) + "."
    page.state = "" if len(done) == len(cells) else f"{len(done)} of {len(cells)} cells"
    page.facts = [
        *_study_facts(result, done),
        *(f for f in page.facts if f.label in ("Trials", "Time")),
    ]
    first = Section("Ours beside the published", [table_of(result), *_pictures(result, drawings)])
    first.parts += [f"{note}." for note in result.notes]
    page.sections.insert(0, first)
    return page


def runs_of(result: StudyResult) -> list[Run]:
    """The runs of its cells, each once; cells of what was counted have none."""
    folders = dict.fromkeys(e.folder for e in result.entries.values() if e.folder is not None)
    return [load_run(folder) for folder in folders]


def table_of(result: StudyResult) -> Table:
    """Rows × columns: ours, the published figure, and the difference below each other."""
    has = any(entry.published for entry in result.entries.values())
    columns = ("", *headings(result))
    rows = [
        (result.study.rows[row].label, *(_cell(result[row, c]) for c in result.columns))
        for row in result.rows
    ]
    caption = "Ours (· not run), the published figure, the difference" if has else "Ours"
    figures = dict.fromkeys(_named(e) for e in result.entries.values() if e.state != "empty")
    if len(figures) == 1:
        caption += f": {next(iter(figures))}"
    return Table(caption, columns, rows, frozenset(range(1, len(columns))))


def _named(entry: Entry) -> str:
    unit = unit_of(entry.figure)
    return words_of(entry.figure) + (f" ({unit})" if unit else "")


def _cell(entry: Entry) -> str:
    if entry.state == "empty":
        return "–"
    ours, *others = lines_of(entry)
    return "\n".join(filter(None, [ours or "·", *others]))


def _study_facts(result: StudyResult, done: list[Entry]) -> list[Fact]:
    """How far ours are from the published figures."""
    apart = [abs(e.difference) for e in done if e.difference is not None]
    cells = count(sum(e.state != "empty" for e in result.entries.values()), "cell")
    found = [Fact("Done", whole(len(done)), f"of {cells}", lead=not apart)]
    units = {unit_of(e.figure) for e in done if e.difference is not None}
    if apart and len(units) == 1:
        unit = next(iter(units))
        unit = {"%": " points"}.get(unit, f" {unit}" if unit else "")
        mean = f"{sum(apart) / len(apart):.2f}{unit}"
        note = f"on average, over {count(len(apart), 'cell')}; {max(apart):.2f} at most"
        found.insert(0, Fact("From the published", mean, note, lead=True))
    return found


def _pictures(result: StudyResult, drawings: Drawings) -> list[Part]:
    """Its curves, bars or splits."""
    if result.study.kind not in ("curves", "bars", "pictures"):
        return []
    try:
        drawn = list(figures_of(result))
    except UsageError:
        return []
    found: list[Part] = []
    for name, figure in drawn:
        column = result.study.columns.get(name)
        title = (column.label if column else name.replace("-", ", ")) or result.study.place
        words = f"{result.study.heading}: {title}. The table has its numbers."
        found.append(Picture(title or "Ours", drawings.inline(figure), words))
    return found
