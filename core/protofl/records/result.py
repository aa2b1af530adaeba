"""The result of a run: its summary, figures and kept weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.errors import UsageError
from protofl.records.row import Row
from protofl.system.files.commit import ELSEWHERE, KEPT, Generation

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Weights:
    """Weights of the server and the clients at the end of a round.

    Attributes:
        trial: The trial.
        round: The round.
        server: The server's tensors by their names: ``knowledge/NAME``, ``module/OWNER/NAME/*``.
        clients: {client: its tensors by their names}, ``model/*`` its weights, of the clients that
            have trained; others are what their seed made them.
    """

    trial: int
    round: int
    server: dict[str, Tensor]
    clients: dict[int, dict[str, Tensor]]


def read_weights(
    run: str | Path,
    which: str = "best",
    trial: int = 0,
    *,
    clients: Collection[int] | None = None,
) -> Weights:
    """Read the weights of a round that a run has kept (``--keep``).

    Args:
        run: The run folder.
        which: ``best``, the trial's best round, or ``last``.
        trial: The trial.
        clients: The clients whose weights are wanted; all by default.

    Raises:
        UsageError: The run has not kept them, or its backend keeps the clients' elsewhere.
        Damaged: They are not what was written.

    Examples:
        >>> found = pf.read_weights("runs/first", "best")  # doctest: +SKIP
        >>> found.clients[0]["model/head.weight"]  # doctest: +SKIP
    """
    folder, found = kept_round(run, which, trial, clients)
    return Weights(
        found.values["trial"],
        found.values["round"],
        _tensors(folder / found.values["server"]),
        {c: _tensors(folder / name) for c, (name, _) in sorted(found.numbered.items())},
    )


def kept_round(
    run: str | Path, which: str, trial: int, clients: Collection[int] | None
) -> tuple[Path, Generation]:
    """Return the folder and the files of a kept round, checked; see `read_weights`."""
    folder, found = kept_generation(run, which, trial)
    wanted = {c: e for c, e in found.numbered.items() if clients is None or c in clients}
    found = replace(found, numbered=wanted)
    require_here(folder.parent, found)
    found.require(folder)
    return folder, found


def require_here(run: str | Path, found: Generation) -> None:
    """Check that the clients' files of a kept round are in the run folder.

    Raises:
        UsageError: The backend keeps them.
    """
    if found.numbered and found.values.get(ELSEWHERE):
        raise UsageError(
            f"{run}: the clients' weights are not in the run folder",
            "the hosts of the run's backend keep them, on the clients' own machines",
            "read them there; the server's weights are here: read_weights(RUN, clients=[])",
        )


def kept_generation(run: str | Path, which: str, trial: int) -> tuple[Path, Generation]:
    """Return the folder and the files of a kept round, before their checks; see `read_weights`."""
    folder = Path(run).expanduser() / "checkpoint"
    now = Generation.read(folder / "manifest.json")
    values, title = now.values, f"{KEPT}{which}-t{trial}"
    if which == "last" and values.get("trial") == trial:
        found = now.fixed()
    elif title in values:
        found = Generation.read(folder / values[title])
    else:
        kept = [key.removeprefix(KEPT) for key in values if key.startswith(KEPT)]
        kept += [f"last-t{values['trial']}"] if "trial" in values else []
        raise UsageError(
            f"{run} has not kept {which}-t{trial}",
            f"it has kept: {', '.join(sorted(kept)) or 'nothing'}",
            "see --keep",
        )
    return folder, found


def _tensors(path: Path) -> dict[str, Tensor]:
    from protofl.system.files.tensors import (
        read_tensors,  # with torch, which other readers don't need
    )

    packed: Any = read_tensors(path)
    return dict(packed[0])


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
    """

    record: list[Row]
    summary: dict[str, Any]
    client_accuracies: dict[int, dict[int, float]]
    folder: Path
    profile: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """The best accuracy and the folder in one line, without the rounds."""
        best = self.summary["best_test_accuracy"]
        accuracy = "not evaluated" if best is None else f"best test accuracy {best:.4f}"
        return f"Result({len(self.record)} rounds, {accuracy}, {str(self.folder)!r})"


def is_best(row: Row, rows: Sequence[Row]) -> bool:
    """Return True if a round is the best of its trial so far: the first with its accuracy.

    It is chosen on validation samples where any are held out, else on test samples.

    Args:
        row: The round's line of ``metrics.jsonl``.
        rows: The lines before.
    """
    chosen_on = "validation_accuracy" if "validation_accuracy" in row else "test_accuracy"
    own, accuracy = row.trial, row[chosen_on]
    before = [r.get(chosen_on) for r in rows if r.trial == own]
    return accuracy is not None and all(other is None or other < accuracy for other in before)


def is_exhausted(rows: Sequence[Row], patience: int) -> bool:
    """Return True if the best round of a trial is ``patience`` rounds old (``--patience``).

    The best round is that of `is_best`.

    Args:
        rows: The trial's lines so far.
        patience: Rounds, or 0 for a trial that never ends early.
    """
    best, at = -1.0, 0
    for row in rows:
        accuracy = row.get("validation_accuracy", row.test_accuracy)
        if accuracy is not None and accuracy > best:
            best, at = accuracy, row.round
    return bool(rows) and 0 < patience <= rows[-1].round - at and bool(rows[-1].evaluated)


def recorded_accuracies(rows: Sequence[Row]) -> dict[int, dict[int, float]]:
    """Return the accuracy of every client in the last recorded evaluation, by trial.

    Args:
        rows: The lines of ``metrics.jsonl``.
    """
    return {
        row.trial: {int(client): found for client, found in row.client_accuracies.items()}
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
            of some of the clients where they are named.
        about: What else it says of the run.
    """
    trials, patience = [], about.get("patience", 0)
    for trial in sorted({row.trial for row in rows}):
        own = [r for r in rows if r.trial == trial and r.test_accuracy is not None]
        best = max(own, key=lambda r: (r.test_accuracy, -r.round))
        *_, last = done = [row for row in rows if row.trial == trial]
        ended = "patience" if is_exhausted(done, patience) else "rounds"
        trials.append(
            {
                "trial": trial,
                "best_test_accuracy": best.test_accuracy,
                "best_round": best.round,
                "final_test_accuracy": own[-1].test_accuracy,
                "final_client_test_accuracy": own[-1].client_test_accuracy,
                "final_test_accuracy_std": own[-1].test_accuracy_std,
                "majority_accuracy": majority(trial),
                **_selected(own),
                **_unseen(own, majority),
                **_best_and_final(own, "server", lambda r: r.extra.get("server_test_accuracy")),
                **_best_and_final(own, "honest", lambda row: row.honest_accuracy),
                **({"malicious": own[-1].malicious} if own[-1].malicious else {}),
                **_final_figures(own),
                **({"ended": ended, "rounds_done": len(done)} if patience else {}),
                **({"virtual_seconds": last.virtual["elapsed"]} if last.virtual else {}),
            }
        )
    first = trials[0]
    keys = ["best_test_accuracy", "final_test_accuracy", "majority_accuracy"]
    others = [f"{which}_{whose}_accuracy" for whose in WHOSE for which in ("best", "final")]
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
    scored = [row for row in rows if row.validation_accuracy is not None]
    if not scored:
        return {}
    chosen = max(scored, key=lambda row: (row.validation_accuracy, -row.round))
    found = (chosen[k] for k in ("test_accuracy", "client_test_accuracy", "validation_accuracy"))
    return {
        "validation_selected_round": chosen.round,
        **dict(zip(SELECTED, found, strict=True)),
    }


def _unseen(rows: list[Row], majority: Callable[..., float]) -> dict[str, Any]:
    """Return the last accuracy of the unseen clients; empty without unseen clients."""
    last = rows[-1]
    if "unseen" not in last:
        return {}
    found = last.unseen_accuracy, last.fine_tuned_accuracy
    guess = majority(last.trial, last.unseen)
    figures = zip(UNSEEN, (*found, guess), strict=True)
    return {"unseen": last.unseen, **{key: value for key, value in figures if value is not None}}


def _final_figures(rows: list[Row]) -> dict[str, float]:
    """Return the metrics of the last evaluation over all samples that are a single number.

    Args:
        rows: Lines of a record.

    Returns:
        {``final_NAME``: figure}.
    """
    last: Mapping[str, Any] = next((r.metrics for r in reversed(rows) if r.metrics), {})
    found = {f"final_{name}": each.get("all") for name, each in last.items()}
    return {key: value for key, value in found.items() if isinstance(value, float)}
