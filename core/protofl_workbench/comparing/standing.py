"""How far a run is, and whether it has diverged: what a reader must know of its figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from protofl.errors import UsageError
from protofl.records.folder.reading import FINISHED
from protofl.records.folder.row import Row
from protofl.runs.reuse.run import Run
from protofl.system.formatting import count


def progress(run: Run) -> str:
    """Where a run isn't finished, how far it is: ``unfinished: 3 of 6 rounds``."""
    if (state := run.state) == FINISHED:
        return ""
    asked = run.config["rounds"] * run.config["trials"]
    return f"{state}: {run.rounds_done:,} of {count(asked, 'round')}"


def divergence(run: Run) -> str:
    """Whether a run's loss is not finite at the end, and since when: ``diverged in round 3``."""
    lost = {t: n for t in run.trials if (n := diverged(run.rows_of(t))) is not None}
    if not lost:
        return ""
    rounds = sorted({*lost.values()})
    told = f"diverged in round {' and '.join(str(n + 1) for n in rounds[:3])}"
    told += " and later" if len(rounds) > 3 else ""
    several = run.config["trials"] > 1
    return told + (f" ({len(lost)} of {len(run.trials)} trials)" if several else "")


def diverged(rows: Sequence[Row]) -> int | None:
    """The round, from 0, since which a trial's loss is not finite; None where its last one is.

    Args:
        rows: The trial's lines by rounds.
    """
    found = None
    for row in reversed(rows):
        if not is_lost(row, "train_loss"):
            break
        found = int(row.round)
    return found


def is_lost(row: Row, source: str) -> bool:
    """Whether a line has a loss that was not finite, which is written as null.

    Args:
        row: The line.
        source: Where a figure stands in it; of one that is no loss null may say something else.
    """
    group, _, term = source.partition(".")
    if source == "train_loss":
        return row.get(source, 0) is None
    terms = row.get(group) if group == "loss_terms" else None
    return isinstance(terms, Mapping) and terms.get(term, 0) is None


def told_of(runs: Iterable[Run]) -> list[str]:
    """A line for each run that lacks rounds or has diverged."""
    found = []
    for run in runs:
        short = run.rounds_done < run.config["rounds"] * run.config["trials"]
        said = ", ".join(filter(None, (progress(run) * short, divergence(run))))
        found += [f"{run.folder}: {said}"] if said else []
    return found


def without_rounds(runs: Iterable[Run]) -> UsageError:
    """The error for runs of which none has a round."""
    told = told_of(runs)
    near = "; ".join(told[:4]) + ("; …" if len(told) > 4 else "")
    do = "wait for the first, or go on with one: protofl run --resume --out FOLDER"
    return UsageError("there is no finished round in any of the runs", near, do)
