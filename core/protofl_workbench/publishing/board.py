"""`board`: a static leaderboard of published folders and records of a benchmark.

It is a folder of HTML pages, badges and ``board.json``, which any static host can show. No page
loads anything from elsewhere.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.hooks.discovery.registry import Registry
from protofl.system.files.atomic import write_file, write_json
from protofl.system.files.home import expand_user
from protofl.system.formatting import count
from protofl.system.version import __version__
from protofl_workbench.publishing.badges import badge
from protofl_workbench.publishing.leaderboard import (
    BoardSetting,
    Leaderboard,
    Source,
    leaderboard,
)
from protofl_workbench.publishing.papers import Paper, papers_of
from protofl_workbench.reporting.number_formats import option_value
from protofl_workbench.reporting.page import html_of
from protofl_workbench.reporting.page_parts import (
    Command,
    Drawings,
    Fact,
    Link,
    Page,
    PageTable,
    Part,
    Picture,
    Section,
)
from protofl_workbench.reproductions.benchmark.benchmark_records import CENTRALISED
from protofl_workbench.reproductions.benchmark.standings import (
    BETTER,
    EQUAL,
    LEVEL,
    WORSE,
    Standing,
)
from protofl_workbench.reproductions.benchmark.standings_tables import cells, place

DATA, INDEX = "board.json", "index.html"

CHOSEN = {
    "validation": "the round with the best validation accuracy",
    "last": "the last round",
}

HOW = (
    "A setting is a data set, a split, models, and all options but those of the method and the "
    "seed: only rows of one setting are compared. Ranks are mean ranks over clients × seeds. "
    "Methods with a common letter do not differ significantly (Wilcoxon's signed-rank test over "
    f"clients × seeds, Holm's correction, level {LEVEL:g}); a method without a letter differs from "
    "every neighbour."
)

REPEATED = (
    "The column runs repeated says how many of the published runs of a row this machine has "
    "repeated with protofl verify. The figures of the other runs are those that their authors "
    "published: only their digests, rows and summaries were checked here."
)

CAUTION = (
    "A rank holds for its setting: other data, models or budgets may give another order. Clients "
    "of a run share a server, so p is too small rather than too large. Seconds depend on the "
    "machine of a run."
)


@dataclass(frozen=True)
class Board:
    """A written leaderboard.

    Attributes:
        folder: The folder.
        settings: Names of the settings.
        methods: Names of the methods.
        pages: Number of HTML pages.
        badges: Number of badges.
        notes: What is left out, and why.
        values: The content of ``board.json``.
    """

    folder: Path
    settings: tuple[str, ...]
    methods: tuple[str, ...]
    pages: int
    badges: int
    notes: tuple[str, ...]
    values: Mapping[str, Any]


def board(
    folders: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    title: str = "Leaderboard",
    force: bool = False,
) -> Board:
    """Write a static leaderboard.

    Args:
        folders: Published folders, records of a benchmark, or folders that have some below them.
        out: The new folder.
        title: Title of the first page.
        force: Replace ``out`` if it is a leaderboard.

    Raises:
        UsageError: A folder has nothing to show, or ``out`` exists.
        Changed: A published folder does not have the published bytes.

    """
    given = [folders] if isinstance(folders, (str, Path)) else [*folders]
    target = _target(out, force)
    found = leaderboard(given)
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        badges = _write_badges(part, found)
        _write(part / INDEX, *_index(title, found))
        for method in found.methods:
            _write(part / "methods" / f"{slug(method)}.html", *_method_page(title, method, found))
        values = to_values(title, found)
        write_json(part / DATA, values)
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    names = tuple(setting.name for setting in found.settings)
    pages = 1 + len(found.methods)
    return Board(target, names, tuple(found.methods), pages, badges, found.notes, values)


def _target(out: str | Path, force: bool) -> Path:
    """Return the folder to write to.

    Raises:
        UsageError: It exists, and is not a leaderboard that may be replaced.
    """
    target = expand_user(out).absolute()
    if not next(place for place in target.parents if place.exists()).is_dir():
        raise UsageError(f"--out {out} cannot be written", do="choose another folder with --out")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        is_board = (target / DATA).is_file() and (target / INDEX).is_file()
        if not is_board or not force:
            do = "choose another folder with --out" + (", or --force" if is_board else "")
            raise UsageError(f"--out {out} exists already", do=do)
    return target


def _write(path: Path, page: Page, drawings: Drawings) -> None:
    path.parent.mkdir(exist_ok=True)
    write_file(path, html_of(page, drawings))


def slug(name: str) -> str:
    """Return a name for a file: letters, digits and ``.-_``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "x"


