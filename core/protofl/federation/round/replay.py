"""Participants of a recorded run, for a run that repeats them (``--participants-from``)."""

from __future__ import annotations

from pathlib import Path

from protofl.errors import UsageError
from protofl.federation.plan.plan import Plan
from protofl.federation.round.client_sampling import Membership, default_participants
from protofl.records.reading import Reading
from protofl.records.row import Row


def recorded_clients(plan: Plan, folder: str | Path) -> dict[tuple[int, int], Row]:
    """Return the rounds of the run of ``--participants-from``, with the clients that answered.

    Args:
        plan: The run in which they are to take part.
        folder: The folder of the run.

    Raises:
        UsageError: It is not a run folder, lacks clients or rounds of this run, or a client is
            unseen here, or comes later.
    """
    where, clients = f"--participants-from {folder}", plan.info.num_clients
    try:
        run = Reading.of(folder)
        config, rows = run.config, {(row.trial, row.round): row for row in run.rows}
    except UsageError as problem:
        raise UsageError(
            f"--participants-from: {problem.what}", problem.near, "give the folder of a run"
        ) from None
    if config["clients"] != clients:
        raise UsageError(
            f"{where}: that run has {config['clients']} clients, and this one {clients}",
            do=f"take --clients {config['clients']}, or leave --participants-from out",
        )
    trials, rounds = range(plan.settings.trials), range(plan.settings.rounds)
    lacking = next((at for t in trials for r in rounds if (at := (t, r)) not in rows), None)
    if lacking is not None:
        raise UsageError(
            f"{where}: its record has no round {lacking[1] + 1} of trial {lacking[0]}",
            do="take fewer --rounds, or a run that has them",
        )
    seed = config["seed"]
    result = {
        (trial, round): row
        if row.answered is not None
        else row.changed(
            answered=default_participants(seed + trial, round, clients, row.participants)
        )
        for (trial, round), row in rows.items()
    }
    members = Membership(plan)
    for (trial, round), line in result.items():
        members.start(trial)
        if strange := {*line["answered"]}.difference(members.numbers(round)):
            raise UsageError(
                f"--participants-from: client {min(strange)} took part in round {round + 1} of "
                f"trial {trial}, and is unseen here, or comes later",
                do="give the same --unseen and --join-round as that run had",
            )
    return result
