"""Replay: what the server would have made of the recorded uploads with other options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protofl.errors import UsageError
from protofl.federation.plan import Plan
from protofl.hooks.wire.payload import Payload
from protofl.records.observed import UPLOADS, Features, Observed
from protofl.records.reading import Reading
from protofl.records.result import read_weights
from protofl.runs.configuration import check_same_data
from protofl.system.files.series import Series
from protofl.system.machine import machine_facts, recorded_facts
from protofl.system.version import versions
from protofl_workbench.replaying.changed_options import changes_of, own_plan
from protofl_workbench.replaying.replayed_server import ReplayedRound, ReplayedServer, is_same


class RecordedUploads:
    """The accepted uploads of the rounds of a trial.

    Args:
        run: The run's folder.
        trial: The trial.

    Attributes:
        rounds: The rounds from the first on, without a gap.

    Raises:
        UsageError: The run has not kept those of the first round.
        Damaged: What says where they are is not what was written.
    """

    def __init__(self, run: Path, trial: int) -> None:
        self._series, self._trial = Series(run / UPLOADS), trial
        have = {round for own, round in self._series.entries if own == trial}
        self.rounds = list(range(next(n for n in range(len(have) + 1) if n not in have)))
        if self.rounds:
            return
        trials = sorted({own for own, _ in self._series.entries})
        many = "trials" if len(trials) > 1 else "trial"
        near = f"kept are those of {many} {', '.join(map(str, trials))}" if trials else ""
        if have:
            near = f"kept are those from round {min(have)} on, and the server needs all before"
        raise UsageError(
            f"{run} has not kept the uploads of round 0 of trial {trial}",
            near,
            "run it again with --record-uploads (--config RUN/config.json repeats a run)",
        )

    def of(self, round: int, device: torch.device) -> dict[int, Payload]:
        """{client: upload} of a round, in the order in which the server got them.

        Args:
            round: The round.
            device: Where the tensors go.

        Raises:
            Damaged: The file is not what was written.
        """
        tensors, about = self._series.read((self._trial, round))
        found: dict[int, Payload] = {client: Payload() for client in about["clients"]}
        for name, tensor in tensors.items():
            owner, _, key = name.partition("/")
            found[int(owner)][key] = tensor.to(device, copy=True)
        for client, upload in found.items():
            upload.holder = f"the upload of client {client}"
        return found


OWN = "as it was"
"""The label of a run's own options."""


@dataclass
class Replayed:
    """The rounds of a server with given options.

    Attributes:
        label: What was changed: ``tau=10``.
        rounds: Its rounds.
        first_sent: Whether the first round's clients get what they got in the run. Where they
            don't (FedTGP without its processor), no round is what a run would have had.
    """

    label: str
    rounds: list[ReplayedRound] = field(default_factory=list)
    first_sent: bool = True

    @property
    def first_other(self) -> int | None:
        """The first round after which the knowledge differs; None if it never does."""
        return next((r.round for r in self.rounds if not r.same), None)