# --- badges ---------------------------------------------------------------------------------------


def _write_badges(folder: Path, found: Leaderboard) -> int:
    number = 0
    for setting in found.settings:
        for standing in setting.setting.standings:
            path = folder / _badge_path(setting, standing.method)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, _badge(setting, standing))
            number += 1
    return number


def _badge_path(setting: BoardSetting, method: str) -> str:
    return f"badges/{slug(setting.name)}/{slug(method)}.svg"


def _badge(setting: BoardSetting, standing: Standing) -> str:
    said = badge_text(setting, standing)
    colour = "best" if in_best_group(setting, standing) else "ranked" if standing.rank else "bound"
    return badge(setting.name, said, colour)


def badge_text(setting: BoardSetting, standing: Standing) -> str:
    """Return ``rank 3 of 25`` or, of a method that is not ranked, its accuracy."""
    ranked = len(setting.setting.ranked)
    if standing.rank and ranked > 1:
        best = ", best group" if in_best_group(setting, standing) else ""
        return f"rank {standing.rank} of {ranked}{best}"
    return f"accuracy {100 * standing.accuracy:.1f}%"


def in_best_group(setting: BoardSetting, standing: Standing) -> bool:
    """Return True if a ranked method is the first, or does not differ from the first by a group."""
    first = setting.setting.ranked[:1]
    if not standing.rank or not first or len(setting.setting.ranked) < 2:
        return False
    return standing.rank == 1 or bool({*standing.groups} & {*first[0].groups})


# --- the first page -------------------------------------------------------------------------------


def _index(title: str, found: Leaderboard) -> tuple[Page, Drawings]:
    drawings = Drawings()
    sections = []
    sections += [_setting_section(setting, drawings) for setting in found.settings]
    sections.append(Section("How to read this", [HOW, REPEATED, CAUTION]))
    if found.notes:
        sections.append(Section("Left out", [f"{note}." for note in found.notes]))
    seeds = max((s.seeds for one in found.settings for s in one.setting.standings), default=0)
    facts = [
        Fact("Settings", str(len(found.settings)), "compared separately", lead=True),
        Fact("Methods", str(len(found.methods)), "with a page each"),
        Fact("Seeds", str(seeds), "of a row, at most"),
    ]
    lead = (
        f"{count(len(found.methods), 'method')} in {count(len(found.settings), 'setting')}: "
        "grouped by equal settings, with significance groups."
    )
    return Page(title, "protofl · leaderboard", lead, "", facts, sections, _foot()), drawings


def _foot() -> str:
    return f"Made by protofl {__version__} on {datetime.now():%Y-%m-%d}: protofl board."


def _link(method: str, above: str = "") -> Link:
    return Link(method, f"{above}methods/{slug(method)}.html")


COLUMNS = (
    "method",
    "rank",
    "groups",
    "accuracy %",
    "interval",
    "worst client %",
    "MB up",
    "MB down",
    "round",
    "s/round",
    "seeds",
    "mean rank",
    "runs repeated",
)
"""Columns of a setting's table; the page of a method has the settings in place of the methods."""

WORDS = frozenset({"method", "setting", "groups", "interval"})
"""Columns that are not numbers."""


def _table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    marked: frozenset[int] = frozenset(),
) -> PageTable:
    """Return a sortable table; an unknown figure is a dash."""
    numbers = frozenset(n for n, column in enumerate(columns) if column not in WORDS)
    shown = [[cell or "–" for cell in row] for row in rows]
    return PageTable(caption, columns, shown, numbers, marked, sortable=True)


