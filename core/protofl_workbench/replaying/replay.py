"""Replay of a run's server on the recorded uploads, with other options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protofl.errors import UsageError
from protofl.federation.plan.plan import Plan
from protofl.hooks.wire.payload import Payload
from protofl.records.reading import Reading
from protofl.records.weights import read_weights
from protofl.runs.results.configuration import check_same_data
from protofl.system.machine import machine_facts, recorded_facts
from protofl.system.torch_state import standard_torch
from protofl.system.version import versions
from protofl_workbench.recorded.observed import Features, Observed
from protofl_workbench.recorded.recorded_uploads import rounds_in, series_of, uploads_in
from protofl_workbench.replaying.replayed_server import (
    ReplayedRound,
    ReplayedServer,
    changes_of,
    is_same,
    own_plan,
)


class RecordedUploads:
    """The accepted uploads of the rounds of a trial.

    Args:
        run: The run's folder.
        trial: The trial.

    Attributes:
        rounds: The recorded rounds from the first to the first gap.

    Raises:
        UsageError: The uploads of the first round are not recorded.
        Damaged: The index of the uploads is damaged.
    """

    def __init__(self, run: Path, trial: int) -> None:
        self._series, self._trial = series_of(run), trial
        have = {*rounds_in(self._series, trial)}
        self.rounds = list(range(next(n for n in range(len(have) + 1) if n not in have)))
        if self.rounds:
            return
        trials = sorted({entry_trial for entry_trial, _ in self._series.entries})
        near = f"it has uploads of trials {', '.join(map(str, trials))}" if trials else ""
        if have:
            near = f"it has uploads from round {min(have)} on, and the server needs all of them"
        raise UsageError(
            f"{run} has no uploads of round 0 of trial {trial}",
            near,
            "repeat the run: --config RUN/config.json --record-uploads",
        )

    def of(self, round: int, device: torch.device) -> dict[int, Payload]:
        """Return {client: upload} of a round on a device, in the order of arrival.

        Raises:
            Damaged: The file is damaged.
        """
        result = uploads_in(self._series, self._trial, round)
        for upload in result.values():
            for key, tensor in upload.items():
                upload[key] = tensor.to(device, copy=True)
        return result


OWN = "as it was"
"""Label of the unchanged options."""


@dataclass
class Replayed:
    """The rounds of a server with given options.

    Attributes:
        label: Description of the changes: ``tau=10``.
        rounds: The rounds.
        first_sent: True if the downloads of the first round equal those of the run. Otherwise
            (FedTGP without its processor) no round is that of a run with these options.
    """

    label: str
    rounds: list[ReplayedRound] = field(default_factory=list)
    first_sent: bool = True

    @property
    def first_other(self) -> int | None:
        """First round after which the global state differs; None if it never differs."""
        return next((r.round for r in self.rounds if not r.same), None)


@dataclass
class Replay:
    """The replay of a run's server.

    Attributes:
        run: The run folder.
        trial: The trial.
        own: Replay with the run's own options.
        others: Replays with changed options, in the order of the grid.
        differs: Description of how `own` differs from the record; empty if all is equal, bit by
            bit.
        compared: Number of rounds in which figures, and global state, were compared with the
            record.
        notes: Notes for the user.
    """

    run: Path
    trial: int
    own: Replayed
    others: list[Replayed]
    differs: str = ""
    compared: tuple[int, int] = (0, 0)
    notes: list[str] = field(default_factory=list)

    def to_values(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        every = [
            {
                "changed": each.label,
                "first_sent": each.first_sent,
                "rounds": [{"round": r.round, "same": r.same, **r.figures} for r in each.rounds],
            }
            for each in (self.own, *self.others)
        ]
        about = {"run": str(self.run), "trial": self.trial, "differs": self.differs}
        return {**about, "notes": self.notes, "replays": every}


@standard_torch()
def replay(
    run: str | Path,
    *,
    set: Mapping[str, Any] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    use: Mapping[str, str] | None = None,
    trial: int = 0,
    rounds: int | None = None,
    keep_global_state: bool = False,
    progress: Callable[[int, int], None] = lambda rounds_done, of: None,
) -> Replay:
    """Repeat the server's part of a run on its recorded uploads (``--record-uploads``).

    No client is trained. The global state after round 1 is that of a run with the changed options,
    bit by bit, if they leave the clients and the first downloads as they are.

    Args:
        run: The run folder.
        set: Changed options as for ``--set``: ``{"tau": 10}``.
        grid: {option: values}; each combination is replayed.
        use: {hook of the server: method that provides it}, as for ``--use``.
        trial: The trial.
        rounds: Largest number of rounds; None for all.
        keep_global_state: True to keep the global state of each round.
        progress: Called with the number of finished rounds and of all rounds.

    Raises:
        UsageError: The uploads are not recorded, or an option is not possible.
        Damaged: A recorded file is damaged.
    """
    reading = Reading.of(run)
    uploads = RecordedUploads(reading.folder, trial)
    plan = own_plan(reading.config)
    check_same_data(reading.config, plan)
    unchanged = ReplayedServer(plan, trial)
    changes = changes_of(reading.config, set or {}, grid or {}, use or {})
    changed = [(Replayed(c.label), ReplayedServer(c.plan, trial)) for c in changes if c.label]
    result = Replay(reading.folder, trial, Replayed(OWN), [each for each, _ in changed])
    result.notes += _other_versions(reading.config, plan)
    observed, kept = Observed(reading.folder), _kept_global_state(reading.folder, trial)
    extras = {row.round: row.extra for row in reading.rows if row.trial == trial}
    for number in (chosen := uploads.rounds[:rounds]):
        sent = uploads.of(number, plan.device)
        if number == 0:
            first = unchanged.downloads(0, sent)
            for each, server in changed:
                each.first_sent = server.downloads(0, sent) == first
        features = _features(observed, number, trial)
        unchanged.round(number, sent)
        extra = extras.get(number, {})
        result.differs = result.differs or _difference(unchanged, extra, kept.get(number))
        figures, weights = result.compared
        result.compared = figures + bool(extra), weights + (number in kept)
        for each, server in ((result.own, unchanged), *changed):
            if server is not unchanged:
                server.round(number, uploads.of(number, plan.device))
            drawn = server.figures(sent, unchanged.global_state, features)
            each.rounds.append(
                _replayed_round(number, server, unchanged, drawn, copy=keep_global_state)
            )
        progress(number + 1, len(chosen))
    return result


def _replayed_round(
    number: int,
    server: ReplayedServer,
    unchanged: ReplayedServer,
    figures: dict[str, Any],
    *,
    copy: bool,
) -> ReplayedRound:
    knows = server.global_state
    kept = Payload({name: value.clone() for name, value in knows.items()}) if copy else None
    return ReplayedRound(number, is_same(knows, unchanged.global_state), figures, kept)


def _kept_global_state(run: Path, trial: int) -> dict[int, dict[str, Tensor]]:
    """Return {round: global state of the server} for the rounds with kept weights."""
    result, start = dict[int, dict[str, Tensor]](), "global_state/"
    for which in ("best", "last"):
        try:
            kept = read_weights(run, which, trial, clients=())
        except UsageError:  # not kept, or removed
            continue
        result[kept.round] = {
            key.removeprefix(start): value
            for key, value in kept.server.items()
            if key.startswith(start)
        }
    return result


def _difference(
    unchanged: ReplayedServer, extra: Mapping[str, Any], kept: Mapping[str, Tensor] | None
) -> str:
    """Describe how a round differs from the record; empty if it does not."""
    for key, was in extra.items():
        now = unchanged.extra.get(key)
        if was != now:
            return f"{key} of round {unchanged.number} is {now}, but was {was} in the run"
    if kept is not None and not is_same(kept, unchanged.global_state):
        number = unchanged.number
        return f"the server's global state after round {number} differs from the kept weights"
    return ""


def _other_versions(recorded: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return notes about versions and devices that differ from those of the run."""
    was = {"device": recorded["device"], **recorded_facts(recorded)}
    here = recorded_facts({"versions": versions(), "machine": machine_facts()})
    now: dict[str, Any] = {"device": plan.settings.device, **here}
    for plugin in recorded.get("plugins", ()):
        name = f"{plugin['kind']} {plugin['name']}"
        for member in plan.composition.members.values():
            if (member.kind, member.name) == (plugin["kind"], plugin["name"]):
                was[name] = plugin["version"]
                now[name] = plan.registry.find(member.kind, member.name).version
    return [
        f"{name} is {now[name]}, but was {before} in the run: numbers may differ"
        for name, before in was.items()
        if name in now and now[name] != before
    ]


def _features(observed: Observed, round: int, trial: int) -> Features | None:
    """Return the observed test features of a round, if any."""
    if round in observed.rounds(trial) and "features" in observed.kinds(round, trial):
        return observed.features(round, trial)
    return None
