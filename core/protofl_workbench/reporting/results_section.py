"""The results of groups on the same data: a table, pictures, and differences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from protofl.errors import UsageError
from protofl_workbench import plots
from protofl_workbench.comparing.compare import compare
from protofl_workbench.comparing.comparison import sheets
from protofl_workbench.comparing.run_groups import divergence, with_score_of
from protofl_workbench.plots.client_charts import BANDS
from protofl_workbench.reporting.group_record import GroupRecord, Moments
from protofl_workbench.reporting.number_formats import (
    NONE,
    amount,
    count,
    duration,
    integer,
    percent,
    points,
    sentence,
    spread,
)
from protofl_workbench.reporting.page_parts import Drawings, PageTable, Part, Picture, Section
from protofl_workbench.reporting.picture_texts import bars_text
from protofl_workbench.reporting.ranking import final_accuracy, ranking
from protofl_workbench.reporting.run_pictures import Pictures

CURVES, BARS = 12, 40
"""Largest numbers of groups in curves and bars; of more groups the best ones are drawn."""


def results_section(
    title: str, records: Sequence[GroupRecord], drawings: Drawings, baseline: str
) -> Section:
    """Return the results of groups on the same data.

    Args:
        title: Heading.
        records: The groups.
        drawings: The figures of the page.
        baseline: The baseline of differences; empty for the default one.
    """
    groups = [record.group for record in records]
    parts: list[Part] = [
        _table(sorted(records, key=final_accuracy, reverse=True), ranking(records).best),
        with_score_of("Sorted by final accuracy. ", groups)
        + "*The best round is chosen on test samples. Figures over clients are taken within each "
        "trial. Traffic of all clients and time are per trial.",
    ]
    if len(records) > CURVES:
        best = with_score_of("the best final accuracy", groups)
        parts.append(f"Curves show the {CURVES} groups with {best}.")
    lost = {
        record.group.label: [*filter(None, map(divergence, record.group.runs))]
        for record in records
    }
    parts += [f"{label} {'; '.join(lines)}." for label, lines in lost.items() if lines]
    several = any(len(record.group.trials) > 1 for record in records)
    bands = "; bands are one standard deviation" if len(records) <= BANDS else ""
    caption = f"Mean over trials{bands}." if several else ""
    guesses = {None if (m := record.end("majority_accuracy")) is None else round(m.mean, 6)
               for record in records}  # fmt: skip
    guess = guesses.pop() if len(guesses) == 1 else None
    caption += f" Dotted: the majority guess, {percent(guess)}." if guess else ""
    curves, bars = (Pictures(best_groups(records, most), drawings) for most in (CURVES, BARS))
    candidates = [
        curves.over_rounds(
            "accuracy", "Test accuracy", caption=caption.strip(), wide=True, target=guess
        ),
        bars.bars(
            "final", "Final test accuracy",
            "Mean over trials ± one standard deviation." if several else "",
        ),
        curves.losses(),
        curves.clients(),
        curves.over_rounds("validation-accuracy", "Validation accuracy"),
        curves.over_rounds("macro-f1", "Macro F1"),
        curves.over_rounds("map", "Mean average precision"),
        curves.over_rounds("mae", "Mean absolute error"),
        curves.over_rounds("perplexity", "Perplexity (lower is better)"),
    ]  # fmt: skip
    pictures: list[Part] = [picture for picture in candidates if picture]
    return Section(title, [*parts, *pictures, *_differences(records, drawings, baseline)])


def best_groups(records: Sequence[GroupRecord], most: int) -> list[GroupRecord]:
    """Return the groups with the best final accuracy, in the given order."""
    first = sorted(records, key=final_accuracy, reverse=True)[:most]
    return [record for record in records if record in first]


def _differences(records: Sequence[GroupRecord], drawings: Drawings, baseline: str) -> list[Part]:
    """Return differences to the baseline over pairs, or the reason why there are none."""
    if len(records) < 2:
        return []
    try:
        labelled = {record.group.label: record.group.runs for record in records}
        comparison = compare(labelled, "final", baseline=baseline)
    except UsageError as error:
        return [f"No differences: {error.what}."]
    tables: list[Part] = [
        PageTable(
            sentence(sheet.title),
            sheet.columns,
            sheet.rows,
            frozenset(range(1, len(sheet.columns))),
            folded=len(sheet.rows) > CURVES,
        )
        for sheet in sheets(comparison)
        if "difference" in sheet.columns
    ]
    if not tables:
        return []
    rows = [(row.label, d) for t in comparison.tables for row in t.rows if (d := row.difference)]
    notes = " ".join(f"{note}." for note in comparison.notes)
    if len(rows) > BARS:
        return [*tables, notes]
    groups = [record.group for record in records]
    title = with_score_of("final test accuracy, difference to ", groups)
    texts = {
        label: f"{points(d.mean)} points in {count(d.count, 'pair')}"
        + f", interval {points(d.low)} to {points(d.high)}" * math.isfinite(d.low)
        for label, d in rows
    }
    picture = Picture(
        "Is the difference real?",
        drawings.inline(plots.differences(comparison, "final", font="sans")),
        bars_text(title + comparison.tables[0].baseline, texts),
        "Points are pairs with the same seed and split; with the mean and its interval.",
    )
    return [*tables, picture, notes]


def _table(records: Sequence[GroupRecord], best: Sequence[str]) -> PageTable:
    """Return a row for each group: accuracies and costs.

    Args:
        records: The groups.
        best: The groups to mark.
    """
    accuracies = {
        "final": "final_test_accuracy",
        "best*": "best_test_accuracy",
        "validated": "validation_selected_test_accuracy",
    }
    figures = {"worst client": "worst", "lowest tenth": "decile"}
    cells = {
        heading: [record.end(key) for record in records] for heading, key in accuracies.items()
    } | {heading: [record.figure(name) for record in records] for heading, name in figures.items()}
    cells["guess"] = [record.end("majority_accuracy") for record in records]
    kept = {h: each for h, each in cells.items() if any(each) or h in ("final", "best*", "guess")}
    rows = [
        (
            record.group.label,
            str(len(record.group.trials)),
            _rounds(record),
            *(_cell(each[n]) for each in kept.values()),
            amount(record.total(lambda row: row.traffic).mean),
            duration(record.total(lambda row: row.seconds["total"]).mean),
        )
        for n, record in enumerate(records)
    ]
    columns = ("group", "trials", "rounds", *kept, "traffic", "time")
    return PageTable(
        with_score_of("Test accuracy", [r.group for r in records]) + ", mean ± std over trials",
        columns,
        rows,
        frozenset(range(1, len(columns))),
        frozenset(n for n, record in enumerate(records) if record.group.label in best),
        sortable=True,
    )


def _rounds(record: GroupRecord) -> str:
    """Return the rounds of the longest trials: ``8``, or ``2 of 8`` if they are not finished."""
    rounds_done, asked = record.group.extent
    return integer(rounds_done) + (f" of {integer(asked)}" if rounds_done < asked else "")


def _cell(moments: Moments | None) -> str:
    return spread(moments.mean, moments.std) if moments is not None else NONE
