"""Tables of results of ``protofl run``: accuracies, spread over clients, traffic; and clients."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protofl.data.task_names import share_text
from protofl.system.formatting import count, round_word, size_text
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl.federation.plan.plan import Plan
    from protofl.records.result import Result
    from protofl.records.row import Row

TRIALS_SHOWN = 5
"""Largest number of trials with a column each."""

FEW = 10
"""Largest number of clients without names that are listed."""

LISTED = 20
"""Largest number of clients in the table."""

LABELS = {
    "best_test_accuracy": "best on test samples (as the papers)",
    "validation_selected_test_accuracy": "chosen on validation samples",
    "final_test_accuracy": "last round",
    "majority_accuracy": "majority guess",
    "final_unseen_accuracy": "unseen clients, without training",
    "fine_tuned_accuracy": "fine-tuned at the end",
    "unseen_majority_accuracy": "majority guess of unseen clients",
    "best_server_accuracy": "best server accuracy",
    "final_server_accuracy": "final server accuracy",
    "best_honest_accuracy": "best accuracy of honest clients",
    "final_honest_accuracy": "final accuracy of honest clients",
}
"""{accuracy of a summary: name in the table}."""

UNSHOWN = ("validation_selected_client_test_accuracy", "best_validation_accuracy")
"""Figures of a summary that are not in the table."""

ROUNDS = {
    "best_test_accuracy": "best_round",
    "validation_selected_test_accuracy": "validation_selected_round",
    "best_server_accuracy": "best_server_round",
    "best_honest_accuracy": "best_honest_round",
}
"""{accuracy: its round}."""

AFTER = {"best_test_accuracy": "best after", "validation_selected_test_accuracy": "chosen after"}
"""{accuracy: name of the row of its rounds, with several trials}."""


def result_rows(result: Result, plan: Plan) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows; with several trials mean ± std and each trial."""
    summary = result.summary
    trials = summary["trials"]
    task = plan.data.task
    named = "" if task.has_classes else f", {task.score_name}"
    word = round_word(plan.settings.timing)
    labels = {key: label + named for key, label in LABELS.items() if key in summary["mean"]}
    labels["final_test_accuracy"] = f"last {word}{named}"
    metrics = {k: k.replace("_", " ", 1) for k in summary["mean"] if k not in {*labels, *UNSHOWN}}
    if len(trials) == 1:
        rows = [
            [label, share_text(task.score_name, summary[key], 2)] for key, label in labels.items()
        ]
        of = count(summary.get("rounds_done", summary["rounds"]), word)
        for row, key in zip(rows, labels, strict=True):
            if key in ROUNDS:
                row[1] += f" after {summary[ROUNDS[key]] + 1} of {of}"
        rows += [[label, f"{summary[key]:.4f}"] for key, label in metrics.items()]
        return [], rows
    # Trial k of seed s has the seed s + k.
    shown = trials if len(trials) <= TRIALS_SHOWN else []
    rows = []
    for key, label in labels.items():
        spread = f"{summary['mean'][key]:.2%} ± {summary['std'][key]:.2%}"
        rows.append([label, spread, *(f"{trial[key]:.2%}" for trial in shown)])
        if key in AFTER and shown:
            after = (count(trial[ROUNDS[key]] + 1, word) for trial in shown)
            rows.append([AFTER[key], "", *after])
    for key, label in metrics.items():
        spread = f"{summary['mean'][key]:.4f} ± {summary['std'][key]:.4f}"
        rows.append([label, spread, *(f"{trial[key]:.4f}" for trial in shown)])
    return ["mean ± std", *(f"seed {plan.seed(t['trial'])}" for t in shown)], rows