def _row(setting: BoardSetting, standing: Standing) -> tuple[str, ...]:
    figures = cells(standing, COLUMNS[1:-1])
    return _link(standing.method), *figures, setting.repeated[standing.method]


def _setting_section(setting: BoardSetting, drawings: Drawings) -> Section:
    """Return the table of a setting, its groups, and the options that all rows share."""
    found = setting.setting
    best = frozenset(n for n, s in enumerate(found.standings) if in_best_group(setting, s))
    marked = f" The {count(len(best), 'method')} of the best group are marked." if best else ""
    parts: list[Part] = [
        f"Figures are means over seeds, in {CHOSEN[setting.chosen]}.{marked}"
        + (f" Ranks and tests are over {found.blocks} pairs of client and seed." * bool(found.p)),
        _table(
            f"{setting.name}: {count(len(found.ranked), 'ranked method')}",
            COLUMNS,
            [_row(setting, standing) for standing in found.standings],
            best,
        ),
    ]
    unranked = [s.method for s in found.standings if not s.rank]
    if CENTRALISED in unranked:
        parts.append(f"{CENTRALISED} is a bound, not a federated method, and is not ranked.")
    if len(found.ranked) == 1:
        parts.append("There is one method only, so there is nothing to rank.")
    parts += [f"{note}." for note in found.notes]
    parts.append(_options_table(setting))
    reasons = {**found.refused, **{m: f"failed: {why}" for m, why in found.failed.items()}}
    if reasons:
        rows = [(method, why) for method, why in sorted(reasons.items())]
        parts.append(
            PageTable(
                "Do not fit this setting, by their own declaration",
                ("method", "reason"),
                rows,
                folded=True,
                words=frozenset({1}),
            )
        )
    return Section(setting.name, parts)


def _options_table(setting: BoardSetting) -> PageTable:
    rows = [
        (key.removeprefix("options.").removeprefix("set."), option_value(value))
        for key, value in sorted(setting.options.items())
        if value is not None
    ]
    return PageTable(
        "Options of this setting, equal in all rows",
        ("option", "value"),
        rows,
        folded=True,
        words=frozenset({1}),
    )


# --- a page for each method -----------------------------------------------------------------------


def _method_page(title: str, method: str, found: Leaderboard) -> tuple[Page, Drawings]:
    drawings = Drawings()
    there = [
        (setting, standing)
        for setting in found.settings
        if (standing := setting.setting.named(method)) is not None
    ]
    columns = COLUMNS[2:-1]
    rows = [
        (
            setting.name,
            place(standing.rank, len(setting.setting.ranked)) or "not ranked",
            *cells(standing, columns),
        )
        for setting, standing in there
    ]
    results = _table("Figures in each setting", ("setting", "rank", *columns), rows)
    sections = [Section("Results", [results])]
    if others := _others(method, there):
        sections.append(Section("Against other methods", others))
    sections.append(Section("Badges", _badges(method, there)))
    sections.append(Section("Sources", _sources(method, there)))
    papers = _papers(plugin for setting, _ in there for plugin in setting.plugins[method])
    if papers:
        sections.append(Section("Papers", papers))
    ranks = [s.rank for _, s in there if s.rank]
    facts = [
        Fact("Settings", str(len(there)), f"of {len(found.settings)}", lead=True),
        Fact("Best rank", str(min(ranks)) if ranks else "–", "in a setting"),
        Fact(
            "Best group",
            str(sum(in_best_group(setting, s) for setting, s in there)),
            f"of {count(len(there), 'setting')}",
        ),
    ]
    lead = f"{method} in {', '.join(setting.name for setting, _ in there)}."
    page = Page(method, "method", lead, "", facts, sections, _foot(), Link(title, f"../{INDEX}"))
    return page, drawings


def _others(method: str, there: Sequence[tuple[BoardSetting, Standing]]) -> list[Part]:
    """Return by which methods this one is beaten significantly, and which it beats."""
    rows = []
    for setting, standing in there:
        found = setting.setting
        if not standing.rank or len(found.ranked) < 2:
            continue
        outcomes = {one.method: found.against(one.method, method) for one in found.ranked}
        each = [[m for m, o in outcomes.items() if o == asked] for asked in (BETTER, EQUAL, WORSE)]
        rows.append((setting.name, *(", ".join(names) or "–" for names in each)))
    if not rows:
        return []
    columns = (
        "setting",
        "significantly better",
        "no significant difference",
        "significantly worse",
    )
    return [PageTable("Other methods", columns, rows, words=frozenset({1, 2, 3})), HOW]


