"""The page of one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from protofl.data.task_names import STRATA, score_name, task_name
from protofl.errors import TooLittle, UsageError
from protofl.records.row import Row
from protofl_workbench import plots
from protofl_workbench.comparing.run_groups import Group, divergence, progress, with_score_of
from protofl_workbench.comparing.run_labels import data_name
from protofl_workbench.comparing.trials import Trial, accuracies_by_architecture, trials_of
from protofl_workbench.plots.curves import Curve, curve_chart
from protofl_workbench.plots.observation_charts import CHARTS
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.reporting.configuration import commands, deviations_section, options_section
from protofl_workbench.reporting.further_sections import further_sections
from protofl_workbench.reporting.number_formats import NONE, integer, percent, spread
from protofl_workbench.reporting.page_parts import Drawings, Page, PageTable, Part, Picture, Section
from protofl_workbench.reporting.run_facts import (
    key_facts,
    remarks,
    split_of,
    summary_sentence,
    versions_table,
)

OVER_ROUNDS = {
    "accuracy": "Test accuracy",
    "loss": "Training loss",
    "validation-accuracy": "Validation accuracy",
    "server-accuracy": "Accuracy of the server's model",
    "honest-accuracy": "Accuracy of honest clients",
    "unseen-accuracy": "Accuracy of unseen clients",
    "perplexity": "Perplexity (lower is better)",
    "balanced-accuracy": "Balanced accuracy",
    "macro-f1": "Macro F1",
    "map": "Mean average precision",
    "mae": "Mean absolute error",
}
"""Figures over rounds, which are shown if they are recorded."""

OBSERVED = {
    "margins": (
        "prototypes",
        "Margins over rounds",
        "The largest margin of the clients and the server's margin, as means over classes.",
    ),
    "prototypes": (
        "prototypes",
        "Prototypes in the plane",
        "t-SNE in the last observed round. Circles are clients' prototypes, triangles the "
        "server's, colours are classes. Distances between groups and their sizes have no meaning.",
    ),
    "features": (
        "features",
        "Features of test samples",
        "t-SNE of the features of all clients in the last observed round; colours are classes.",
    ),
    "images": (
        "images",
        "Generated images",
        "Images of the server, one for each class, by rounds.",
    ),
}
"""{chart: the observation that it needs, title and caption}."""


def run_page(run: Run, drawings: Drawings, foot: str) -> Page:
    """Return the page of a run, which may be unfinished.

    Args:
        run: The run.
        drawings: The figures of the page.
        foot: Last line.
    """
    trials = tuple(trials_of(run))
    repeat = Section("Repeat the run", [*commands(run)])
    page = Page(
        f"{run.name} on {data_name(run.config)}",
        f"protofl · {run.config['models']}",
        "No round has finished yet: write this page again later.",
        run_state(run),
        [],
        [repeat, options_section(run.config)],
        foot,
    )
    if not trials:
        return page
    group = Group(run.name, trials)
    repeat.parts.append(versions_table(run))
    sections = [
        Section("Learning", [*_curves(group, drawings), *remarks(group)]),
        Section("Clients", [*_clients(group, drawings)]),
        Section("Observations", [*_observations(run, drawings)]),
        *further_sections(run),
        Section("Traffic", [_traffic_table(group)]),
        deviations_section([run.config]),
        options_section(run.config),
        repeat,
    ]
    warning = f"{run.problem}: do not trust the figures below. " if run.problem else ""
    page.lead, page.facts = warning + summary_sentence(group), list(key_facts(group))
    page.sections = [section for section in sections if section]
    return page


def run_state(run: Run) -> str:
    """Return the progress of an unfinished run, and the round in which a run diverged."""
    return ", ".join(filter(None, (progress(run), divergence(run))))


def groups_with(groups: Iterable[Group], has: Callable[[Trial], bool]) -> list[Group]:
    """Return the groups with those of their trials that have something recorded."""
    found = [replace(group, trials=tuple(filter(has, group.trials))) for group in groups]
    return [group for group in found if group.trials]


def has_clients(trial: Trial) -> bool:
    """Return True if a trial has recorded the accuracy of each client."""
    return any(row.client_accuracies for row in trial.rows)


def _curves(group: Group, drawings: Drawings) -> Iterator[Picture]:
    """Yield the recorded figures over rounds, and the terms of the loss."""
    over = "over rounds, mean over trials; the band is one standard deviation"
    for name, title in OVER_ROUNDS.items():
        if there := groups_with([group], partial(Trial.has, name=name)):
            caption = f"{title} {over}." if len(group.trials) > 1 else f"{title} over rounds."
            figure = plots.curve(there, name, font="sans")
            yield drawings.picture(with_score_of(title, [group]), figure, caption)
    rows = [row for trial in group.complete for row in trial.rows]
    terms = dict.fromkeys(name for row in rows for name in row.loss_terms)
    curves = {}
    for name in terms if len(terms) > 1 else ():
        values: dict[int, list[float]] = {}
        for row in rows:
            if (value := row.loss_terms.get(name)) is not None:
                values.setdefault(row.round, []).append(value)
        if values:
            rounds = sorted(values)
            means = [statistics.fmean(values[number]) for number in rounds]
            curves[name] = Curve(np.array(rounds, np.float64) + 1, np.array([means]))
    if curves:
        figure = curve_chart(curves, "weighted loss", "rounds", whole=True, font="sans")
        caption = "Weighted terms, averaged over the samples of a round; their sum is the loss."
        yield drawings.picture("Terms of the loss", figure, caption)


def _clients(group: Group, drawings: Drawings) -> Iterator[Part]:
    """Yield the clients' accuracies, the split, the confusion matrix and tables of clients."""
    run, trial, split = group.runs[0], group.trials[0].number, split_of(group)
    score = score_name(run.config)
    if there := groups_with([group], has_clients):
        caption = f"The last evaluation; clients in the order of their {score}, the worst first."
        figure = plots.clients(there, font="sans")
        yield drawings.picture(with_score_of("Accuracy of each client", [group]), figure, caption)
    _, strata = STRATA[task_name(run.config)]
    if split is not None and len(split.train_counts):
        caption = "Training and test samples of the first trial; a bubble's area is their number."
        yield drawings.picture(f"Samples of {strata} at clients", plots.split(run, trial), caption)
        try:
            figure = plots.confusion(run, trial, font="sans")
        except UsageError:  # it is not recorded
            pass
        else:
            caption = "Test samples of all clients at the last evaluation, in % of each true class."
            yield drawings.picture("Confusion matrix", figure, caption, on_paper=True)
    if lines := run.clients:
        rows = [
            (
                line["client"],
                line["architecture"],
                NONE if line["samples"] is None else integer(line["samples"]),
                spread(line["score"], line["std"] if len(run.accuracies) > 1 else None),
                percent(line["guess"]),
            )
            for line in lines
        ]
        heads = ("client", "architecture", "training samples", score, "guess")
        numbers, folded = frozenset({2, 3, 4}), not run.client_names
        yield PageTable("Clients", heads, rows, numbers, sortable=True, folded=folded)
    if each := accuracies_by_architecture(run):
        means = [(name, percent(statistics.mean(values))) for name, values in each.items()]
        title, *columns = (
            with_score_of(text, [group])
            for text in ("Accuracy by architecture", "architecture", "mean accuracy of its clients")
        )
        yield PageTable(title, columns, means, numbers=frozenset({1}))


