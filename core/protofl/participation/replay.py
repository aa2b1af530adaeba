"""Participants as in a run that is recorded (``--participants-from``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from protofl.errors import UsageError
from protofl.plan.plan import Plan
from protofl.randomness import numpy_stream

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
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        found = {(row["trial"], row["round"]): row for row in map(json.loads, lines)}
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
        return {at: _answered(row, config) for at, row in found.items()}
    except OSError as error:
        problem = f"{error.filename}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        problem = "its config.json or metrics.jsonl is damaged"
    raise UsageError(f"{where}: {problem}", do="give the folder of a run") from None


def _answered(row: Mapping[str, Any], config: Mapping[str, Any]) -> list[int]:
    """The clients that answered in a round: the usual ones, unless its line names them."""
    if "answered" not in row:
        seed = config["seed"] + row["trial"]
        return usual(seed, row["round"], config["clients"], row["participants"])
    answered: list[int] = row["answered"]
    known = {*range(config["clients"])}
    if not known.issuperset(answered) or answered != sorted({*answered}):
        raise ValueError
    return answered
