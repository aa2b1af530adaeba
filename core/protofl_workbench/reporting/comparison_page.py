"""The page of several runs: compared where possible, and each run by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from protofl.data.task_names import score_name
from protofl_workbench.comparing.compare import baseline_of
from protofl_workbench.comparing.run_groups import (
    Group,
    Labels,
    divergence,
    grouped,
    in_order,
    label_notes,
    new_labels,
    places_in,
    progress,
    with_labels,
    without_copies,
)
from protofl_workbench.comparing.run_labels import data_key, data_name, titles_of
from protofl_workbench.comparing.trials import trials_of
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.reporting.configuration import (
    commands,
    deviations_section,
    differences_section,
    options_section,
    shell_path,
)
from protofl_workbench.reporting.group_record import GroupRecord
from protofl_workbench.reporting.number_formats import (
    count,
    day,
    duration,
    integer,
    listed,
    points,
    spread,
)
from protofl_workbench.reporting.page_parts import Command, Drawings, Fact, Page, Part, Section
from protofl_workbench.reporting.ranking import final_accuracy, ranking
from protofl_workbench.reporting.results_section import BARS, CURVES, best_groups, results_section
from protofl_workbench.reporting.run_facts import guess_fact, key_facts, remarks, summary_sentence
from protofl_workbench.reporting.run_page import run_state
from protofl_workbench.reporting.run_pictures import Pictures


def comparison_page(
    runs: Sequence[Run],
    drawings: Drawings,
    foot: str,
    baseline: str = "",
    damaged: Sequence[str] = (),
    labels: Labels = (),
    order: str | Sequence[str] = (),
    note: Callable[[str], None] = lambda line: None,
) -> Page:
    """Return the page of several runs.

    Args:
        runs: The runs.
        drawings: The figures of the page.
        foot: Last line.
        baseline: The baseline of differences; empty for the default one.
        damaged: A line for each run that is left out because its files are damaged.
        labels: New names of groups.
        order: Names of groups in the order in which they are shown.
        note: Takes a line for each group with a new name.

    Raises:
        UsageError: No group has the name of the baseline or of a label.
    """
    notes = [*damaged]
    records = _records(runs, notes)
    settings = _by_setting(records)
    names = [record.group.label for each in (*settings.values(), records) for record in each]
    renamed = new_labels(labels, names)
    best = [r.group.label for each in settings.values() for r in best_groups(each, CURVES)]
    places = places_in([*best, *names], order, renamed, notes)
    settings = {name: _in_order(each, places, sort=bool(order)) for name, each in settings.items()}
    records = _in_order(records, places, sort=bool(order))
    records = _with_labels(records, renamed)
    settings = {name: _with_labels(of_setting, renamed) for name, of_setting in settings.items()}
    baseline = renamed.get(baseline, baseline)
    for line in label_notes(renamed):
        note(line)
    notes += label_notes(renamed)
    if baseline and records:
        baseline_of([record.group for each in settings.values() for record in each], baseline)
    sections = [
        results_section(
            f"Results on {name}" if len(settings) > 1 else "Results", of_setting, drawings, baseline
        )
        for name, of_setting in settings.items()
    ]
    if notes:
        more = [f"And {len(notes) - 6} notes more"] if len(notes) > 6 else []
        sections[0].parts.append(" ".join(f"{note}." for note in [*notes[:6], *more]))
    if records:
        pictures = Pictures(best_groups(records, BARS), drawings)
        sections.append(Section("Traffic", [pictures.traffic()]))
    sections += [
        differences_section(runs),
        deviations_section([record.config for record in records]),
        _runs_section(runs, records, drawings),
    ]
    return Page(
        _title(runs),
        f"protofl · {count(len(runs), 'run')}",
        _lead(runs, records, settings),
        ", ".join(filter(None, (_state(runs), f"{len(damaged)} damaged" * bool(damaged)))),
        _facts(runs, records, settings),
        [section for section in sections if section],
        foot,
    )


def _records(runs: Sequence[Run], notes: list[str], *, settings: bool = True) -> list[GroupRecord]:
    """Return the groups that have rounds, without repeated trials."""
    groups = without_copies(grouped(list(runs), settings=settings), notes)
    return [GroupRecord(group) for group in groups if group.trials]


def _with_labels(records: Sequence[GroupRecord], labels: Mapping[str, str]) -> list[GroupRecord]:
    return [GroupRecord(group) for group in with_labels([r.group for r in records], labels)]


def _in_order(
    records: Sequence[GroupRecord], places: Mapping[str, int], *, sort: bool
) -> list[GroupRecord]:
    """Give groups their colours on this page, and the order of `places_in` if it was asked for."""
    groups = in_order([record.group for record in records], places)
    if not sort:
        given = [record.group.label for record in records]
        groups.sort(key=lambda group: given.index(group.label))
    return [GroupRecord(group) for group in groups]


def _by_setting(records: Sequence[GroupRecord]) -> dict[str, list[GroupRecord]]:
    """Return groups by their data; labels do not repeat what all groups of a setting share."""
    settings: dict[str, list[GroupRecord]] = {}
    for record in records:
        settings.setdefault(data_key(record.run), []).append(record)
    names = titles_of([of_setting[0].run for of_setting in settings.values()])
    if len(settings) == 1:
        return dict(zip(names, settings.values(), strict=True))
    return {
        name: _records(
            [run for record in of_setting for run in record.group.runs], [], settings=False
        )
        for name, of_setting in zip(names, settings.values(), strict=True)
    }


def _facts(
    runs: Sequence[Run], records: Sequence[GroupRecord], settings: dict[str, list[GroupRecord]]
) -> list[Fact]:
    """Return the best group and its margin, or why there is none, and the cost of all runs."""
    result = _headline(records, settings)
    if len(settings) == 1 and records and (guess := records[0].end("majority_accuracy")):
        result.append(guess_fact(records[0].config, guess))
    trials = sum(len(record.group.trials) for record in records)
    rounds = sum(len(record.rows) for record in records)
    result.append(Fact("Trials", integer(trials), f"{count(rounds, 'round')} in all"))
    seconds = sum(row.seconds["total"] for run in runs for row in run.rows)
    result.append(Fact("Time", duration(seconds), "of all runs together"))
    return result


def _headline(records: Sequence[GroupRecord], settings: dict[str, list[GroupRecord]]) -> list[Fact]:
    """Return the best group and its margin; or what differs, if the groups cannot be ranked."""
    if len(settings) > 1:
        return [Fact("No ranking", "the data differ", listed([*settings], 4), lead=True)]
    if len(records) < 2:
        return [*_only_group(records)]
    order = ranking(records)
    without = [f"{label} ({why})" for label, why in order.left_out]
    if not order.order:
        what = f"the {listed(order.apart)} differ" if order.apart else "too few finished runs"
        return [Fact("No ranking", what, "; ".join([*order.details, *without[:4]]), lead=True)]
    best, second = order.order[:2]
    final = best.end("final_test_accuracy")
    score = score_name(best.config)
    note = f"{spread(final.mean, final.std)} final test {score}" if final else ""
    note += f", seeds {', '.join(map(str, order.seeds))}" if order.seeds else ""
    note += f"; without {listed(without, 4)}" if without else ""
    title = "Level at the end" if len(order.best) > 1 else "Ahead at the end"
    result = [Fact(title, listed(order.best, 3), note, lead=True)]
    if margin := final_accuracy(best) - final_accuracy(second):
        note = f"points of final test {score} ahead of {second.group.label}"
        result.append(Fact("Margin", points(margin), note, lead=True))
    return result


def _only_group(records: Sequence[GroupRecord]) -> Iterator[Fact]:
    """Return the final accuracy of the only group."""
    for record in records:
        if (final := record.end("final_test_accuracy")) is not None:
            note = f"mean of {count(len(record.ends), 'trial')}"
            note += f", {record.group.state}" if record.group.state else ""
            title = f"Final test {score_name(record.config)}"
            yield Fact(title, spread(final.mean, final.std), note, lead=True)


def _title(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(run.name for run in runs))
    data = list(dict.fromkeys(data_name(run.config) for run in runs))
    who = listed(names, 4) if len(names) <= 4 else count(len(names), "method")
    return f"{who} on {listed(data, 3) if len(data) <= 3 else count(len(data), 'data set')}"


def _lead(
    runs: Sequence[Run], records: Sequence[GroupRecord], settings: dict[str, list[GroupRecord]]
) -> str:
    text = count(len(runs), "run")
    if len(records) == 1:
        text += " that differ only in their seeds"
    elif len(records) < len(runs):
        text += f" in {len(records)} groups, within which only seeds differ"
    if len(settings) > 1:
        text += f", on {len(settings)} data sets or splits, which are not compared with each other"
    clients = {run.config["clients"] for run in runs}
    if len(clients) == 1:
        models = list(dict.fromkeys(str(run.config["models"]) for run in runs))
        text += f". {count(clients.pop(), 'client')} with models of {listed(models, 3)}"
    stamps = [str(record.rows[-1].time) for record in records]
    when = day(max(stamps, default=""))
    return f"{text}.{f' {when}.' if when else ''}"


def _state(runs: Sequence[Run]) -> str:
    counts = {
        "not finished": sum(bool(progress(run)) for run in runs),
        "diverged": sum(bool(divergence(run)) for run in runs),
    }
    return ", ".join(f"{n} of {len(runs)} {what}" for what, n in counts.items() if n)


def _runs_section(
    runs: Sequence[Run], records: Sequence[GroupRecord], drawings: Drawings
) -> Section:
    """Return each run by itself, and the command that writes the page again."""
    labels = {id(run): record.group.label for record in records for run in record.group.runs}
    command = " \\\n    ".join(["protofl report", *(shell_path(run.folder) for run in runs)])
    section = Section("Runs", [Command("Write this page again", command, folded=len(runs) > 4)])
    for run in runs:
        label = labels.get(id(run), run.name)
        title = label if label == run.folder.name else f"{run.folder.name}: {label}"
        if not run.rounds_done:
            parts: list[Part] = ["There is no finished round yet.", *commands(run)]
        else:
            record = GroupRecord(Group(run.name, tuple(trials_of(run))))
            pictures = Pictures([record], drawings)
            parts = [summary_sentence(record), *key_facts(record), *remarks(record)]
            candidates = [
                pictures.split(record), pictures.terms(record), pictures.confusion(record),
            ]  # fmt: skip
            parts += [picture for picture in candidates if picture]
            if run.observed:
                command = f"protofl report {shell_path(run.folder)}"
                parts.append(Command("Show the observations of this run", command))
            parts += [*options_section(run.config).parts, *commands(run)]
        if state := run_state(run):
            title += f" ({state})"
        section.inner.append(Section(title, parts))
    return section
