"""What a run is in a sentence, and the figures of it that count."""

from __future__ import annotations

from collections.abc import Iterator

from protofl.runs.reuse.run import Run
from protofl.system.formatting import shape_text
from protofl.system.machine import recorded_facts
from protofl_workbench.comparing.run_groups import divergence, progress
from protofl_workbench.comparing.run_labels import data_name
from protofl_workbench.reporting.numbers import (
    WIDE,
    amount,
    count,
    day,
    duration,
    listed,
    number,
    percent,
    points,
    spread,
    whole,
)
from protofl_workbench.reporting.parts import Fact
from protofl_workbench.reporting.told import Told, own

REASONS = {
    "skipped": "what they sent was refused",
    "failed": "their training failed",
    "deadline": "the deadline was over",
    "late": "enough others were faster",
    "left": "they had left",
}
"""Why clients were absent (docs/background/results.md)."""


def sentence(told: Told) -> str:
    """What a run is: who learned what from which data, for how long, and when."""
    c, held = told.config, told.split
    partition = str(c["partition"])
    option = c["options"].get("partition", {})
    if partition.startswith("dirichlet") and "beta" in option:
        partition += f" with β{WIDE}={WIDE}{own(option['beta'])}"
    samples = ""
    if held is not None:
        total = int(held.train_counts.sum() + held.test_counts.sum())
        samples = f": {whole(total)} samples of {len(held.classes)} classes"
    architectures = count(len(c.get("layout", ())) or 1, "architecture")
    text = (
        f"{count(c['clients'], 'client')} with {architectures} ({c['models']}) learn "
        f"{data_name(c)}{samples}, split by {partition}"
    )
    share = "" if c["participation"] == 1 else f", {percent(c['participation'], 0)} of them a round"
    trials = len(told.group.trials)
    text += f"{share}. {count(c['rounds'], 'round')} of {count(c['local_epochs'], 'local epoch')}"
    text += f" ({c['optimizer']}, learning rate {own(c['lr'])})"
    text += f", {trials} trials from" if trials > 1 else ","
    text += f" seed {c['seed']}"
    when = day(str(told.rows[-1].time)) if told.rows else ""
    return text + (f". {when}." if when else ".")


def state(run: Run) -> str:
    """Where a run isn't finished, how far it is; where it has diverged, since when."""
    return ", ".join(filter(None, (progress(run), divergence(run))))


def facts(told: Told) -> Iterator[Fact]:
    """The figures that count, the final accuracy first."""
    if not told.ends:
        yield Fact("Test accuracy", "–", "no round has been evaluated yet", lead=True)
        return
    several = len(told.ends) > 1
    over = f", mean of {count(len(told.ends), 'trial')} ± std" if several else ""
    if (others := len(told.group.trials) - len(told.ends)) > 0:
        over += f"; {count(others, 'trial')} not so far yet"
    final, best = told.end("final_test_accuracy"), told.end("best_test_accuracy")
    guess = told.end("majority_accuracy")
    last = max(row.round for row in told.rows if row.test_accuracy is not None)
    if final is not None:
        above = ""
        if guess is not None and guess.mean == guess.mean:
            side = "above" if final.mean >= guess.mean else "below"
            above = f"; {points(final.mean - guess.mean).strip('+−')} points {side} guessing"
        after = f"after round {last + 1}{over}{above}"
        yield Fact("Final test accuracy", spread(final.mean, final.std), after, lead=True)
    if best is not None:
        rounds = sorted({int(end["best_round"]) + 1 for end in told.ends})
        at = f"round {listed([str(r) for r in rounds], 5)}"
        value = spread(best.mean, best.std)
        yield Fact("Best test accuracy", value, f"{at}, chosen on test samples, as papers do")
    chosen = told.end("validation_selected_test_accuracy")
    if chosen is not None:
        rounds = sorted({int(end["validation_selected_round"]) + 1 for end in told.ends})
        at = f"round {listed([str(r) for r in rounds], 5)}"
        value = spread(chosen.mean, chosen.std)
        yield Fact("Test accuracy, validated", value, f"{at}, chosen on validation samples")
    if guess is not None and guess.mean == guess.mean:
        note = "always each client's commonest class"
        yield Fact("Majority guess", spread(guess.mean, guess.std), note)
    yield from _of_others(told)
    if told.clients:
        yield _worst(told)
    yield from _costs(told)


