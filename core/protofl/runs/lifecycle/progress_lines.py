"""Default progress output of a run: a line per round and notes, on standard error."""

from __future__ import annotations

import math

from protofl.data.cache import to_stderr
from protofl.data.task_names import balanced_text, below_guess, score_text
from protofl.federation import events
from protofl.federation.events import Event
from protofl.records.row import Row
from protofl.system.formatting import count, round_word
from protofl.system.options.settings import Settings


class Lines:
    """Print a line for each event and each round."""

    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._trial, self._best, self._score = -1, -math.inf, "accuracy"

    def __call__(self, event: Event) -> None:
        """Take an event."""
        match event:
            case events.Note():
                to_stderr(f"note: {event.text}")
            case events.Planned():
                self._planned(event)
            case events.RoundDone():
                assert self._settings is not None
                better = self._take(event.row)
                to_stderr(round_line(event.row, self._settings, better=better, score=self._score))
            case events.Finished():
                to_stderr(_ended(event))
                if warning := guess_warning(event):
                    to_stderr(warning)

    def _planned(self, event: events.Planned) -> None:
        plan, self._settings = event.plan, event.plan.settings
        self._score = plan.data.task.score_name
        s, about = plan.settings, plan.info
        to_stderr(
            f"{s.method} · {s.models} · {s.dataset}: {about.num_clients} clients, "
            f"{count(s.rounds, round_word(s.timing))}"
        )
        for note in plan.all_notes:
            to_stderr(f"note: {note}")
        for row in event.folder.rows:
            self._take(row)
        if event.folder.rows and not event.folder.finished:
            done = count(len(event.folder.rows), f"finished {round_word(s.timing)}")
            to_stderr(f"resuming after {done}")

    def _take(self, row: Row) -> bool:
        """Store a round's accuracy; return True if it is the best of its trial."""
        if row.trial != self._trial:
            self._trial, self._best = row.trial, -math.inf
        accuracy = row.test_accuracy
        if accuracy is None or accuracy <= self._best:
            return False
        self._best = accuracy
        return True


def where(trial: int, round: int, settings: Settings) -> str:
    """Return ``round 3/10``, or ``trial 1/2 step 3/10`` with several trials and without rounds."""
    trials = f"trial {trial + 1}/{settings.trials} " if settings.trials > 1 else ""
    return f"{trials}{round_word(settings.timing)} {round + 1}/{settings.rounds}"


def round_line(row: Row, settings: Settings, *, better: bool, score: str = "accuracy") -> str:
    """Describe a round in a line.

    Args:
        row: The round's line of ``metrics.jsonl``.
        settings: The run's.
        better: Whether it is the best so far.
        score: The name of the score.
    """
    accuracy, loss = row.test_accuracy, row.train_loss
    scored = "not evaluated" if accuracy is None else score_text(row.metrics, score, accuracy)
    honest = row.honest_accuracy
    return (
        f"{where(row.trial, row.round, settings)}: {scored}{' (best)' if better else ''}, "
        + (f"honest clients {honest:.1%}, " if honest is not None else "")
        + (f"{len(row.absent)} absent, " if row.absent else "")
        + f"{balanced_text(row.metrics)}loss {'not finite' if loss is None else f'{loss:.3f}'}"
    )


def _ended(event: events.Finished) -> str:
    summary, settings = event.result.summary, event.plan.settings
    mean = summary["mean"] if settings.trials > 1 else summary
    over = f", mean of {settings.trials} trials" if settings.trials > 1 else ""
    key, label = "validation_selected_test_accuracy", "chosen on validation samples"
    if key not in mean:
        key, label = "best_test_accuracy", "best on test samples"
    guess = mean.get("majority_accuracy")  # nodes may not tell it
    beside = "" if guess is None else f" (majority guess {guess:.2%})"
    return f"{label}: {mean[key]:.2%}{over}{beside}; run folder: {event.result.folder}"


def guess_warning(event: events.Finished) -> str:
    """Return a line about a run that ends no better than its majority guess; else empty."""
    mean = event.result.summary["mean"]
    score = event.plan.data.task.score_name
    text = below_guess(score, mean["final_test_accuracy"], mean.get("majority_accuracy"))
    return f"last {round_word(event.plan.settings.timing)}: {text}" if text else ""
