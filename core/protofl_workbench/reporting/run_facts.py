"""The key figures of a group of trials, and remarks about its record."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from protofl.data.task_names import below_guess, score_name, task_name
from protofl.errors import UsageError
from protofl.system.formatting import shape_text
from protofl.system.machine import recorded_facts
from protofl.system.options.value_text import value_text
from protofl_workbench.comparing.run_groups import Group
from protofl_workbench.comparing.run_labels import data_name
from protofl_workbench.comparing.trial_figures import trial_figure
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.recorded.recorded_split import RecordedSplit
from protofl_workbench.reporting.number_formats import (
    NONE,
    WIDE,
    amount,
    count,
    day,
    duration,
    integer,
    listed,
    number,
    percent,
    spread,
)
from protofl_workbench.reporting.page_parts import Fact, PageTable

REASONS = {
    "skipped": "the upload was refused",
    "failed": "the training failed",
    "deadline": "the deadline was over",
    "late": "enough other clients were faster",
    "left": "the client had left",
}
"""Reasons why clients were absent (docs/background/results.md)."""

OF_SUMMARY = (
    ("majority_accuracy", "Majority guess", "always the same answer, without a model"),
    ("final_server_accuracy", "Server's model", "final, on the global test samples"),
    ("final_honest_accuracy", "Honest clients", "final, without malicious clients"),
    ("final_unseen_accuracy", "Unseen clients", "without training"),
    ("fine_tuned_accuracy", "Fine-tuned", "on their own training samples"),
)
"""Further accuracies of a finished run: key of the summary, label and note."""


def moments(group: Group, name: str) -> tuple[float, float | None] | None:
    """Return a figure as `protofl.compare` has it: within each trial, then over trials.

    Args:
        group: The trials; those that are as long as the longest count.
        name: A figure such as ``final``, ``best``, ``worst`` or ``macro-f1@best``.

    Returns:
        Mean and population standard deviation, None for a single trial; None without the figure.
    """
    try:
        values = [trial_figure(name).of(trial) for trial in group.complete]
    except UsageError:  # it is not recorded
        return None
    return _moments(values)


def _moments(values: Sequence[float]) -> tuple[float, float | None]:
    return statistics.fmean(values), statistics.pstdev(values) if len(values) > 1 else None


def _end(group: Group, key: str) -> tuple[float, float | None] | None:
    """Return a figure of the summaries of finished runs; None if one lacks it."""
    ends = [end for run in group.runs for end in (run.summary or {}).get("trials", ())]
    values = [end.get(key) for end in ends]
    return _moments(values) if values and None not in values else None


def split_of(group: Group) -> RecordedSplit | None:
    """Return the split of the first trial; None if it is not recorded yet."""
    try:
        return group.runs[0].split(group.trials[0].number)
    except UsageError:
        return None


def summary_sentence(group: Group) -> str:
    """Describe a run in a sentence: clients, models, data, training, and date."""
    c, split = group.runs[0].config, split_of(group)
    partition = str(c["partition"])
    option = c["options"].get("partition", {})
    if partition.startswith("dirichlet") and "beta" in option:
        partition += f" with β{WIDE}={WIDE}{value_text(option['beta'])}"
    samples = ""
    if split is not None:
        total = int(split.train_counts.sum() + split.test_counts.sum())
        samples = f": {integer(total)} samples of {_outputs(c, len(split.classes))}"
    architectures = count(len(c.get("layout", ())) or 1, "architecture")
    share = "" if c["participation"] == 1 else f", {percent(c['participation'], 0)} of them a round"
    trials = len(group.trials)
    return (
        f"{count(c['clients'], 'client')} with {architectures} ({c['models']}) learn "
        f"{data_name(c)}{samples}, split by {partition}{share}. {count(c['rounds'], 'round')} of "
        f"{count(c['local_epochs'], 'local epoch')} ({c['optimizer']}, learning rate "
        f"{value_text(c['lr'])}), {f'{trials} trials from ' if trials > 1 else ''}"
        f"seed {c['seed']}. {day(str(group.trials[-1].rows[-1].time))}."
    )


def _outputs(config: Mapping[str, Any], classes: int) -> str:
    """Return ``10 classes``, ``10 labels`` or ``the number NAME`` of a run's data."""
    outputs = config.get("data", {}).get("outputs", [])
    if task_name(config) == "regression":
        return f"the number {outputs[0]}"
    if task_name(config) == "language-model":
        return "next tokens"
    return f"{len(outputs)} labels" if outputs else f"{classes} classes"


