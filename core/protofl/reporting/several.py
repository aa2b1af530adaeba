"""The page of several runs: compared where they can be, and each by itself."""

from __future__ import annotations

import json
from collections.abc import Sequence

from protofl.comparing import spread as over_clients
from protofl.comparing.compare import compare
from protofl.comparing.groups import Group, grouped, setting
from protofl.comparing.tables import sheets
from protofl.comparing.trials import trials_of
from protofl.errors import UsageError
from protofl.recorded.run import Run
from protofl.reporting.about import data_name, facts, notes, sentence, state
from protofl.reporting.alternatives import as_bars
from protofl.reporting.choices import departures, differences_table, options_section
from protofl.reporting.commands import commands, shown
from protofl.reporting.drawing import Drawings
from protofl.reporting.one import costs
from protofl.reporting.parts import Command, Fact, Page, Part, Picture, Section, Table
from protofl.reporting.pictures import BANDS, Pictures
from protofl.reporting.told import Moments, Told
from protofl.reporting.words import (
    NONE,
    amount,
    count,
    day,
    duration,
    listed,
    percent,
    points,
    spread,
    whole,
)
from protofl.reporting.words import sentence as sentence_case

CURVES, BARS = 12, 40
"""Groups at most that are drawn as curves and as bars: of more those that are ahead at the end."""


def page_of_all(runs: Sequence[Run], drawings: Drawings, foot: str) -> Page:
    """The page of several runs.

    Args:
        runs: The runs.
        drawings: Takes their figures.
        foot: The last line.
    """
    told = [Told(group) for group in grouped(list(runs)) if group.trials]
    begun = {id(run) for own in told for run in own.group.runs}
    settings = _by_setting(told)
    sections = []
    for name, own in settings.items():
        title = f"Results on {name}" if len(settings) > 1 else "Results"
        sections.append(results(title, own, drawings))
    every = Pictures(_ahead(told, BARS), drawings)
    if told:
        sections.append(Section("Traffic and time", [*costs(every, over=len(settings) == 1)]))
    sections += [_differences(runs), *_departures(told)]
    sections.append(_each(runs, told, drawings, begun))
    return Page(
        _title(runs, settings),
        f"protofl · {count(len(runs), 'run')}",
        _lead(runs, told, settings),
        _state(runs),
        list(_facts(told, settings)),
        [section for section in sections if section],
        foot,
    )


def _by_setting(told: Sequence[Told]) -> dict[str, list[Told]]:
    """Groups by the data that they are on and the samples that they are scored on.

    There their names don't say what all have in common.
    """
    found: dict[str, list[Told]] = {}
    names: dict[str, str] = {}
    for own in told:
        key = json.dumps([setting(own.run), own.config.get("data", {}).get("digest")], default=str)
        if key not in names:
            name = f"{data_name(own.config)}, {own.config['partition']}"
            alike = sum(other.partition(" (")[0] == name for other in names.values())
            names[key] = f"{name} ({alike + 1})" if alike else name
        found.setdefault(names[key], []).append(own)
    if len(found) == 1:
        return found
    return {
        name: [Told(g) for g in grouped([r for o in own for r in o.group.runs], settings=False)]
        for name, own in found.items()
    }


# --- what runs come to ----------------------------------------------------------------------------


def results(title: str, told: Sequence[Told], drawings: Drawings) -> Section:
    """Groups on the same data, beside each other.

    Args:
        title: The heading.
        told: The groups.
        drawings: Takes their figures.
    """
    ranked = sorted(told, key=_final, reverse=True)
    parts: list[Part] = [
        results_table(ranked),
        "The best final accuracy stands first. *The best round is chosen on test samples. Traffic "
        "of all clients, and time, are a trial's.",
    ]
    if len(ranked) > CURVES:
        parts.append(f"Curves have the {CURVES} groups that are ahead at the end.")
    pictures = Pictures(_ahead(told, CURVES), drawings)
    bars = Pictures(_ahead(told, BARS), drawings)
    bands = "; bands are one standard deviation" if len(ranked) <= BANDS else ""
    guess = told[0].end("majority_accuracy")
    target = guess.mean if guess is not None and guess.mean == guess.mean else None
    same = all(_guess(own) == _guess(told[0]) for own in told)
    dotted = f" Dotted: the majority guess, {percent(target)}." if target and same else ""
    found = [
        pictures.over_rounds(
            "accuracy", "Test accuracy",
            caption=f"Mean over trials{bands}.{dotted}",
            wide=True, target=target if same else None,
        ),
        bars.bars("final", "Final test accuracy", "Mean over trials ± one standard deviation."),
        pictures.over_rounds("loss", "Training loss"),
        pictures.clients(),
        pictures.over_rounds("validation-accuracy", "Validation accuracy"),
        pictures.over_rounds("macro-f1", "Macro F1"),
    ]  # fmt: skip
    pictured: list[Part] = [picture for picture in found if picture]
    return Section(title, [*parts, *pictured, *differences(told, drawings)])


def _ahead(told: Sequence[Told], most: int) -> list[Told]:
    """The groups that are ahead at the end, in the order in which they were given."""
    first = sorted(told, key=_final, reverse=True)[:most]
    return [own for own in told if own in first]


