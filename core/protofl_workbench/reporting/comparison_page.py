"""The page of several runs: compared as by `protofl.compare`, and each run by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from protofl.errors import UsageError
from protofl_workbench import plots
from protofl_workbench.comparing.compare import baseline_of, compare
from protofl_workbench.comparing.comparison import sheets
from protofl_workbench.comparing.run_groups import (
    Group,
    Labels,
    divergence,
    grouped,
    label_notes,
    new_labels,
    progress,
    with_labels,
    with_score_of,
    without_copies,
)
from protofl_workbench.comparing.run_labels import data_name
from protofl_workbench.comparing.trials import trials_of
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.reporting.configuration import (
    commands,
    deviations_section,
    differences_section,
    options_section,
)
from protofl_workbench.reporting.number_formats import (
    count,
    day,
    duration,
    integer,
    listed,
    sentence,
)
from protofl_workbench.reporting.page_parts import Drawings, Fact, Page, PageTable, Part, Section
from protofl_workbench.reporting.run_facts import key_facts, moments, remarks
from protofl_workbench.reporting.run_page import groups_with, has_clients, run_state

CURVES = 12
"""Largest number of groups in a figure; of more groups the best ones are drawn."""


def comparison_page(
    runs: Sequence[Run],
    drawings: Drawings,
    foot: str,
    baseline: str = "",
    damaged: Sequence[str] = (),
    labels: Labels = (),
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
        note: Takes a line for each group with a new name.

    Raises:
        UsageError: No group has the name of the baseline or of a label.
    """
    notes = [*damaged]
    groups = [group for group in without_copies(grouped(list(runs)), notes) if group.trials]
    names = [group.label for group in groups]
    renamed = new_labels(labels, names)
    groups = with_labels(groups, renamed)
    for line in label_notes(renamed):
        note(line)
    notes += label_notes(renamed)
    baseline = renamed.get(baseline, baseline)
    if baseline and groups:
        baseline_of(groups, baseline)
    results = Section("Results", [f"{line}." for line in notes])
    if groups:
        results.parts += [*_tables(groups, drawings, baseline), *_pictures(groups, drawings)]
    sections = [
        results,
        differences_section(runs),
        deviations_section([group.runs[0].config for group in groups]),
        Section("Runs", inner=[_about(run, groups) for run in runs]),
    ]
    rows = [row for run in runs for row in run.rows]
    trials = sum(len(group.trials) for group in groups)
    facts = [
        Fact("Trials", integer(trials), f"{count(len(rows), 'round')} in all", lead=True),
        Fact("Time", duration(sum(r.seconds["total"] for r in rows)), "of all runs together"),
    ]
    return Page(
        _title(runs),
        f"protofl · {count(len(runs), 'run')}",
        _lead(runs, groups),
        ", ".join(filter(None, (_state(runs), f"{len(damaged)} damaged" * bool(damaged)))),
        facts,
        [section for section in sections if section],
        foot,
    )


def _tables(groups: Sequence[Group], drawings: Drawings, baseline: str) -> Iterator[Part]:
    """Yield the tables of `protofl.compare` with its notes, or why it refuses the runs."""
    try:
        comparison = compare({group.label: group.runs for group in groups}, baseline=baseline)
    except UsageError as error:
        yield f"No comparison: {error.what}."
        return
    for sheet in sheets(comparison):
        numbers = frozenset(range(1, len(sheet.columns)))
        yield PageTable(sentence(sheet.title), sheet.columns, sheet.rows, numbers, sortable=True)
    if any(row.difference for t in comparison.tables if t.name == "final" for row in t.rows):
        figure = plots.differences(comparison, "final", font="sans")
        caption = "Points are pairs with the same seed and split; with the mean and its interval."
        yield drawings.picture("Differences to the baseline", figure, caption)
    yield " ".join(f"{line}." for line in comparison.notes)


def _pictures(groups: Sequence[Group], drawings: Drawings) -> Iterator[Part]:
    """Yield curves, clients and traffic of the groups, or of the best groups."""
    for group in groups:
        if lost := [*filter(None, map(divergence, group.runs))]:
            yield f"{group.label} {'; '.join(lost)}."
    if len(groups) > CURVES:
        finals = {g.label: (moments(g, "final") or (-math.inf, None))[0] for g in groups}
        best = sorted(finals, key=lambda label: finals[label], reverse=True)[:CURVES]
        groups = [group for group in groups if group.label in best]
        yield with_score_of(
            f"Figures show the {CURVES} groups with the best final accuracy.", groups
        )
    if scored := groups_with(groups, lambda trial: trial.has("accuracy")):
        title, caption = (
            with_score_of(text, scored)
            for text in ("Test accuracy", "Test accuracy over rounds, mean over trials.")
        )
        yield drawings.picture(title, plots.curve(scored, font="sans"), caption)
    # Total losses have different terms; the cross-entropy is comparable.
    has_ce = all(trial.has("loss_terms.ce") for g in groups for trial in g.trials)
    name, title = ("loss_terms.ce", "Cross-entropy") if has_ce else ("loss", "Training loss")
    figure = plots.curve(groups, name, font="sans")
    yield drawings.picture(title, figure, f"{title} over rounds, mean over trials.")
    if with_clients := groups_with(groups, has_clients):
        figure = plots.clients(with_clients, font="sans")
        title = with_score_of("Accuracy of each client", with_clients)
        caption = "The last evaluation; clients in their order within each trial, the worst first."
        yield drawings.picture(title, figure, caption)
    figure = plots.traffic(groups, font="sans")
    yield drawings.picture("Traffic of a round", figure, "All clients, mean over rounds.")


def _title(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(run.name for run in runs))
    data = list(dict.fromkeys(data_name(run.config) for run in runs))
    who = listed(names, 4) if len(names) <= 4 else count(len(names), "method")
    return f"{who} on {listed(data, 3) if len(data) <= 3 else count(len(data), 'data set')}"


def _lead(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    text = count(len(runs), "run")
    if len(groups) == 1:
        text += " that differ only in their seeds"
    elif len(groups) < len(runs):
        text += f" in {len(groups)} groups, within which only seeds differ"
    clients = {run.config["clients"] for run in runs}
    if len(clients) == 1:
        models = list(dict.fromkeys(str(run.config["models"]) for run in runs))
        text += f". {count(clients.pop(), 'client')} with models of {listed(models, 3)}"
    when = day(max((str(run.rows[-1].time) for run in runs if run.rows), default=""))
    return f"{text}.{f' {when}.' if when else ''}"


def _state(runs: Sequence[Run]) -> str:
    counts = {
        "not finished": sum(bool(progress(run)) for run in runs),
        "diverged": sum(bool(divergence(run)) for run in runs),
    }
    return ", ".join(f"{n} of {len(runs)} {what}" for what, n in counts.items() if n)


def _about(run: Run, groups: Sequence[Group]) -> Section:
    """Return a run by itself: key figures, remarks, options that differ from defaults, command."""
    label = next((g.label for g in groups if any(one is run for one in g.runs)), run.name)
    title = label if label == run.folder.name else f"{run.folder.name}: {label}"
    if run.rounds_done:
        group = Group(run.name, tuple(trials_of(run)))
        parts: list[Part] = [*key_facts(group), *remarks(group)]
    else:
        parts = ["No round has finished yet."]
    if state := run_state(run):
        title += f" ({state})"
    return Section(title, [*parts, options_section(run.config).parts[0], *commands(run)])