def key_facts(group: Group) -> Iterator[Fact]:
    """Return the key figures, the final accuracy first, or the final score of another task."""
    config, several = group.runs[0].config, len(group.trials) > 1
    score = score_name(config)
    over = f", mean of {count(len(group.complete), 'trial')} ± std" if several else ""
    if (others := len(group.trials) - len(group.complete)) > 0:
        over += f"; {count(others, 'trial')} not this far yet"
    if (perplexity := moments(group, "perplexity")) is not None:
        note = f"of next tokens, at the end{over}; lower is better"
        yield Fact("Final perplexity", f"{perplexity[0]:.4g}", note, lead=True)
    if (final := moments(group, "final")) is None:
        yield Fact(f"Test {score}", NONE, "no round has been evaluated yet", lead=True)
    else:
        guess, _ = _end(group, "majority_accuracy") or (None, None)
        below = bool(below_guess(score, final[0], guess))
        note = f"last evaluation{over}{'; not better than the majority guess' * below}"
        yield Fact(f"Final test {score}", spread(*final), note, lead=True, below=below)
    if (balanced := moments(group, "balanced-accuracy")) is not None:
        yield Fact("Balanced accuracy", spread(*balanced), "mean recall of the classes, at the end")
    for name, label, note in (
        ("best", f"Best test {score}", "chosen on test samples, as in the papers"),
        ("validation", f"Test {score}, validated", "chosen on validation samples"),
    ):
        if (values := moments(group, name)) is not None:
            yield Fact(label, spread(*values), note)
    for key, label, note in OF_SUMMARY:
        if (values := _end(group, key)) is not None:
            yield Fact(label, spread(*values), note)
    if (worst := moments(group, "worst")) is not None:
        note = "in each trial, at the end"
        if group.runs[0].client_names:
            named = group.runs[0].clients[0]["client"]
            note = f"{note}; {named} over trials" if several else f"{named}, at the end"
        yield Fact("Worst client", spread(*worst), note)
    yield from _costs(group)


def _costs(group: Group) -> Iterator[Fact]:
    """Return traffic and time of a trial, as means over trials."""
    each = [row for trial in group.trials for row in trial.rows]
    trials, of = len(group.trials), " a trial" * (len(group.trials) > 1)
    up, down = sum(r.upload_bytes for r in each), sum(r.download_bytes for r in each)
    note = f"{amount(up / trials)} up, {amount(down / trials)} down"
    yield Fact(f"Traffic of all clients{of}", amount((up + down) / trials), note)
    seconds = sum(row.seconds["total"] for row in each)
    yield Fact(f"Time{of}", duration(seconds / trials), f"{duration(seconds / len(each))} a round")
    if (virtual := _end(group, "virtual_seconds")) is not None:
        yield Fact("Virtual time", duration(virtual[0]), "of the simulated devices")


def remarks(group: Group) -> list[str]:
    """Return remarks about absent and unseen clients, losses and the evaluation.

    Notes of the dry run, such as of a hook without an effect, come first.
    """
    config, rows = group.runs[0].config, [row for trial in group.trials for row in trial.rows]
    result = [f"{note[:1].upper()}{note[1:]}." for note in config.get("notes", ())]
    absent = Counter(reason for row in rows for reason in row.absent.values())
    if absent:
        parts = [
            f"{integer(times)} because {REASONS.get(reason, reason)}"
            for reason, times in absent.most_common()
        ]
        asked = absent.total() + sum(row.participants for row in rows)
        result.append(
            f"Clients were absent {integer(absent.total())} of {integer(asked)} times: "
            f"{listed(parts)}."
        )
    if lost := sum(row.train_loss is None for row in rows):
        result.append(f"The training loss was not finite in {count(lost, 'round')}.")
    if config.get("eval_clients") == "participants":
        result.append(f"The {score_name(config)} is over the clients that a round trained.")
    unseen = len(rows[-1].unseen)
    if unseen:
        who = f"{count(unseen, 'client')} {'is' if unseen == 1 else 'are'} unseen"
        result.append(f"{who}: never trained, and scored separately.")
    if 0 < rows[-1].evaluated < config["clients"] - unseen:
        result.append(f"The last evaluation was over {integer(rows[-1].evaluated)} of the clients.")
    return result


def versions_table(run: Run) -> PageTable:
    """Return software, machine and data of a run."""
    c = run.config
    rows = [(name, str(value)) for name, value in recorded_facts(c).items()]
    rows += [
        (f"{p['kind']} {p['name']}", f"{p['distribution']} {p['version']}")
        for p in c.get("plugins", ())
    ]
    if data := c.get("data", {}):
        shape = shape_text(data.get("shape", ()))
        rows.append(("data", f"{number(data.get('samples', 0))} samples of {shape}"))
        rows.append(("data, SHA-256", str(data["digest"])))
    rows += [("device", str(c["device"])), ("engine", str(c["engine"]))]
    return PageTable("Versions", ("part", "version"), rows, folded=True, words=frozenset({1}))
