"""Participation in the rounds of a run: selected or replayed clients, without absent ones."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from protofl.errors import RunFailure, UsageError
from protofl.federation.jobs.jobs import TrainReply
from protofl.federation.jobs.pool_interface import Presence
from protofl.federation.plan.plan import Plan
from protofl.federation.round.client_sampling import (
    ClientSampler,
    Membership,
    default_participants,
)
from protofl.records.row import Row

if TYPE_CHECKING:
    from protofl.federation.time.virtual_clock import VirtualClock

Recorded = Mapping[tuple[int, int], Row]
"""Lines of rounds to replay, {(trial, round): line}: ``answered``, ``unfollowed``, ``unscored``."""

PAUSE = 1.0
"""Seconds between two looks at which clients can be reached."""


class Participation:
    """Participation in the rounds of a run.

    Args:
        plan: The run.
        recorded: Rounds to replay; those of ``--participants-from`` if not given.
    """

    def __init__(self, plan: Plan, recorded: Recorded | None = None) -> None:
        self._plan, self._trial, self._recorded = plan, 0, recorded or {}
        folder = plan.settings.participants_from
        if recorded is None and folder is not None and not plan.dry:
            from protofl.federation.round.replay import recorded_clients

            self._recorded = recorded_clients(plan, folder)
        self.members = Membership(plan)
        """The clients that there are in a round."""
        self.sampler = ClientSampler(plan)
        """Chooses the clients that are asked."""
        self.clock: VirtualClock | None = None
        """Virtual time; None without devices."""
        if "device-model" in plan.choices and not plan.dry:
            from protofl.federation.time.virtual_clock import VirtualClock

            self.clock = VirtualClock(plan)

    def start(self, trial: int, rows: Iterable[Row] = ()) -> None:
        """Start a trial, or continue it after the lines of its record."""
        trial_rows = [row for row in rows if row.trial == trial]
        self._trial = trial
        self.members.start(trial)
        self.sampler.start(trial)
        for row in trial_rows:
            self.sampler.learn(row.client_losses)
        if self.clock:
            self.clock.start(trial, trial_rows)

    def asked(self, round: int, pool: Presence | None = None) -> list[int]:
        """Return the clients that the server asks in a round, ascending.

        Args:
            round: The round.
            pool: Tells which clients can be reached; None if all can. A replay does not ask.

        Raises:
            RunFailure: No client is available, or the plugin's answer is invalid.
        """
        if self._plan.dry:
            return [*range(self._plan.info.num_clients)]
        settings, count = self._plan.settings, self.members.asked(round)
        there = self.members.at(round)
        replayed = self._recorded.get((self._trial, round))
        recorded = None if replayed is None else [*replayed["answered"]]
        if pool is not None and recorded is None:
            there = self._present(round, pool)
        if self.clock is None:
            return self.sampler.choose(round, count, there) if recorded is None else recorded
        if recorded is not None:
            self.clock.ask(self.clock.now, len(recorded), limited=False)
            return recorded
        moment = self.clock.wait(max(1, settings.min_clients), there)
        asked = self.sampler.choose(round, more_than(count, settings.over_select), moment.clients)
        awaited = min(count, len(asked)) if settings.over_select else len(asked)
        self.clock.ask(moment, awaited, limited=True)
        return asked

    def _present(self, round: int, pool: Presence) -> np.ndarray:
        """Return the members that can be reached, ascending, when they are enough.

        Raises:
            RunFailure: They were too few until the end of ``--wait-for-clients``.
        """
        settings, members = self._plan.settings, {*self.members.numbers(round)}
        least, end = max(1, settings.min_clients), time.monotonic() + settings.wait_for_clients
        while len(reachable := members.intersection(pool.present())) < least:
            if (left := end - time.monotonic()) <= 0:
                raise RunFailure(
                    f"{len(reachable)} of {len(members)} clients can be reached in round "
                    f"{round + 1}, and --min-clients asks for {least}",
                    f"missing: {listed(sorted(members - reachable))}",
                    "continue when they are back, with a lower --min-clients, or with a longer "
                    "--wait-for-clients",
                )
            time.sleep(min(PAUSE, left))
        return np.array(sorted(reachable))

    def lost(self, round: int, figure: str, among: Iterable[int]) -> dict[int, str]:
        """Return {client: reason} of clients that a replayed round lost after the uploads.

        Args:
            round: The round.
            figure: ``unfollowed`` or ``unscored``.
            among: The clients of this run's stage.
        """
        line = self._recorded.get((self._trial, round), Row({}))
        reasons = {int(client): reason for client, reason in line.get(figure, {}).items()}
        return {client: reasons[client] for client in among if client in reasons}

    def answered(
        self, round: int, asked: Iterable[int], absent: Mapping[int, str]
    ) -> tuple[list[int], bool]:
        """Return the participants, and True if the record must name them.

        They do unless they are those that the usual draw gives.

        Raises:
            RunFailure: They are too few.
        """
        asked, info = [*asked], self._plan.info
        clients, least = [c for c in asked if c not in absent], self._plan.settings.min_clients
        replayed = not absent and (self._trial, round) in self._recorded
        if len(clients) < least and not replayed:
            do = "continue when they are back, or with a lower --min-clients"
            if "deadline" in absent.values():  # which the same round would miss again
                do = "continue with a lower --min-clients, or begin again with a longer --deadline"
            came = f"{len(clients)} of {len(asked)} clients answered"
            if not asked:
                came = "no client was asked"
            raise RunFailure(
                f"{came} in round {round + 1}, and --min-clients asks for {least}",
                f"absent: {named(absent)}" if absent else "",
                do,
            )
        if self._plan.dry:
            return clients, False
        seed = self._plan.seed(self._trial)
        return clients, clients != default_participants(
            seed, round, info.num_clients, info.participants
        )

    def scored(self, round: int, scores: Collection[int], lost: Mapping[int, str]) -> None:
        """Check that an evaluation did not lose all its clients.

        Raises:
            RunFailure: It did.
        """
        if lost and not scores:
            what = f"no client was evaluated in round {round + 1}"
            raise RunFailure(what, f"lost: {named(lost)}", "continue when they are back")

    def hear(self, replies: Mapping[int, TrainReply]) -> None:
        """Pass the mean losses of accepted clients to the client sampler."""
        self.sampler.hear(
            {c: sum(reply.sums.values()) / max(reply.samples, 1) for c, reply in replies.items()}
        )

    def line(self, round: int) -> dict[str, Any]:
        """Return the keys of the record about participation, after the round."""
        clock = self.clock.line() if self.clock else {}
        return {**self.members.line(round), **self.sampler.line(), **clock}


def named(lost: Mapping[int, str]) -> str:
    """Return up to ten lost clients with their reasons."""
    return listed([f"{client} ({reason})" for client, reason in sorted(lost.items())])


def listed(who: Sequence[object]) -> str:
    """Return up to ten clients in words."""
    return ", ".join(map(str, who[:10])) + (f" and {len(who) - 10} more" if len(who) > 10 else "")


def check_participation(plan: Plan) -> None:
    """Check the options about participation before anything is trained.

    Raises:
        UsageError: Options exclude each other, ask for more clients than there are, or the
            plugins can't meet theirs.
    """
    settings, info, members = plan.settings, plan.info, Membership(plan)
    least = members.asked(0)
    if settings.min_clients > least:
        raise UsageError(
            f"--min-clients {settings.min_clients} is not possible: a round has "
            f"{least} participants",
            do="lower it, or raise --participation",
        )
    if settings.patience and settings.fine_tune:
        raise UsageError(
            f"--patience {settings.patience}: clients are fine-tuned after the last round, "
            "which is not known in advance",
            do="take --fine-tune 0, or leave --patience out",
        )
    if settings.min_clients == 0 and settings.eval_clients == "participants":
        raise UsageError(
            "--min-clients 0 with --eval-clients participants: no client may be left to evaluate",
            do="take --min-clients 1, or --eval-clients all",
        )
    if settings.devices is None:
        for name, value in (("deadline", settings.deadline), ("over-select", settings.over_select)):
            if value:
                raise UsageError(
                    f"--{name} {value:g} needs to know how long clients take",
                    do="choose a device model: --devices NAME",
                )
    elif settings.over_select:
        asked = min(
            more_than(info.participants, settings.over_select),
            info.num_clients - len(members.unseen),
        )
        if asked == info.participants:
            raise UsageError(
                f"--over-select {settings.over_select:g} samples no further clients: a round has "
                f"{info.participants} participants of {info.num_clients} clients",
                do="raise it, lower --participation, or leave it out",
            )
    if settings.participants_from is None:
        sampling = ClientSampler(plan)
        sampling.start(0)
        sampling.choose(0, least, members.at(0))
    if settings.devices is not None:
        from protofl.federation.time.device_model import DeviceModel

        DeviceModel(plan).device(0)


def more_than(count: int, share: float) -> int:
    """Return the number of clients to ask with over-selection, rounded."""
    return round(count * (1 + share))
