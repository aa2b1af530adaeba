"""Virtual time of rounds: durations of transfers and of training, and absent clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from protofl.data.batches import bounds_by_epoch
from protofl.federation.clients.host import Host
from protofl.federation.jobs.jobs import TrainReply
from protofl.federation.plan.plan import Plan
from protofl.federation.time.device_model import DeviceModel, Moment
from protofl.records.row import Row
from protofl.system.files.tables import rounded

PASSES = 3
"""A training step in forward passes: one forward, and one backward that costs two."""


def end_of_round(
    arrivals: Mapping[int, float], stays: Mapping[int, float], awaited: int, deadline: float
) -> tuple[float, dict[int, str]]:
    """Return when a round ends, and who is absent from it.

    It ends when as many replies as are awaited have come, or when no client is left to wait for,
    and at the deadline.

    Args:
        arrivals: {client: seconds from the round's beginning until its reply would have come}, of
            all that were asked.
        stays: {client: seconds from then until it leaves}.
        awaited: Replies that the server waits for.
        deadline: Seconds that it waits at most.

    Returns:
        Seconds that the round lasts, and {client: why} of the absent: ``left`` before its reply
        had come, ``late`` where enough others were faster, ``deadline``.
    """
    came = [(at, c) for c, at in arrivals.items() if at <= deadline and at <= stays[c]]
    counted = sorted(came)[:awaited]
    enough = len(counted) == awaited
    if enough:
        end = max((at for at, _ in counted), default=0.0)
    else:
        end = max((min(deadline, at, stays[c]) for c, at in arrivals.items()), default=0.0)
    absent = {}
    for client in arrivals.keys() - {client for _, client in counted}:
        if stays[client] < arrivals[client] and stays[client] <= end:
            absent[client] = "left"
        else:
            absent[client] = "late" if enough else "deadline"
    return end, dict(sorted(absent.items()))


class VirtualClock:
    """Virtual time of a trial.

    Args:
        plan: The run.

    Attributes:
        elapsed: Seconds at the end of the last round.
        device: Returns a client's `protofl.federation.time.device_model.Device`.
        at: Returns the `protofl.federation.time.device_model.Moment` of a time: the available
            clients.
    """

    def __init__(self, plan: Plan) -> None:
        settings = plan.settings
        self._plan, self._device_model = plan, DeviceModel(plan)
        self.device, self.at = self._device_model.device, self._device_model.at
        host = Host(plan)
        self._flops = [host.client(client).forward_flops() for client in plan.info.examples]
        # Epochs of its own samples that a client trains in any case before its upload.
        self._epochs = [
            phase.epochs or settings.local_epochs
            for phase in plan.composition.phases(plan.info)
            if (phase.when, phase.data, phase.needs) == ("before_upload", "private", None)
            and phase.rows is None
            and plan.composition.terms_of(phase)
        ]
        self._deadline = settings.deadline or math.inf
        self.leaves_out = bool(
            settings.deadline or settings.over_select or self._device_model.comes_and_goes
        )
        """True if clients that have trained may turn out to be absent."""
        self.elapsed = 0.0

    def start(self, trial: int, rows: Iterable[Row] = ()) -> None:
        """Start a trial, or continue it after the lines of its record."""
        self._device_model.start(trial)
        self._trial, self.elapsed = trial, 0.0
        for row in rows:
            self.elapsed = row.virtual["elapsed"]

    @property
    def now(self) -> Moment:
        """The end of the last round, with all clients available."""
        return Moment(self.elapsed)

    # --- a round ----------------------------------------------------------------------------------

    def wait(
        self, least: int, among: np.ndarray | None = None, since: float | None = None
    ) -> Moment:
        """Return the first moment at which enough of the given clients are available.

        Args:
            least: How many.
            among: The clients, ascending; None for all.
            since: The time before which it is not; None for the end of the last round.
        """
        seconds = self.elapsed if since is None else since
        return self._device_model.wait(seconds, least, among)

    def ask(self, moment: Moment, awaited: int, *, limited: bool) -> None:
        """Start a round.

        Args:
            moment: When, and who is there.
            awaited: Replies that the server waits for.
            limited: Whether it does without clients that leave or miss the deadline.
        """
        self._moment, self._awaited, self._limited = moment, awaited, limited
        self._parts: dict[int, list[float]] = {}
        self._ends = 0.0

    def download(self, sizes: Mapping[int, int], when: str) -> set[int]:
        """Book downloads; return the clients that will be absent whatever they send."""
        for client, size in sizes.items():
            self._parts.setdefault(client, []).append(
                self._device_model.device(client).seconds_down(size)
            )
        if when == "after_server" or not self._limited:
            return set()
        return {client for client in sizes if self._is_hopeless(client)}

    def arrive(self, replies: Mapping[int, TrainReply], lost: Iterable[int]) -> dict[int, str]:
        """Book training and uploads; return the absent clients.

        Args:
            replies: What they answered.
            lost: Clients that didn't for reasons outside of this world, which it forgets.

        Returns:
            {client: why} of those that are absent.
        """
        for client in lost:
            self._parts.pop(client)
        for client, reply in replies.items():
            device, parts = self._device_model.device(client), self._parts[client]
            parts.append(self.training(client, reply.samples))
            parts.append(device.seconds_up(len(reply.blob)))
        arrivals = {
            c: sum(parts) if len(parts) == 3 else math.inf for c, parts in self._parts.items()
        }
        stays = {c: self._moment.stays(c) if self._limited else math.inf for c in arrivals}
        limits = (self._awaited, self._deadline) if self._limited else (len(arrivals), math.inf)
        self._ends, absent = end_of_round(arrivals, stays, *limits)
        return absent

    def follow(self, replies: Mapping[int, TrainReply]) -> None:
        """Book training after the server's step; the round waits for all that answered."""
        for client, parts in self._parts.items():
            if client in replies:
                parts[3] += self.training(client, replies[client].samples)
            else:
                del parts[3:]
        self._ends += max(
            (parts[3] for parts in self._parts.values() if len(parts) > 3), default=0.0
        )

    def end(self, seconds: float, parts: Mapping[int, list[float]]) -> None:
        """End a step of a schedule without rounds.

        Args:
            seconds: The moment.
            parts: {client: seconds of download, training and upload} of the accepted uploads.
        """
        self._moment, self._parts, self._ends = Moment(seconds), {**parts}, 0.0

    def line(self) -> dict[str, Any]:
        """Return the keys of the record about virtual time, after the round."""
        seconds = (self._moment.seconds - self.elapsed) + self._ends
        self.elapsed = self._moment.seconds + self._ends
        clients = {str(c): [*map(rounded, parts)] for c, parts in sorted(self._parts.items())}
        return {"virtual": {"seconds": seconds, "elapsed": self.elapsed, "clients": clients}}

    # --- a client ---------------------------------------------------------------------------------

    def training(self, client: int, samples: int) -> float:
        """Return the seconds of training on a number of samples."""
        flops = PASSES * self._flops[self._plan.info.place_of(client)] * samples
        return self._device_model.device(client).seconds_of(flops)

    def least(self, client: int, downloads: Iterable[float]) -> float:
        """Return the least seconds of a client's part of a round: it may upload nothing.

        Args:
            client: The client.
            downloads: The seconds of its downloads.
        """
        settings, samples = self._plan.settings, self._plan.split(self._trial).train_sizes[client]
        limits = int(samples), settings.batch_size, settings.drop_last
        bounds = [each for epochs in self._epochs for each in bounds_by_epoch(*limits, epochs)]
        training = self.training(client, sum(epoch[-1][1] for epoch in bounds))
        return sum((*downloads, training, self.device(client).seconds_up(0)))

    def _is_hopeless(self, client: int) -> bool:
        """Return True if a client misses the round even without an upload, so it need not train."""
        limit = min(self._deadline, self._moment.stays(client))
        return self.least(client, self._parts[client]) > limit