def _of_others(told: Told) -> Iterator[Fact]:
    """Accuracies of the server, of the honest, and of clients that came later."""
    for key, label, note in (
        ("final_server_accuracy", "Server's model", "final, on the global test samples"),
        ("final_honest_accuracy", "The honest clients", "final, without those that are malicious"),
        ("final_unseen_accuracy", "Unseen clients", "that only download"),
        ("fine_tuned_accuracy", "Unseen, fine-tuned", "on their own training samples"),
    ):
        found = told.end(key)
        if found is not None:
            yield Fact(label, spread(found.mean, found.std), note)


def _worst(told: Told) -> Fact:
    worst = min(told.clients, key=lambda client: told.clients[client].mean)
    several = ", mean over trials" if len(told.ends) > 1 else ""
    return Fact(
        "Worst client", percent(told.clients[worst].mean), f"number {worst}, at the end{several}"
    )


def _costs(told: Told) -> Iterator[Fact]:
    up, down = (told.total(lambda r, k=k: float(r[k])) for k in ("upload_bytes", "download_bytes"))  # type: ignore[misc]
    trial = " a trial" if len(told.group.trials) > 1 else ""
    if up is not None and down is not None:
        a_round = amount((up.mean + down.mean) * len(told.group.trials) / len(told.rows))
        note = f"{amount(up.mean)} up, {amount(down.mean)} down; {a_round} a round"
        yield Fact(f"Traffic of all clients{trial}", amount(up.mean + down.mean), note)
    time = told.total(lambda row: float(row.seconds["total"]))
    if time is not None:
        each = duration(told.mean(lambda row: row.seconds["total"]))
        yield Fact(f"Time{trial}", duration(time.mean), f"{each} a round")
    virtual = told.end("virtual_seconds")
    if virtual is not None:
        yield Fact("Virtual time", duration(virtual.mean), "of the devices that were simulated")


def notes(told: Told) -> list[str]:
    """What a reader must know of the record: the malicious, the absent, what was not finite."""
    found = []
    malicious = sorted({c for end in told.ends for c in end.get("malicious", ())})
    if malicious:
        numbers = listed([str(client) for client in malicious], 10)
        found.append(f"Malicious clients, of all trials: {numbers}.")
    if told.absent:
        parts = [
            f"{whole(times)} because {REASONS.get(reason, reason)}"
            for reason, times in sorted(told.absent.items(), key=lambda item: -item[1])
        ]
        total = sum(told.absent.values())
        asked = total + sum(row.participants for row in told.rows)
        found.append(
            f"Of {whole(asked)} times that a client was asked it was absent {whole(total)} times: "
            f"{listed(parts)}."
        )
    lost = [row for row in told.rows if row.train_loss is None]
    if lost:
        found.append(f"The training loss was not finite in {count(len(lost), 'round')}.")
    if told.config.get("eval_clients") == "participants":
        found.append(
            "Accuracy is that of the clients that a round trained, and the guess that of all."
        )
    evaluated, unseen = (
        (told.rows[-1].evaluated, len(told.rows[-1].unseen)) if told.rows else (0, 0)
    )
    if unseen:
        who = f"{count(unseen, 'client')} {'is' if unseen == 1 else 'are'} unseen"
        found.append(f"{who}: never trained, and scored apart. The majority guess is that of all.")
    if evaluated and evaluated < told.config["clients"] - unseen:
        found.append(f"The last evaluation was over {whole(evaluated)} of the clients.")
    return found


def versions_table(run: Run) -> list[tuple[str, str]]:
    """Software, machine and data of a run."""
    c = run.config
    rows = [(name, str(value)) for name, value in recorded_facts(c).items()]
    rows += [
        (f"{p['kind']} {p['name']}", f"{p['distribution']} {p['version']}")
        for p in c.get("plugins", ())
    ]
    data = c.get("data", {})
    if data:
        shape = shape_text(data.get("shape", ()))
        rows.append(("data", f"{number(data['samples'])} samples of {shape}"))
        rows.append(("data, SHA-256", str(data["digest"])))
    return [*rows, ("device", str(c["device"])), ("engine", str(c["engine"]))]
