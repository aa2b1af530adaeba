"""The key figures of a group of trials, and remarks about its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from protofl.data.task_names import GUESSES, score_name, task_name
from protofl.system.formatting import shape_text
from protofl.system.machine import recorded_facts
from protofl_workbench.comparing.run_labels import data_name
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.reporting.group_record import GroupRecord, Moments
from protofl_workbench.reporting.number_formats import (
    WIDE,
    amount,
    count,
    day,
    duration,
    integer,
    listed,
    number,
    option_value,
    percent,
    points,
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

OTHER_ACCURACIES = (
    ("final_server_accuracy", "Server's model", "final, on the global test samples"),
    ("final_honest_accuracy", "Honest clients", "final, without malicious clients"),
    ("final_unseen_accuracy", "Unseen clients", "without training"),
    ("fine_tuned_accuracy", "Unseen, fine-tuned", "on their own training samples"),
)


def summary_sentence(record: GroupRecord) -> str:
    """Describe a run in a sentence: clients, models, data, training, and date."""
    c, split = record.config, record.split
    partition = str(c["partition"])
    option = c["options"].get("partition", {})
    if partition.startswith("dirichlet") and "beta" in option:
        partition += f" with β{WIDE}={WIDE}{option_value(option['beta'])}"
    samples = ""
    if split is not None:
        total = int(split.train_counts.sum() + split.test_counts.sum())
        samples = f": {integer(total)} samples of {_outputs(c, len(split.classes))}"
    architectures = count(len(c.get("layout", ())) or 1, "architecture")
    share = "" if c["participation"] == 1 else f", {percent(c['participation'], 0)} of them a round"
    trials = len(record.group.trials)
    when = day(str(record.rows[-1].time)) if record.rows else ""
    return (
        f"{count(c['clients'], 'client')} with {architectures} ({c['models']}) learn "
        f"{data_name(c)}{samples}, split by {partition}{share}. {count(c['rounds'], 'round')} of "
        f"{count(c['local_epochs'], 'local epoch')} ({c['optimizer']}, learning rate "
        f"{option_value(c['lr'])}), {f'{trials} trials from ' if trials > 1 else ''}"
        f"seed {c['seed']}.{f' {when}.' if when else ''}"
    )


def _outputs(config: Mapping[str, Any], classes: int) -> str:
    """Return ``10 classes``, ``10 labels`` or ``the number NAME`` of a run's data."""
    outputs = config.get("data", {}).get("outputs", [])
    if task_name(config) == "regression":
        return f"the number {outputs[0]}"
    if task_name(config) == "language-model":
        return "next tokens"
    return f"{len(outputs)} labels" if outputs else f"{classes} classes"


def key_facts(record: GroupRecord) -> Iterator[Fact]:
    """Return the key figures, the final accuracy first, or the final score of another task."""
    score = score_name(record.config)
    if not record.ends:
        yield Fact(f"Test {score}", "–", "no round has been evaluated yet", lead=True)
        return
    several = len(record.ends) > 1
    over = f", mean of {count(len(record.ends), 'trial')} ± std" if several else ""
    if (others := len(record.group.trials) - len(record.ends)) > 0:
        over += f"; {count(others, 'trial')} not this far yet"
    if (perplexity := record.figure("perplexity")) is not None:
        note = f"of next tokens, at the end{over}; lower is better"
        yield Fact("Final perplexity", f"{perplexity.mean:.4g}", note, lead=True)
    final, guess = record.end("final_test_accuracy"), record.end("majority_accuracy")
    last = max(row.round for row in record.rows if row.test_accuracy is not None)
    if final is not None:
        above = ""
        if guess is not None:
            side = "above" if final.mean >= guess.mean else "below"
            above = f"; {points(final.mean - guess.mean).strip('+−')} points {side} guessing"
        note = f"after round {last + 1}{over}{above}"
        yield Fact(f"Final test {score}", spread(final.mean, final.std), note, lead=True)
    for key, round, label, chosen in (
        ("best_test_accuracy", "best_round", f"Best test {score}",
         "chosen on test samples, as in the papers"),
        ("validation_selected_test_accuracy", "validation_selected_round",
         f"Test {score}, validated", "chosen on validation samples"),
    ):  # fmt: skip
        if (moments := record.end(key)) is not None:
            rounds = sorted({int(end[round]) + 1 for end in record.ends})
            note = f"round {listed([str(r) for r in rounds], 5)}, {chosen}"
            yield Fact(label, spread(moments.mean, moments.std), note)
    if guess is not None:
        yield guess_fact(record.config, guess)
    for key, label, note in OTHER_ACCURACIES:
        if (moments := record.end(key)) is not None:
            yield Fact(label, spread(moments.mean, moments.std), note)
    if (worst := record.figure("worst")) is not None:
        client = min(record.clients, key=lambda c: record.clients[c].mean, default=None)
        note = "in each trial, at the end" if several else f"{_name(record, client)}, at the end"
        yield Fact("Worst client", spread(worst.mean, worst.std), note)
    yield from _costs(record)


