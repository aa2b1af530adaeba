"""What groups on the same data come to, beside each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from protofl.errors import UsageError
from protofl_workbench.comparing import run_figures as over_clients
from protofl_workbench.comparing.compare import compare
from protofl_workbench.comparing.comparison import sheets
from protofl_workbench.comparing.run_groups import divergence
from protofl_workbench.reporting.alternatives import as_bars
from protofl_workbench.reporting.drawing import Drawings
from protofl_workbench.reporting.numbers import (
    NONE,
    amount,
    count,
    duration,
    percent,
    points,
    sentence,
    spread,
    whole,
)
from protofl_workbench.reporting.parts import Part, Picture, Section, Table
from protofl_workbench.reporting.pictures import BANDS, Pictures
from protofl_workbench.reporting.told import Told

CURVES, BARS = 12, 40
"""Groups at most that are drawn as curves and as bars: of more those that are ahead at the end."""


def results(title: str, told: Sequence[Told], drawings: Drawings) -> Section:
    """Groups on the same data, beside each other.

    Args:
        title: The heading.
        told: The groups.
        drawings: Takes their figures.
    """
    ranked = sorted(told, key=final_of, reverse=True)
    parts: list[Part] = [
        results_table(ranked),
        "The best final accuracy stands first. *The best round is chosen on test samples. Traffic "
        "of all clients, and time, are a trial's.",
    ]
    if len(ranked) > CURVES:
        parts.append(f"Curves have the {CURVES} groups that are ahead at the end.")
    pictures = Pictures(ahead(told, CURVES), drawings)
    bars = Pictures(ahead(told, BARS), drawings)
    lost = {own.group.label: [*filter(None, map(divergence, own.group.runs))] for own in told}
    parts += [f"{label} {'; '.join(found)}." for label, found in lost.items() if found]
    several = any(len(own.group.trials) > 1 for own in told)
    bands = "; bands are one standard deviation" if len(ranked) <= BANDS else ""
    mean = f"Mean over trials{bands}." if several else ""
    guess = told[0].end("majority_accuracy")
    target = guess.mean if guess is not None and guess.mean == guess.mean else None
    same = all(_guess(own) == _guess(told[0]) for own in told)
    dotted = f" Dotted: the majority guess, {percent(target)}." if target and same else ""
    found = [
        pictures.over_rounds(
            "accuracy", "Test accuracy",
            caption=f"{mean}{dotted}".strip(),
            wide=True, target=target if same else None,
        ),
        bars.bars(
            "final", "Final test accuracy",
            "Mean over trials ± one standard deviation." if several else "",
        ),
        pictures.over_rounds("loss", "Training loss"),
        pictures.clients(),
        pictures.over_rounds("validation-accuracy", "Validation accuracy"),
        pictures.over_rounds("macro-f1", "Macro F1"),
    ]  # fmt: skip
    pictured: list[Part] = [picture for picture in found if picture]
    return Section(title, [*parts, *pictured, *differences(told, drawings)])


def ahead(told: Sequence[Told], most: int) -> list[Told]:
    """The groups that are ahead at the end, in the order in which they were given."""
    first = sorted(told, key=final_of, reverse=True)[:most]
    return [own for own in told if own in first]


def differences(told: Sequence[Told], drawings: Drawings) -> list[Part]:
    """Differences to the first group over pairs of one seed and split; why there are none."""
    from protofl_workbench import plots

    if len(told) < 2:
        return []
    try:
        found = compare([run for own in told for run in own.group.runs], "final")
    except UsageError as problem:
        return [f"Whether groups differ can't be said: {problem.what}."]
    tables: list[Part] = [
        Table(
            sentence(s.title),
            s.columns,
            s.rows,
            frozenset(range(1, len(s.columns))),
            folded=len(s.rows) > CURVES,
        )
        for s in sheets(found)
        if "difference" in s.columns
    ]
    if not tables:
        return []
    rows = [row for table in found.tables for row in table.rows if row.difference is not None]
    words = {
        row.label: f"{points(d.mean)} points in {count(d.count, 'pair')}"
        + f", interval {points(d.low)} to {points(d.high)}" * math.isfinite(d.low)
        for row in rows
        if (d := row.difference) is not None
    }
    notes = " ".join(f"{note}." for note in found.notes)
    if len(rows) > BARS:
        return [*tables, notes]
    picture = Picture(
        "Is the difference real?",
        drawings.inline(plots.differences(found, "final", font="sans")),
        as_bars(f"final test accuracy, difference to {found.tables[0].baseline}", words),
        "Pairs of one seed and split are points; the mean and its bootstrap interval.",
    )
    return [*tables, picture, notes]


def results_table(told: Sequence[Told]) -> Table:
    """A row a group: accuracies, who is left behind, and what it cost."""
    validated = any(own.end("validation_selected_test_accuracy") for own in told)
    each = any(own.clients for own in told)
    columns = ["group", "trials", "rounds", "final", "best*"]
    columns += ["validated"] * validated + ["worst client", "lowest tenth"] * each
    columns += ["guess", "traffic", "time"]
    rows = []
    for own in told:
        cells = [
            own.group.label,
            str(len(own.group.trials)),
            whole(max(row.round for row in own.rows) + 1),
            _cell(own, "final_test_accuracy"),
            _cell(own, "best_test_accuracy"),
        ]
        cells += [_cell(own, "validation_selected_test_accuracy")] * validated
        values = [moments.mean for moments in own.clients.values()]
        if each:
            cells.append(percent(min(values)) if values else NONE)
            cells.append(percent(over_clients.lowest_decile(iter(values))) if values else NONE)
        traffic = own.total(lambda row: float(row.traffic))
        time = own.total(lambda row: float(row.seconds["total"]))
        cells.append(_cell(own, "majority_accuracy"))
        cells.append(amount(traffic.mean) if traffic else NONE)
        cells.append(duration(time.mean) if time else NONE)
        rows.append(cells)
    numbers = frozenset(range(1, len(columns)))
    return Table(
        "Test accuracy, mean ± std over trials",
        columns,
        rows,
        numbers,
        frozenset({0}),
        sortable=True,
    )


def _cell(own: Told, key: str) -> str:
    found = own.end(key)
    return spread(found.mean, found.std) if found is not None else NONE


def final_of(own: Told) -> float:
    """A group's final accuracy, by which groups are ordered; of one without any −1."""
    found = own.end("final_test_accuracy")
    return found.mean if found is not None else -1.0


def _guess(own: Told) -> float | None:
    found = own.end("majority_accuracy")
    return None if found is None else round(found.mean, 6)
