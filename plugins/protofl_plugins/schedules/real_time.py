"""The queue of asynchronous schedules in real time: clients train on machines of their own.

As in virtual time (`event_queue`), up to ``concurrency`` clients are in flight, a client downloads
each version at most once, and the server acts when B uploads are in the buffer, or when no further
upload can come. What differs:

- The server asks clients whose machines are there and have nothing to do. A lost client is asked
  again in a later step, once it is there.
- Which upload comes first depends on machines and networks, so two runs differ. Each training is
  what it would be in a simulation: it depends on the client, its download and the version alone.
- Nothing in flight is part of a checkpoint. A resumed run asks all clients again.
- A client is evaluated on its machine with each download, before it trains, so an evaluation waits
  for nobody.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import protofl as pf
from protofl import schedules
from protofl_plugins.schedules.options import AsynchronousConfig
from protofl_plugins.schedules.upload_queue import UploadQueue

PAUSE = 1.0
"""Seconds between two looks at which clients are there."""


@dataclass
class Flight:
    """A client in flight, or whose upload is in the buffer.

    Attributes:
        version: The version that it downloaded.
        start: When it was asked.
        download: Its download.
        end: When its upload arrived.
    """

    version: int
    start: float
    download: bytes
    end: float = 0.0


class RealTimeQueue(UploadQueue):
    """The schedule of a trial: see the module.

    Args:
        desk: The server and the clients.
        config: The options.
        buffer: B.
    """

    def __init__(self, desk: schedules.Desk, config: AsynchronousConfig, buffer: int) -> None:
        super().__init__(desk, config, buffer)
        self._flights: dict[int, Flight] = {}
        self._landed: dict[int, tuple[Flight, schedules.TrainReply]] = {}
        self._alone: float | None = None  # since when nobody has been in flight
        self._draws = 0
        self._began, self._earlier = time.monotonic(), 0.0

    def _clock(self) -> float:
        """Return the seconds of the trial so far, without pauses between interrupted runs."""
        return self._earlier + time.monotonic() - self._began

    # --- a step of the server -------------------------------------------------------------------

    def collect(self, step: int) -> dict[int, pf.Payload]:
        """Return the uploads of a step: B of them, or as many as can come."""
        desk, self._alone, self._draws = self._desk, None, 0
        self._before, self._ended_before = self._now, self._ended
        accepted, uploads, asked = dict[int, Flight](), dict[int, pf.Payload](), set[int]()
        busy, begins = 0.0, True
        while (lacking := self._buffer - len(accepted)) > 0:
            # 1. Ask clients whose machines are there, and have nothing to do.
            if begins or len(self._landed) < lacking:
                asked |= self._fill({*asked, *self._flights, *self._landed, *accepted})
            begins = False
            if len(self._landed) >= lacking or not self._waits(len(accepted), asked):
                # 2. The buffer is full, or nothing more can come: check the uploads together.
                if not self._landed:
                    break
                came = self._taken(lacking)
                uploads |= desk.accept({c: (f.version, r) for c, (f, r) in came.items()})
                accepted |= {c: flight for c, (flight, _) in came.items() if c in uploads}
                continue
            # 3. Wait until an upload arrives, a client is lost, or one may be there again.
            for client, reply in desk.arrived(PAUSE).items():
                flight = self._flights.pop(client)
                flight.end = self._clock()
                self._ended += 1
                busy += flight.end - max(flight.start, self._before)
                if reply is not None:  # otherwise the record has the reason
                    self._landed[client] = flight, reply
        self._now = self._clock()
        busy += sum(self._now - max(f.start, self._before) for f in self._flights.values())
        self._write(step, dict(sorted(accepted.items())), busy)
        return self._weighed(uploads, {c: f.download for c, f in accepted.items()})

    def _taken(self, count: int) -> dict[int, tuple[Flight, schedules.TrainReply]]:
        """Take the first uploads out of the buffer, without those that are too stale."""
        desk, bound, result = self._desk, self._config.max_staleness, {}
        for client in [*self._landed][:count]:
            flight, reply = self._landed.pop(client)
            if bound is not None and desk.step - flight.version > bound:
                desk.drop(client, flight.version, "stale")
            else:
                result[client] = flight, reply
        return result

    def _fill(self, away: set[int]) -> set[int]:
        """Ask clients until as many are in flight as may be; return them.

        They are asked one after another, since the clients of one machine take turns.
        """
        chosen = set[int]()
        while len(self._flights) < self._concurrency:
            free = np.setdiff1d(self._desk.reachable(), [*away, *chosen])
            if not len(free):
                break
            (client,) = self._desk.choose(1, free, self._draws)
            self._draws += 1
            download = self._desk.send([client])[client]
            self._flights[client] = Flight(self._desk.step, self._clock(), download)
            chosen.add(client)
        return chosen

    def _waits(self, accepted: int, asked: set[int]) -> bool:
        """Return True if further uploads can come, or if there are too few to act.

        Args:
            accepted: Accepted uploads of this step.
            asked: Clients that were asked in this step.
        """
        settings, count = self._desk.plan.settings, accepted + len(self._landed)
        if self._flights:
            self._alone = None
            return True
        if count >= max(1, settings.min_clients):
            return False
        if not len(np.setdiff1d(self._desk.members(), [*asked, *self._landed])):
            return False  # all others were asked, and are lost
        self._alone = self._clock() if self._alone is None else self._alone
        return self._clock() - self._alone < settings.wait_for_clients

    # --- the record -----------------------------------------------------------------------------

    def _write(self, step: int, accepted: Mapping[int, Flight], busy: float) -> None:
        """Write the line of the step."""
        versions = {client: flight.version for client, flight in accepted.items()}
        self._end(step, versions, busy)
        self._line |= {
            "clock": "real",
            "time": round(self._now, 3),
            "versions": {str(client): version for client, version in versions.items()},
            "seconds": {str(c): round(f.end - f.start, 3) for c, f in accepted.items()},
        }

    def line(self) -> dict[str, Any]:
        """Return the step's moment, version, staleness, idle share, and what its scores are of."""
        evaluated = {str(client): version for client, version in self._desk.evaluated.items()}
        return {**self._line, **({"evaluated": evaluated} if evaluated else {})}

    # --- checkpoints ----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the counts and the time."""
        return {"uploads": self._uploads, "ended": self._ended, "seconds": self._now}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue; nobody is in flight."""
        self._uploads, self._ended = state["uploads"], state["ended"]
        self._now = self._earlier = state["seconds"]
        self._began = time.monotonic()