def _badges(method: str, there: Sequence[tuple[BoardSetting, Standing]]) -> list[Part]:
    parts: list[Part] = [
        "A badge for a README: put the file next to it, or give the address of this board."
    ]
    for setting, standing in there:
        said = badge_text(setting, standing)
        path = _badge_path(setting, method)
        parts += [
            Picture(setting.name, f"../{path}", f"{setting.name}: {said}", on_paper=True),
            Command("Markdown", f"![{setting.name}: {said}]({path})"),
        ]
    return parts


def _sources(method: str, there: Sequence[tuple[BoardSetting, Standing]]) -> list[Part]:
    rows = [
        (
            setting.name,
            source.name,
            source.title or "record of a benchmark",
            source.digest[:16] or "–",
            "; ".join(source.repeated.values()) or ("no" if source.digest else "–"),
            ", ".join(f"{name} {version}" for name, version in sorted(source.versions.items())),
            _options_text(source),
        )
        for setting, _ in there
        for source in setting.sources[method]
    ]
    columns = ("setting", "folder or file", "title", "digest", "repeated here", "versions",
               "options")  # fmt: skip
    return [
        PageTable("Where the figures come from", columns, rows, words=frozenset({1, 2, 4, 5, 6})),
        *(
            ["Check a published folder: protofl verify DIR --digest DIGEST."]
            if any(row[3] != "–" for row in rows)
            else []
        ),
    ]


def _options_text(source: Source) -> str:
    return ", ".join(
        f"{key}={option_value(value)}" for key, value in source.options.items() if value is not None
    )


def _papers(methods: Any) -> list[Part]:  # noqa: ANN401 - an iterable of names
    names = dict.fromkeys(methods)
    found: dict[str, Paper] = {}
    for papers in papers_of(Registry(), (("method", name) for name in names)).values():
        found |= {paper.key: paper for paper in papers}
    return [_paper(paper) for paper in found.values()]


def _paper(paper: Paper) -> Part:
    people = ", ".join(paper.authors[:3]) + (" and others" if len(paper.authors) > 3 else "")
    where = paper.fields.get("booktitle") or paper.fields.get("journal") or ""
    year = paper.fields.get("year", "")
    text = ". ".join(filter(None, (people, paper.title, ", ".join(filter(None, (where, year))))))
    return Link(f"{text}.", paper.address) if paper.address else f"{text}."


# --- for programs ---------------------------------------------------------------------------------


def to_values(title: str, found: Leaderboard) -> dict[str, Any]:
    """Return the content of ``board.json``."""
    return {
        "format": 1,
        "title": title,
        "settings": [
            {
                "name": setting.name,
                "chosen_round": setting.chosen,
                "options": dict(setting.options),
                "blocks": setting.setting.blocks,
                "rows": [_values(setting, standing) for standing in setting.setting.standings],
                "groups": [list(clique) for clique in setting.setting.cliques],
                "refused": dict(setting.setting.refused),
            }
            for setting in found.settings
        ],
        "notes": list(found.notes),
    }


def _values(setting: BoardSetting, standing: Standing) -> dict[str, Any]:
    names = ("accuracy", "low", "high", "worst", "upload", "download", "rounds", "seconds",
             "mean_rank")  # fmt: skip
    figures = {name: getattr(standing, name) for name in names}
    return {
        "method": standing.method,
        "rank": standing.rank or None,
        "groups": standing.groups,
        "best_group": in_best_group(setting, standing),
        "seeds": standing.seeds,
        "runs_repeated": setting.repeated[standing.method] or None,
        **{name: None if math.isnan(value) else value for name, value in figures.items()},
        "badge": _badge_path(setting, standing.method),
        "page": f"methods/{slug(standing.method)}.html",
        "sources": [source.name for source in setting.sources[standing.method]],
    }
