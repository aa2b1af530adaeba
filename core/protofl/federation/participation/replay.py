"""Participants as in a run that is recorded (``--participants-from``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protofl.errors import UsageError
from protofl.federation.plan.plan import Plan
from protofl.records.folder.reading import METRICS, Reading
from protofl.records.folder.row import Row
from protofl.system.randomness import numpy_stream

Recorded = Mapping[tuple[int, int], list[int]]
"""{(trial, round): the clients that took part and answered, ascending}."""


def usual(seed: int, round: int, clients: int, participants: int) -> list[int]:
    """The clients of a round whose line of the record names none: those of ``uniform``.

    Args:
        seed: The trial's seed.
        round: The round.
        clients: Clients M of the run.
        participants: How many of them take part.
    """
    stream = numpy_stream(seed, "participants", round)
    return sorted(stream.choice(clients, participants, replace=False).tolist())


def recorded_clients(plan: Plan) -> Recorded:
    """The clients that answered in rounds of the run in a folder, that of ``--participants-from``.

    Args:
        plan: The run in which they are to take part.

    Raises:
        UsageError: It is no run folder, or lacks clients or rounds of this run.
    """
    folder, clients = plan.settings.participants_from, plan.info.num_clients
    if folder is None:
        return {}
    where = f"--participants-from {folder}"
    try:
        run = Reading.of(folder)
        config, found = run.config, {(row.trial, row.round): row for row in run.rows}
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
    lacking = next((at for t in trials for r in rounds if (at := (t, r)) not in found), None)
    if lacking is not None:
        raise UsageError(
            f"{where}: its record has no round {lacking[1]} of trial {lacking[0]}",
            do="take fewer --rounds, or a run that has them",
        )
    try:
        return {at: _answered(row, config) for at, row in found.items()}
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{where}: {run.path / METRICS} doesn't say who took part",
            do="give the folder of a run",
        ) from None


def _answered(row: Row, config: Mapping[str, Any]) -> list[int]:
    """The clients that answered in a round: the usual ones, unless its line names them."""
    answered = row.answered
    if answered is None:
        seed = config["seed"] + row.trial
        return usual(seed, row.round, config["clients"], row.participants)
    known = {*range(config["clients"])}
    if not known.issuperset(answered) or answered != sorted({*answered}):
        raise ValueError
    return [*answered]