def _observations(run: Run, drawings: Drawings) -> Iterator[Picture]:
    """Yield pictures of the first observed trial that has enough observations."""
    observed = run.observed
    if not observed:
        return
    trial = observed.trials[0]
    kinds = observed.kinds(-1, trial)
    for chart, (kind, title, caption) in OBSERVED.items():
        if kind not in kinds:
            continue
        try:
            figure = CHARTS[chart](run, trial=trial, font="sans", width="column")
        except TooLittle:
            continue
        yield drawings.picture(title, figure, caption, on_paper=chart == "images")


def _traffic_table(group: Group) -> PageTable:
    """Return the traffic in the units of the papers."""
    rows = []
    units: dict[str, Callable[[Row], int]] = {
        "floats up": lambda row: row.upload_floats,
        "bytes up": lambda row: row.upload_bytes,
        "floats down": lambda row: row.download_floats,
        "bytes down": lambda row: row.download_bytes,
    }
    each = [row for trial in group.trials for row in trial.rows]
    for name, read in units.items():
        first = [read(row) for row in each if row.round == 0]
        later = [read(row) for row in each if row.round > 0]
        means = [integer(statistics.fmean(part)) if part else NONE for part in (first, later)]
        rows.append((name, *means, integer(sum(first + later) / len(group.trials))))
    return PageTable(
        "Traffic of all clients: floats are parameters and prototypes, bytes are everything sent",
        ("", "in round 1", "in a later round", "in all rounds"),
        rows,
        frozenset({1, 2, 3}),
    )