@dataclass
class Replay:
    """The server's half of a run again.

    Attributes:
        run: The run's folder.
        trial: The trial.
        own: With the run's own options.
        others: With those that were changed, in the order of the grid.
        differs: Where the own replay is not what the run has recorded, in words; empty where it is
            the same to the last bit.
        compared: In how many rounds it was held against figures of the record, and against
            knowledge that the run has kept.
        notes: Lines for the user.
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


def replay(
    run: str | Path,
    *,
    set: Mapping[str, Any] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    use: Mapping[str, str] | None = None,
    trial: int = 0,
    rounds: int | None = None,
    keep_knowledge: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Replay:
    """Run the server's half of a run again on the uploads that it has kept (``--record-uploads``).

    No client is trained. What the server knows behind the first round is what a run with the
    changed options would have had, to the last bit, where they concern the server alone and it
    sends the same in the beginning. From the second round on the answer is "given these uploads":
    in a run the clients would have met other knowledge, and sent something else.

    Args:
        run: The run's folder.
        set: Options that are changed, as ``--set`` takes them: ``{"tau": 10}``.
        grid: {option: values}, each combination of which is replayed beside ``set``.
        use: {hook of the server: the method that provides it}, as ``--use`` takes it.
        trial: The trial.
        rounds: How many rounds, at most; all that were kept where None.
        keep_knowledge: Whether every round's knowledge is kept.
        progress: Called with the rounds that are done, and their number.

    Raises:
        UsageError: The run has not kept its uploads, or the options can't be.
        Damaged: What was kept is not what was written.
    """
    reading = Reading.of(run)
    uploads = RecordedUploads(reading.folder, trial)
    plan = own_plan(reading.config)
    check_same_data(reading.config, plan)
    own = ReplayedServer(plan, trial)
    changed = [
        (Replayed(change.label), ReplayedServer(change.plan, trial))
        for change in changes_of(reading.config, set or {}, grid or {}, use or {})
        if change.label
    ]
    found = Replay(reading.folder, trial, Replayed(OWN), [each for each, _ in changed])
    found.notes += _other_versions(reading.config, plan)
    observed, kept_knowledge = Observed(reading.folder), _KeptKnowledge(reading.folder, trial)
    extras = {row.round: row.extra for row in reading.rows if row.trial == trial}
    chosen = uploads.rounds[:rounds]
    for number in chosen:
        sent = uploads.of(number, plan.device)
        if number == 0:
            first = own.downloads(0, sent)
            for each, server in changed:
                each.first_sent = server.downloads(0, sent) == first
        features = _features(observed, number, trial)
        own.round(number, sent)
        kept, extra = kept_knowledge.of(number), extras.get(number, {})
        found.differs = found.differs or _differs(own, extra, kept)
        figures, weights = found.compared
        found.compared = figures + bool(extra), weights + (kept is not None)
        for each, server in ((found.own, own), *changed):
            if server is not own:
                server.round(number, uploads.of(number, plan.device))
            knows, drawn = server.knowledge, server.figures(sent, own.knowledge, features)
            copy = Payload({k: v.clone() for k, v in knows.items()}) if keep_knowledge else None
            each.rounds.append(ReplayedRound(number, is_same(knows, own.knowledge), drawn, copy))
        progress(number + 1, len(chosen))
    return found


class _KeptKnowledge:
    """The knowledge of the server in rounds with kept weights."""

    def __init__(self, run: Path, trial: int) -> None:
        self._by_round: dict[int, dict[str, Tensor]] = {}
        for which in ("best", "last"):
            try:
                kept = read_weights(run, which, trial, clients=())
            except UsageError:  # not kept, or removed: then there is less to compare with
                continue
            start = "knowledge/"
            self._by_round[kept.round] = {
                key.removeprefix(start): value
                for key, value in kept.server.items()
                if key.startswith(start)
            }

    def of(self, round: int) -> dict[str, Tensor] | None:
        """That of a round; None where it was not kept."""
        return self._by_round.get(round)


def _differs(
    own: ReplayedServer, extra: Mapping[str, Any], kept: Mapping[str, Tensor] | None
) -> str:
    """Describe how a round differs from the record; empty if it does not."""
    for key, was in extra.items():
        now = own.extra.get(key)
        if was != now:
            return f"{key} of round {own.number} is {now}, and was {was} in the run"
    if kept is not None and not is_same(kept, own.knowledge):
        return f"the server's knowledge behind round {own.number} is not what the run has kept"
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
        f"{name} was {before} in the run and is {now[name]} now: numbers may differ"
        for name, before in was.items()
        if name in now and now[name] != before
    ]


def _features(observed: Observed, round: int, trial: int) -> Features | None:
    """Test features of a round, where the run has observed them."""
    if round in observed.rounds(trial) and "features" in observed.kinds(round, trial):
        return observed.features(round, trial)
    return None
