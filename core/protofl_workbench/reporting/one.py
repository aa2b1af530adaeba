"""The page of one run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from protofl.records.folder.row import Row
from protofl.runs.reuse.run import Run
from protofl_workbench.comparing.run_groups import Group
from protofl_workbench.comparing.run_labels import data_name
from protofl_workbench.comparing.trials import trials_of
from protofl_workbench.reporting.about import facts, notes, sentence, state, versions_table
from protofl_workbench.reporting.choices import departures, options_section
from protofl_workbench.reporting.commands import commands
from protofl_workbench.reporting.drawing import Drawings
from protofl_workbench.reporting.numbers import NONE, number, percent, whole
from protofl_workbench.reporting.observations import observed_section
from protofl_workbench.reporting.parts import Page, Part, Picture, Section, Table
from protofl_workbench.reporting.pictures import Pictures
from protofl_workbench.reporting.told import Told

BESIDE = {
    "validation-accuracy": "Validation accuracy",
    "train-accuracy": "Training accuracy",
    "server-accuracy": "Accuracy of the server's model",
    "honest-accuracy": "Accuracy of the honest clients",
    "unseen-accuracy": "Accuracy of unseen clients",
    "std": "Deviation over clients",
    "macro-f1": "Macro F1",
    "balanced-accuracy": "Balanced accuracy",
    "auc": "Area under the ROC curve",
    "ece": "Calibration error",
    "margin": "Prototype margin",
    "lr": "Learning rate",
}
"""Further figures over rounds, of which a page shows those that are recorded."""


OVER = (
    ("mb", "Accuracy for traffic", "What all clients send and receive."),
    ("virtual", "Accuracy for virtual time", "Seconds of the devices that were simulated."),
    ("flops", "Accuracy for computing", "FLOPs of all clients' training."),
)
"""What accuracy is drawn over beside rounds, where it is recorded."""


def page_of(run: Run, drawings: Drawings, foot: str) -> Page:
    """The page of a run that has a round at least, or hasn't yet.

    Args:
        run: The run.
        drawings: Takes its figures.
        foot: The last line.
    """
    trials = tuple(trials_of(run))
    title = f"{run.name} on {data_name(run.config)}"
    kicker = f"protofl · {run.config['models']}"
    if not trials:
        lead = "It has no finished round yet: make this page again when it has."
        sections = [Section("Make it again", [*commands(run)]), options_section(run.config)]
        return Page(title, kicker, lead, state(run), [], sections, foot)
    told = Told(Group(run.name, trials))
    return Page(
        title,
        kicker,
        sentence(told),
        state(run),
        list(facts(told)),
        [section for section in sections_of(told, drawings) if section],
        foot,
    )


def sections_of(told: Told, drawings: Drawings) -> list[Section]:
    """All sections of a run's page; some may be empty."""
    pictures = Pictures([told], drawings)
    run = told.run
    return [
        learning(told, pictures),
        Section("Clients and classes", clients_and_classes(told, pictures)),
        observed_section(told, drawings),
        Section("Traffic and time", [*costs(pictures), *_records(told)]),
        departures(run.config),
        options_section(run.config),
        Section(
            "Make it again",
            [
                *commands(run),
                Table(
                    "Made with", ("what", "which"), versions_table(run), folded=True,
                    words=frozenset({1}),
                ),
            ],
        ),
    ]  # fmt: skip


def learning(told: Told, pictures: Pictures) -> Section:
    """What is learned, round by round."""
    guess = told.end("majority_accuracy")
    dotted, target = "", None
    if guess is not None and guess.mean == guess.mean:
        dotted, target = f" Dotted: the majority guess, {percent(guess.mean)}.", guess.mean
    band = "Mean over trials; the band is one standard deviation." if len(told.ends) > 1 else ""
    found: list[Part | None] = [
        pictures.over_rounds(
            "accuracy", "Test accuracy", caption=f"{band}{dotted}".strip(), wide=True, target=target
        ),
        pictures.over_rounds("loss", "Training loss", caption="Weighted, over a round's samples."),
        pictures.terms(told),
    ]
    found += [pictures.over_rounds(name, title) for name, title in BESIDE.items()]
    return Section("Learning", [*(p for p in found if p), *notes(told)])


def clients_and_classes(told: Told, pictures: Pictures) -> list[Part]:
    """Who learned how much, and which classes."""
    found: list[Part | None] = [pictures.clients(), pictures.split(told), pictures.confusion(told)]
    recall = _last(told, lambda row: _metric(row, "recall-by-class"))
    if recall:
        found.append(
            pictures.by_class(
                told,
                "Recall of each class",
                {"recall": recall},
                "recall (%)",
                percent,
                100.0,
                "Test samples of all clients at the last evaluation, mean over trials.",
            )
        )
    margins = {
        name: values
        for name in ("global", "clients")
        if (values := _last(told, lambda row, n=name: _margins(row, n)))
    }
    if margins:
        labels = {"global": "of global prototypes", "clients": "largest of a client's"}
        found.append(
            pictures.by_class(
                told,
                "Margin of each class",
                {labels[n]: v for n, v in margins.items()},
                "distance to the nearest other class",
                number,
                caption="Distance of a prototype to the nearest one of another class, in the last "
                "round, mean over trials (FedTGP, Fig. 1).",
            )
        )
    return [part for part in found if part]


def costs(pictures: Pictures, *, over: bool = True) -> list[Picture]:
    """What rounds take.

    Args:
        pictures: Makes the pictures.
        over: Whether accuracies may be drawn over it.
    """
    found = [pictures.traffic(), pictures.stages()]
    for cost, title, caption in OVER if over else ():
        if picture := pictures.over_cost(cost, title, caption):
            found.append(picture)
    return found


def _records(told: Told) -> list[Table]:
    """Traffic of a round in the units of the papers."""
    rows = []
    for way, label in (("upload", "up"), ("download", "down")):
        for unit in ("floats", "bytes"):
            values = [float(row[f"{way}_{unit}"]) for row in told.rows]
            first = [float(r[f"{way}_{unit}"]) for r in told.rows if r.round == 0]
            later = [float(r[f"{way}_{unit}"]) for r in told.rows if r.round > 0]
            rows.append(
                (
                    f"{unit} {label}",
                    whole(statistics.fmean(first)) if first else NONE,
                    whole(statistics.fmean(later)) if later else NONE,
                    whole(sum(values) / len(told.group.trials)),
                )
            )
    columns = ("", "in round 1", "in a later round", "in all rounds")
    return [
        Table(
            "Traffic of all clients: floats are parameters and prototypes, bytes all that crosses",
            columns,
            [tuple(row) for row in rows],
            frozenset({1, 2, 3}),
        )
    ]


Values = Sequence[float | None]


def _last(told: Told, read: Any) -> list[float | None]:  # noqa: ANN401 - a function of a line
    """A list of figures in the trials' last lines that have it, the mean entry by entry."""
    found: list[Values] = []
    for trial in told.whole:
        values = next((v for row in trial.rows[::-1] if (v := read(row)) is not None), None)
        if values is not None:
            found.append(values)
    columns = [[v for v in entries if v is not None] for entries in zip(*found, strict=False)]
    return [statistics.fmean(entries) if entries else None for entries in columns]


def _metric(row: Row, name: str) -> Values | None:
    values = row.metrics.get(name, {}).get("all")
    return values if isinstance(values, list) else None


def _margins(row: Row, whose: str) -> Values | None:
    values = row.measures.get("margins", {}).get(whose)
    return values if isinstance(values, list) else None
