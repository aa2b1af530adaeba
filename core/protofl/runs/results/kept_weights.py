"""Weights of chosen rounds (``--keep-weights``): checks, and the space that they take on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from protofl.errors import UsageError
from protofl.federation.jobs.pool_interface import ClientFiles, Pool
from protofl.federation.plan.plan import Plan
from protofl.federation.plan.store_choice import client_sizes
from protofl.system.files.home import expand_user
from protofl.system.formatting import count, size_text
from protofl.system.options.parsing import kept_rounds


def check_kept_weights(plan: Plan) -> None:
    """Check that a run has the rounds that ``--keep-weights`` names, and saves them.

    Raises:
        UsageError: It does not.
    """
    settings = plan.settings
    kind, _, text = settings.keep_weights.partition(":")
    if not kind:
        return
    asked, rounds = f"--keep-weights {settings.keep_weights}", settings.rounds
    if settings.checkpoint_every == 0:
        raise UsageError(
            f"{asked}: this run saves no round (--checkpoint-every off)",
            do="leave one of them out",
        )
    largest = int(text.split(",")[-1])
    if kind == "rounds" and largest >= rounds:
        raise UsageError(
            f"{asked}: this run has no round {largest}",
            f"it has {count(rounds, 'round')}, from 0 to {rounds - 1}",
            f"name rounds up to {rounds - 1}, or take more --rounds",
        )
    if kind == "every" and largest > rounds:
        raise UsageError(
            f"{asked}: this run has only {count(rounds, 'round')}, so nothing would be kept",
            do=f"take every:{rounds} or less, or more --rounds",
        )


def check_place(plan: Plan, pool: Pool) -> None:
    """Check that the clients' weights come to the run folder, if ``--keep-weights`` asks for them.

    Raises:
        UsageError: The hosts keep the clients' files.
    """
    if plan.settings.keep_weights and isinstance(pool, ClientFiles):
        raise UsageError(
            f"--keep-weights {plan.settings.keep_weights}: with --backend {plan.settings.backend} "
            "the clients' weights stay on the clients' own machines",
            "only the server's weights are in the run folder",
            "leave it out; a node can export its client as it was evaluated last: "
            "protofl node export",
        )


def size_on_disk(plan: Plan, beside: int, done: Collection[tuple[int, int]] = ()) -> int:
    """Return the most bytes that the clients' files of kept rounds will take in the run folder.

    A client that has not trained since the kept round before shares its file with that round.

    Args:
        plan: The run.
        beside: Bytes that a client keeps beside its model, as the dry run has measured them.
        done: Trials and rounds that are over.
    """
    settings, info = plan.settings, plan.info
    largest_first = sorted(client_sizes(info, settings.clients, beside), reverse=True)
    total, before = 0, -1
    for number in kept_rounds(settings.keep_weights, settings.rounds):
        trained = min(settings.clients, info.participants * (number - before))
        left = sum((trial, number) not in done for trial in range(settings.trials))
        total += left * sum(largest_first[:trained])
        before = number
    return total


def announce(
    plan: Plan,
    beside: int,
    folder: Path,
    done: Collection[tuple[int, int]],
    note: Callable[[str], None],
) -> None:
    """Say what ``--keep-weights`` keeps, and how large it may become.

    Args:
        plan: The run.
        beside: See `size_on_disk`.
        folder: The run folder, which need not exist.
        done: Trials and rounds that are over.
        note: Takes the line.

    Raises:
        UsageError: The disk has less space than that.
    """
    settings = plan.settings
    if not settings.keep_weights:
        return
    kept = kept_rounds(settings.keep_weights, settings.rounds)
    size = size_on_disk(plan, beside, done)
    place = expand_user(folder).absolute()
    free = shutil.disk_usage(next(p for p in (place, *place.parents) if p.exists())).free
    if size > free:
        raise UsageError(
            f"--keep-weights {settings.keep_weights}: the weights of {count(len(kept), 'round')} "
            f"take up to {size_text(size)}, and {size_text(free)} are free at {place}",
            do="keep fewer rounds, or choose another disk with --out",
        )
    shown = ", ".join(map(str, kept[:6])) + (f", …, {kept[-1]}" if len(kept) > 6 else "")
    several = f" of {count(settings.trials, 'trial')}" if settings.trials > 1 else ""
    rounds = f"round{'s' if len(kept) > 1 else ''} {shown}{several}"
    note(
        f"the weights of {rounds}, counted from 0, are kept: up to {size_text(size)} in the run "
        "folder"
    )