def guess_fact(config: Mapping[str, Any], guess: Moments) -> Fact:
    """Return the score of the majority guess.

    Args:
        config: The configuration of a run.
        guess: The score.
    """
    note = f"always {GUESSES[task_name(config)]} of each client"
    return Fact("Majority guess", spread(guess.mean, guess.std), note)


def _name(record: GroupRecord, client: int | None) -> str:
    """Return the name of a client, as the data name it, or its number."""
    if client is None:
        return "unknown"
    return record.split.name_of(client) if record.split is not None else f"client {client}"


def _costs(record: GroupRecord) -> Iterator[Fact]:
    trial = " a trial" if len(record.group.trials) > 1 else ""
    up, down = (
        record.total(read).mean for read in (lambda r: r.upload_bytes, lambda r: r.download_bytes)
    )
    a_round = amount((up + down) * len(record.group.trials) / len(record.rows))
    note = f"{amount(up)} up, {amount(down)} down; {a_round} a round"
    yield Fact(f"Traffic of all clients{trial}", amount(up + down), note)
    seconds = record.total(lambda row: row.seconds["total"]).mean
    each = duration(record.mean(lambda row: row.seconds["total"]))
    yield Fact(f"Time{trial}", duration(seconds), f"{each} a round")
    if (virtual := record.end("virtual_seconds")) is not None:
        yield Fact("Virtual time", duration(virtual.mean), "of the simulated devices")


def remarks(record: GroupRecord) -> list[str]:
    """Return remarks about malicious, absent and unseen clients, losses and the evaluation.

    Notes of the dry run, such as of a hook without an effect, come first.
    """
    result = [f"{note[:1].upper()}{note[1:]}." for note in record.config.get("notes", ())]
    malicious = sorted({c for end in record.ends for c in end.get("malicious", ())})
    if malicious:
        names = listed([_name(record, client) for client in malicious], 10)
        result.append(f"Malicious clients of all trials: {names}.")
    if record.absent:
        parts = [
            f"{integer(times)} because {REASONS.get(reason, reason)}"
            for reason, times in record.absent.most_common()
        ]
        total = record.absent.total()
        asked = total + sum(row.participants for row in record.rows)
        result.append(
            f"Clients were absent {integer(total)} of {integer(asked)} times: {listed(parts)}."
        )
    if lost := sum(row.train_loss is None for row in record.rows):
        result.append(f"The training loss was not finite in {count(lost, 'round')}.")
    if record.config.get("eval_clients") == "participants":
        result.append(
            f"The {score_name(record.config)} is over the clients that a round trained; the guess "
            "is over all clients."
        )
    last = record.rows[-1] if record.rows else None
    unseen = len(last.unseen) if last else 0
    if unseen:
        who = f"{count(unseen, 'client')} {'is' if unseen == 1 else 'are'} unseen"
        result.append(
            f"{who}: never trained, and scored separately. The guess is over all clients."
        )
    if last and 0 < last.evaluated < record.config["clients"] - unseen:
        result.append(f"The last evaluation was over {integer(last.evaluated)} of the clients.")
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
