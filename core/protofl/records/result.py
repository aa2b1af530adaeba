"""The result of a run: its summary and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from protofl.records.row import Row


@dataclass
class Result:
    """The result of a run.

    Attributes:
        record: The lines of ``metrics.jsonl``, one a round.
        summary: What ``summary.json`` holds.
        client_accuracies: The last evaluation's accuracy of every client, by trial; of more than
            1,000 clients it is missing for trials that were finished before a resume.
        folder: The run folder.
        profile: With ``profile=True`` where the time of this session's rounds went (what
            ``profile/summary.json`` holds; docs/how-to/profile-a-run.md).
        clients: Name, architecture, samples, score and majority guess of each client, the worst
            first (`protofl.records.client_lines.client_lines`).
    """

    record: list[Row]
    summary: dict[str, Any]
    client_accuracies: dict[int, dict[int, float]]
    folder: Path
    profile: dict[str, Any] | None = None
    clients: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        """The last accuracy and the folder in one line, without the rounds."""
        last = self.summary["final_test_accuracy"]
        accuracy = "not evaluated" if last is None else f"last test accuracy {last:.4f}"
        return f"Result({len(self.record)} rounds, {accuracy}, {str(self.folder)!r})"


def still_falls(rows: Sequence[Row]) -> bool:
    """Return True if more than 5 % of the fall of a trial's loss came in its last fifth of rounds.

    The mean of the last fifth is compared with that of the fifth before, and with the first round.
    Tables that are hardly trained have 6 to 25 % there; most of the others have at most 4 %.

    Args:
        rows: The rounds of the trial; of fewer than 10 nothing is known.
    """
    losses = [row.train_loss for row in rows if row.train_loss is not None]
    fifth = len(rows) // 5
    if fifth < 2 or len(losses) < len(rows):
        return False
    before, last = fmean(losses[-2 * fifth : -fifth]), fmean(losses[-fifth:])
    return last < losses[0] and before - last > 0.05 * (losses[0] - last)


def is_best(row: Row, rows: Sequence[Row]) -> bool:
    """Return True if a round is the best of its trial so far: the first with its accuracy.

    It is chosen on validation samples where any are held out, else on test samples.

    Args:
        row: The round's line of ``metrics.jsonl``.
        rows: The lines before.
    """
    chosen_on = "validation_accuracy" if "validation_accuracy" in row else "test_accuracy"
    trial, accuracy = row.trial, row[chosen_on]
    before = [r.get(chosen_on) for r in rows if r.trial == trial]
    return accuracy is not None and all(other is None or other < accuracy for other in before)


def is_exhausted(rows: Sequence[Row], patience: int) -> bool:
    """Return True if a trial has ended early.

    Its best round (that of `is_best`) is ``patience`` rounds old (``--patience``), or a hook
    ``end_trial`` has ended it. First rounds in which no client trains and the accuracy stays as it
    is do not count: a method may warm up something else before (FedL2G's guides).

    Args:
        rows: The trial's lines so far.
        patience: Rounds, or 0 for a trial that never ends early.
    """
    if rows and rows[-1].ended:
        return True
    best, at, begun = -math.inf, 0, False
    for row in rows if patience else ():
        accuracy = row.get("validation_accuracy", row.test_accuracy)
        changed = row.round > 0 and accuracy not in (None, best)
        begun = begun or changed or bool(row.get("loss_terms", True))
        if not begun or (accuracy is not None and accuracy > best):
            best, at = best if accuracy is None else accuracy, row.round
    return bool(rows) and 0 < patience <= rows[-1].round - at and bool(rows[-1].evaluated)


def chosen_row(rows: Sequence[Row], which: str) -> Row | None:
    """Return the line of the round of a trial that is chosen in this way; None if there is none.

    Args:
        rows: Lines of the trial.
        which: ``last`` for the last evaluated round, ``best`` for the first round with the best
            test accuracy, ``validation`` for the first with the best validation accuracy.
    """
    name = "validation_accuracy" if which == "validation" else "test_accuracy"
    scored = [row for row in rows if row.get(name) is not None]
    if which == "last":
        return max(scored, key=lambda row: row.round, default=None)
    return max(scored, key=lambda row: (row[name], -row.round), default=None)


def recorded_accuracies(rows: Sequence[Row]) -> dict[int, dict[int, float]]:
    """Return the accuracy of every client in the last recorded evaluation, by trial.

    Args:
        rows: The lines of ``metrics.jsonl``.
    """
    return {
        row.trial: {int(client): accuracy for client, accuracy in row.client_accuracies.items()}
        for row in rows
        if "client_accuracies" in row
    }


WHOSE = ("server", "honest")
"""Accuracies that a summary may have in addition to the accuracy of all clients."""


SELECTED = (
    "validation_selected_test_accuracy",
    "validation_selected_client_test_accuracy",
    "best_validation_accuracy",
)
"""Keys of a summary about the round that validation samples select."""

UNSEEN = ("final_unseen_accuracy", "fine_tuned_accuracy", "unseen_majority_accuracy")
"""Keys of a summary about unseen clients."""


def summarise(
    rows: list[Row], majority: Callable[..., float], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of ``summary.json``: best and final accuracy, mean and std over trials.

    Args:
        rows: The lines of ``metrics.jsonl``.
        majority: Gives the accuracy of always guessing a client's commonest class, by trial, and
            of some of the clients where they are named; NaN without training samples.
        about: What else it says of the run.
    """
    trials, patience = [], about.get("patience", 0)
    for trial in sorted({row.trial for row in rows}):
        evaluated = [r for r in rows if r.trial == trial and r.test_accuracy is not None]
        best = chosen_row(evaluated, "best")
        assert best is not None
        *_, last = trial_rows = [row for row in rows if row.trial == trial]
        ended = "patience" if is_exhausted(trial_rows, patience) else "rounds"
        ended = last.ended or ended
        trials.append(
            {
                "trial": trial,
                "best_test_accuracy": best.test_accuracy,
                "best_round": best.round,
                "final_test_accuracy": evaluated[-1].test_accuracy,
                "final_client_test_accuracy": evaluated[-1].client_test_accuracy,
                "final_test_accuracy_std": evaluated[-1].test_accuracy_std,
                **({} if math.isnan(guess := majority(trial)) else {"majority_accuracy": guess}),
                **_selected(evaluated),
                **_unseen(evaluated, majority),
                **_best_and_final(
                    evaluated, "server", lambda r: r.extra.get("server_test_accuracy")
                ),
                **_best_and_final(evaluated, "honest", lambda row: row.honest_accuracy),
                **({"malicious": evaluated[-1].malicious} if evaluated[-1].malicious else {}),
                **_final_figures(evaluated),
                **(
                    {"ended": ended, "rounds_done": len(trial_rows)}
                    if patience or last.ended
                    else {}
                ),
                **({"virtual_seconds": last.virtual["elapsed"]} if last.virtual else {}),
            }
        )
    first = trials[0]
    keys = ["best_test_accuracy", "final_test_accuracy"]
    others = ["majority_accuracy"]
    others += [f"{which}_{whose}_accuracy" for whose in WHOSE for which in ("best", "final")]
    others += [*SELECTED, *UNSEEN]
    keys += [key for key in others if all(trial.get(key) is not None for trial in trials)]
    keys += [k for k in ("virtual_seconds",) if k in first]
    keys += [k for k in _final_figures(rows) if all(trial.get(k) is not None for trial in trials)]
    mean = {k: sum(t[k] for t in trials) / len(trials) for k in keys}
    std = {k: (sum((t[k] - mean[k]) ** 2 for t in trials) / len(trials)) ** 0.5 for k in keys}
    return {
        **{k: v for k, v in first.items() if k != "trial"},
        **about,
        "trials": trials,
        "mean": mean,
        "std": std,
    }


def _best_and_final(
    rows: list[Row], whose: str, read: Callable[[Row], float | None]
) -> dict[str, Any]:
    """Return best and final accuracy of the server's model or honest clients, if there are any."""
    scored = [(read(row), row.round) for row in rows]
    shares = [(share, round) for share, round in scored if share is not None]
    if not shares:
        return {}
    best, round = max(shares, key=lambda pair: (pair[0], -pair[1]))
    return {
        f"best_{whose}_accuracy": best,
        f"best_{whose}_round": round,
        f"final_{whose}_accuracy": shares[-1][0],
    }


def _selected(rows: list[Row]) -> dict[str, Any]:
    """Return the round that validation samples select; empty without validation samples."""
    chosen = chosen_row(rows, "validation")
    if chosen is None:
        return {}
    figures = (chosen[k] for k in ("test_accuracy", "client_test_accuracy", "validation_accuracy"))
    return {
        "validation_selected_round": chosen.round,
        **dict(zip(SELECTED, figures, strict=True)),
    }


def _unseen(rows: list[Row], majority: Callable[..., float]) -> dict[str, Any]:
    """Return the last accuracy of unseen clients, and of fine-tuned ones."""
    last = rows[-1]
    if "unseen" not in last:
        tuned = last.fine_tuned_accuracy
        return {} if tuned is None else {"fine_tuned_accuracy": tuned}
    accuracies = last.unseen_accuracy, last.fine_tuned_accuracy
    figures = zip(UNSEEN, (*accuracies, majority(last.trial, last.unseen)), strict=True)
    known = {k: value for k, value in figures if value is not None and not math.isnan(value)}
    return {"unseen": last.unseen, **known}


def _final_figures(rows: list[Row]) -> dict[str, float]:
    """Return the metrics of the last evaluation over all samples that are a single number.

    Args:
        rows: Lines of a record.

    Returns:
        {``final_NAME``: figure}.
    """
    last: Mapping[str, Any] = next((r.metrics for r in reversed(rows) if r.metrics), {})
    figures = {f"final_{name}": each.get("all") for name, each in last.items()}
    return {key: value for key, value in figures.items() if isinstance(value, float)}