def run_rows(result: Result, word: str) -> list[tuple[str, str]]:
    """Return the spread over clients, and traffic and seconds of a line of the record.

    Args:
        result: The run.
        word: ``round``, or ``step`` in a run without rounds.
    """
    rows = []
    record = result.record
    last = max(result.client_accuracies, default=None)
    spread = sorted(result.client_accuracies[last].values()) if last is not None else []
    evaluated = [r for r in record if r.test_accuracy is not None]
    if result.summary["eval_clients"] == "participants" and evaluated:
        number = evaluated[-1].evaluated
        text = f"participants, {number:,} in the last {word}; the guess is over all clients"
        rows.append(("accuracy of", text))
    metrics = (evaluated[-1].metrics or {}) if evaluated else {}
    if known := [p for p in metrics.get("perplexity", {}).get("clients", {}).values() if p]:
        middle = statistics.median(known)
        text = f"perplexity {min(known):.4g} … {max(known):.4g}, median {middle:.4g}"
        rows.append(("over clients", text))
    elif len(spread) > 1:
        rows.append(
            (
                "over clients",
                f"{spread[0]:.1%} … {spread[-1]:.1%}, median {statistics.median(spread):.1%}, "
                f"std {statistics.pstdev(spread):.1%}",
            )
        )
    elif evaluated and not spread:  # a run that was finished before
        mean, std = evaluated[-1].client_test_accuracy, evaluated[-1].test_accuracy_std
        if mean is not None and std is not None:
            rows.append(("over clients", f"mean {mean:.1%}, std {std:.1%}"))
    names = {str(line["number"]): line["client"] for line in result.clients}
    texts = {f"{name} of clients": _without_value(each, names) for name, each in metrics.items()}
    rows += [(label, text) for label, text in texts.items() if text]
    rows += traffic_rows(record, word)
    stages = [k for k in record[-1].seconds if k != "total"]
    total = statistics.mean(r.seconds["total"] for r in record)
    rows.append((f"seconds a {word}", f"{total:.2f}"))
    spent = [(k, statistics.mean(r.seconds[k] for r in record)) for k in stages]
    parts = [f"{k} {value:.2f}" for k, value in spent if value >= 0.005]
    if "virtual" in record[-1]:
        lasted = statistics.mean(r.virtual["seconds"] for r in record)
        rows.append((f"virtual seconds a {word}", f"{lasted:.4g}"))
    rows += _schedule_rows(record)
    reasons = Counter(why for row in record for why in row.absent.values())
    if reasons:
        each = ", ".join(f"{why} {number:,}" for why, number in reasons.most_common())
        rows.append(
            ("absent clients", f"{reasons.total():,} of {_all_asked(record):,} selected: {each}")
        )
    # The seconds of parallel hosts are added, so they may exceed the round.
    rows.append(("by stage", ", ".join(parts) + (" (all hosts)" if parts else "")))
    return rows


def traffic_rows(record: Sequence[Row], word: str) -> list[tuple[str, str]]:
    """Return the mean traffic of a round; ``word`` as in `run_rows`."""
    # In the first round many methods have no downloads yet.
    usual = [row for row in record if row.round > 0] or record
    rows = []
    for way in ("upload", "download"):
        floats = statistics.mean(getattr(row, f"{way}_floats") for row in usual)
        size = statistics.mean(getattr(row, f"{way}_bytes") for row in usual)
        amount = f"{floats:,.0f} floats, {size_text(size)}" if size else "nothing"
        rows.append((f"{way} a {word}", amount))
    return rows


def _schedule_rows(record: list[Row]) -> list[tuple[str, str]]:
    """Return uploads, staleness and idle share of all steps of a run without rounds."""
    # A schedule of another package need not have these figures.
    steps = [row for row in record if {"staleness", "idle"} <= row.schedule.keys()]
    stale = [(row.participants, row.schedule["staleness"]) for row in steps if row.participants]
    if not stale:
        return []
    uploads = sum(number for number, _ in stale)
    mean = sum(number * age["mean"] for number, age in stale) / uploads
    most, idle = max(age["max"] for _, age in stale), [row.schedule["idle"] or 0.0 for row in steps]
    return [
        ("uploads", f"{uploads:,} in {count(len(steps), 'step')}"),
        ("staleness of uploads", f"mean {mean:.2f} steps, at most {most}"),
        ("clients idle", f"{statistics.mean(idle):.0%} of the time, mean of steps"),
    ]


def show_clients(lines: list[dict[str, Any]], score: str, trials: int) -> None:
    """Print the clients of a run, the worst first, if they have names or are few."""
    named = any(line["client"] != f"client {line['number']}" for line in lines)
    if not lines or not (named or len(lines) <= FEW):
        return
    rows = []
    for line in lines[:LISTED]:
        text = share_text(score, line["score"])
        text += f" ± {line['std']:.1%}" if trials > 1 else ""
        guess = "" if line["guess"] is None else share_text(score, line["guess"])
        samples = "" if line["samples"] is None else f"{line['samples']:,.0f}"
        rows.append((line["client"], samples, line["architecture"], text, guess))
    columns = ("client", "samples", "architecture", score, "guess")
    render.table(columns, rows, right=("samples", score, "guess"))
    if more := len(lines) - len(rows):
        render.text(f"and {more:,} better clients (--json lists all)", "dim")


def _all_asked(record: list[Row]) -> int:
    """Return the number of selected clients over all rounds."""
    return sum(row.participants + len(row.absent) for row in record)


def _without_value(figure: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return over how many clients the mean of a metric is, if some have no value."""
    values = figure.get("clients", {})
    lacking = [client for client, value in values.items() if value is None]
    if not lacking:
        return ""
    name = names.get(lacking[0], lacking[0])
    text = f"none for {len(lacking):,} of {count(len(values), 'client')}, such as {name}"
    text += ": their test samples do not define it, for example of one class"
    mean = figure.get("mean")
    return text if mean is None else f"{text}; mean of the others {mean:.4f}"