def differences(told: Sequence[Told], drawings: Drawings) -> list[Part]:
    """Differences to the first group over pairs of one seed and split; why there are none."""
    from protofl import plots

    if len(told) < 2:
        return []
    try:
        found = compare([run for own in told for run in own.group.runs], "final")
    except UsageError as problem:
        return [f"Whether groups differ can't be said: {problem.what}."]
    tables: list[Part] = [
        Table(
            sentence_case(s.title),
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
        row.label: f"{points(d.mean)} points in {count(d.count, 'pair')}, interval "
        f"{points(d.low)} to {points(d.high)}"
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
            whole(max(row["round"] for row in own.rows) + 1),
            _cell(own, "final_test_accuracy"),
            _cell(own, "best_test_accuracy"),
        ]
        cells += [_cell(own, "validation_selected_test_accuracy")] * validated
        values = [moments.mean for moments in own.clients.values()]
        if each:
            cells.append(percent(over_clients.worst(values)) if values else NONE)
            cells.append(percent(over_clients.lowest_decile(values)) if values else NONE)
        traffic = own.total(lambda row: float(row["upload_bytes"] + row["download_bytes"]))
        time = own.total(lambda row: float(row["seconds"]["total"]))
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


def _final(own: Told) -> float:
    found = own.end("final_test_accuracy")
    return found.mean if found is not None else -1.0


def _guess(own: Told) -> float | None:
    found = own.end("majority_accuracy")
    return None if found is None else round(found.mean, 6)


def _facts(told: Sequence[Told], settings: dict[str, list[Told]]) -> list[Fact]:
    """Who is ahead, by how much, and what all of it took."""
    found = []
    if len(settings) == 1:
        ranked = sorted((own for own in told if own.ends), key=_final, reverse=True)
        if ranked:
            first = ranked[0]
            final = first.end("final_test_accuracy") or Moments(float("nan"), None)
            note, level = f"final test accuracy of {first.group.label}", False
            if len(ranked) > 1:
                ahead = points(_final(first) - _final(ranked[1])).strip("+−")
                level = _final(first) == _final(ranked[1])
                note += ", level with " if level else f", {ahead} points ahead of "
                note += ranked[1].group.label
            value = spread(final.mean, final.std)
            title = "Level at the end" if level else "Ahead at the end"
            found.append(Fact(title, value, note, lead=True))
            guess = first.end("majority_accuracy")
            if guess is not None and guess.mean == guess.mean:
                value = spread(guess.mean, guess.std)
                found.append(Fact("Majority guess", value, "always each client's commonest class"))
    trials = sum(len(own.group.trials) for own in told)
    rounds = sum(len(own.rows) for own in told)
    found.append(Fact("Trials", whole(trials), f"{count(rounds, 'round')} in all"))
    seconds = sum(row["seconds"]["total"] for own in told for row in own.rows)
    found.append(Fact("Time", duration(seconds), "of all runs together"))
    return found


# --- how they are told of -------------------------------------------------------------------------


def _title(runs: Sequence[Run], settings: dict[str, list[Told]]) -> str:
    names = list(dict.fromkeys(run.name for run in runs))
    data = list(dict.fromkeys(data_name(run.config) for run in runs))
    who = listed(names, 4) if len(names) <= 4 else count(len(names), "method")
    return f"{who} on {listed(data, 3) if len(data) <= 3 else count(len(data), 'data set')}"


def _lead(runs: Sequence[Run], told: Sequence[Told], settings: dict[str, list[Told]]) -> str:
    first = runs[0].config
    text = count(len(runs), "run")
    if len(told) == 1:
        text += " that differ in seeds alone"
    elif len(told) < len(runs):
        text += f" in {len(told)} groups, within which they differ in seeds alone"
    if len(settings) > 1:
        text += f", on {len(settings)} data sets or splits, which are not compared with each other"
    clients = {run.config["clients"] for run in runs}
    if len(clients) == 1:
        text += f". {count(first['clients'], 'client')}"
        models = list(dict.fromkeys(str(run.config["models"]) for run in runs))
        text += f" with models of {listed(models, 3)}"
    stamps = [str(own.rows[-1].get("time", "")) for own in told]
    if stamps and (when := day(max(stamps))):
        text += f". {when}"
    return text + "."


def _state(runs: Sequence[Run]) -> str:
    open_ = [found for run in runs if (found := state(run))]
    return f"{len(open_)} of {len(runs)} not finished" if open_ else ""


def _differences(runs: Sequence[Run]) -> Section:
    table = differences_table([run.folder.name for run in runs], [run.config for run in runs])
    return Section("What differs", [table] if table else [])


def _departures(told: Sequence[Told]) -> list[Section]:
    """What departs from papers, told once for runs that depart alike."""
    section = Section("Departures from the papers")
    for own in told:
        for part in departures(own.config).parts:
            if part not in section.parts:
                section.parts.append(part)
    section.parts.sort(key=lambda part: isinstance(part, str))
    return [section]


def _each(
    runs: Sequence[Run], told: Sequence[Told], drawings: Drawings, begun: set[int]
) -> Section:
    """Each run by itself, and the command that makes the page again."""
    labels = {id(run): own.group.label for own in told for run in own.group.runs}
    again = " \\\n    ".join(["protofl report", *(shown(run.folder) for run in runs)])
    section = Section("The runs", [Command("Make this page again", again, folded=len(runs) > 4)])
    for run in runs:
        label = labels.get(id(run), run.name)
        title = label if label == run.folder.name else f"{run.folder.name}: {label}"
        if id(run) not in begun:
            parts: list[Part] = ["It has no finished round yet.", *commands(run)]
        else:
            own = Told(Group(run.name, tuple(trials_of(run))))
            parts = [sentence(own), *facts(own), *notes(own)]
            pictures = Pictures([own], drawings)
            parts += [p for p in (pictures.split(own), pictures.terms(own)) if p]
            parts += [*options_section(run.config).parts, *commands(run)]
        if found := state(run):
            title += f" ({found})"
        section.inner.append(Section(title, parts))
    return section
