"""The page of one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from protofl.data.task_names import task_name
from protofl.records.row import Row
from protofl_workbench.comparing.run_groups import Group, divergence, progress, with_score_of
from protofl_workbench.comparing.run_labels import data_name
from protofl_workbench.comparing.trials import accuracies_by_architecture, trials_of
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.reporting.configuration import commands, deviations_section, options_section
from protofl_workbench.reporting.further_sections import further_sections
from protofl_workbench.reporting.group_record import GroupRecord
from protofl_workbench.reporting.number_formats import NONE, integer, number, percent
from protofl_workbench.reporting.observation_pictures import observed_section
from protofl_workbench.reporting.page_parts import Drawings, Page, PageTable, Part, Section
from protofl_workbench.reporting.run_facts import (
    key_facts,
    remarks,
    summary_sentence,
    versions_table,
)
from protofl_workbench.reporting.run_pictures import Pictures

OVER_ROUNDS = {
    "validation-accuracy": "Validation accuracy",
    "train-accuracy": "Training accuracy",
    "global-accuracy": "Accuracy on all classes alike",
    "server-accuracy": "Accuracy of the server's model",
    "honest-accuracy": "Accuracy of honest clients",
    "unseen-accuracy": "Accuracy of unseen clients",
    "std": "Deviation over clients",
    "perplexity": "Perplexity (lower is better)",
    "macro-f1": "Macro F1",
    "balanced-accuracy": "Balanced accuracy",
    "map": "Mean average precision",
    "label-f1": "Macro F1 over labels",
    "mae": "Mean absolute error",
    "auc": "Area under the ROC curve",
    "ece": "Calibration error",
    "margin": "Prototype margin",
    "lr": "Learning rate",
}
"""Further figures over rounds, which are shown if they are recorded."""

_CLIENTS = {
    "classification": "Clients and classes",
    "multilabel": "Clients and labels",
    "regression": "Clients",
    "language-model": "Clients",
}


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
        "There is no finished round yet: write this page again later.",
        run_state(run),
        [],
        [repeat, options_section(run.config)],
        foot,
    )
    if not trials:
        return page
    record = GroupRecord(Group(run.name, trials))
    pictures = Pictures([record], drawings)
    repeat.parts.append(versions_table(run))
    sections = [
        _learning(record, pictures),
        Section(_CLIENTS[task_name(run.config)], _clients_and_classes(record, pictures)),
        observed_section(record, drawings),
        *further_sections(run),
        Section("Traffic", [pictures.traffic(), _traffic_table(record)]),
        deviations_section([run.config]),
        options_section(run.config),
        repeat,
    ]
    warning = f"{run.problem}: do not trust the figures below. " if run.problem else ""
    page.lead, page.facts = warning + summary_sentence(record), list(key_facts(record))
    page.sections = [section for section in sections if section]
    return page


def run_state(run: Run) -> str:
    """Return the progress of an unfinished run, and the round in which a run diverged."""
    return ", ".join(filter(None, (progress(run), divergence(run))))


def _learning(record: GroupRecord, pictures: Pictures) -> Section:
    guess = record.end("majority_accuracy")
    caption = "Mean over trials; the band is one standard deviation." * (len(record.ends) > 1)
    caption += f" Dotted: the majority guess, {percent(guess.mean)}." if guess else ""
    candidates: list[Part | None] = [
        pictures.over_rounds(
            "accuracy", "Test accuracy", caption=caption.strip(), wide=True,
            target=guess.mean if guess else None,
        ),
        pictures.over_rounds("loss", "Training loss", caption="Weighted, over a round's samples."),
        pictures.terms(record),
        *(
            pictures.over_rounds(name, title, caption=_about(name, record))
            for name, title in OVER_ROUNDS.items()
        ),
    ]  # fmt: skip
    return Section("Learning", [*(picture for picture in candidates if picture), *remarks(record)])


def _about(name: str, record: GroupRecord) -> str:
    """Describe the samples of global accuracy; empty for other figures."""
    if name != "global-accuracy":
        return ""
    counts = sorted(
        {int(n) for row in record.rows if (n := row.measures.get("global_samples_per_class"))}
    )
    if not counts:
        return ""
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Each client's model on {span} test samples of each class, from all clients."


def _clients_and_classes(record: GroupRecord, pictures: Pictures) -> list[Part]:
    candidates = [pictures.clients(), pictures.split(record), pictures.confusion(record)]
    recall = _last(record, lambda row: row.metrics.get("recall-by-class", {}).get("all"))
    if recall:
        candidates.append(
            pictures.by_class(
                record, "Recall of each class", {"recall": recall}, "recall (%)", percent, 100.0,
                "Test samples of all clients at the last evaluation, mean over trials.",
            )
        )  # fmt: skip
    margins = {
        label: values
        for key, label in {
            "global": "of global prototypes", "clients": "largest of a client's",
        }.items()
        if (values := _last(record, lambda row, k=key: row.measures.get("margins", {}).get(k)))  # type: ignore[misc]
    }  # fmt: skip
    if margins:
        candidates.append(
            pictures.by_class(
                record, "Margin of each class", margins, "distance to the nearest other class",
                number, caption="Distance of a prototype to the nearest prototype of another "
                "class, in the last round, mean over trials (FedTGP, Fig. 1).",
            )
        )  # fmt: skip
    each = accuracies_by_architecture(record.run)
    if each:
        rows = [[name, percent(statistics.mean(values))] for name, values in each.items()]
        title, *columns = (
            with_score_of(text, [record.group])
            for text in ("Accuracy by architecture", "architecture", "mean accuracy of its clients")
        )
        table = PageTable(title, columns, rows, numbers=frozenset({1}))
        return [*(picture for picture in candidates if picture), table]
    return [picture for picture in candidates if picture]


def _traffic_table(record: GroupRecord) -> PageTable:
    """Return the traffic in the units of the papers."""
    rows = []
    units: dict[str, Callable[[Row], int]] = {
        "floats up": lambda row: row.upload_floats,
        "bytes up": lambda row: row.upload_bytes,
        "floats down": lambda row: row.download_floats,
        "bytes down": lambda row: row.download_bytes,
    }
    for name, read in units.items():
        first = [read(row) for row in record.rows if row.round == 0]
        later = [read(row) for row in record.rows if row.round > 0]
        means = [integer(statistics.fmean(each)) if each else NONE for each in (first, later)]
        rows.append((name, *means, integer(sum(first + later) / len(record.group.trials))))
    return PageTable(
        "Traffic of all clients: floats are parameters and prototypes, bytes are everything sent",
        ("", "in round 1", "in a later round", "in all rounds"),
        rows,
        frozenset({1, 2, 3}),
    )


def _last(
    record: GroupRecord, read: Callable[[Row], Sequence[float | None] | None]
) -> list[float | None]:
    """Return a list of figures in the last line of each trial that has it, as means over trials."""
    last_values = []
    for trial in record.complete:
        each = [values for row in trial.rows if isinstance(values := read(row), list)]
        last_values += each[-1:]
    columns = [[v for v in entries if v is not None] for entries in zip(*last_values, strict=False)]
    return [statistics.fmean(entries) if entries else None for entries in columns]
