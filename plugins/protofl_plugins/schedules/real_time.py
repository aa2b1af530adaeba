"""The queue of asynchronous schedules in real time: clients train on other machines.

As in virtual time (`event_queue`), up to ``concurrency`` clients are in training, a client
downloads each version at most once, and the server acts when B uploads are in the buffer, or when
no further upload can come. What differs:

- The server asks clients whose machines are there and have nothing to do. A lost client is asked
  again in a later step, once it is there.
- Which upload comes first depends on machines and networks, so two runs differ. Each training is
  what it would be in a simulation: it depends on the client, its download and the version alone.
- No training is part of a checkpoint. A resumed run asks all clients again.
- A client is evaluated on its machine with each download, before it trains, so an evaluation waits
  for no client.
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
class ClientTask:
    """A client in training, or whose upload is in the buffer.

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
        coordinator: The server and the clients.
        config: The options.
        buffer: B.
    """

    def __init__(
        self, coordinator: schedules.Coordinator, config: AsynchronousConfig, buffer: int
    ) -> None:
        super().__init__(coordinator, config, buffer)
        self._tasks: dict[int, ClientTask] = {}
        self._arrived: dict[int, tuple[ClientTask, schedules.TrainReply]] = {}
        self._alone: float | None = None  # since when no client has been in training
        self._draws = 0
        self._began, self._earlier = time.monotonic(), 0.0

    def _clock(self) -> float:
        """Return the seconds of the trial so far, without pauses between interrupted runs."""
        return self._earlier + time.monotonic() - self._began

    # --- a step of the server -------------------------------------------------------------------

    def collect(self, step: int) -> dict[int, pf.Payload]:
        """Return the uploads of a step: B of them, or as many as can come."""
        coordinator, self._alone, self._draws = self._coordinator, None, 0
        self._before, self._ended_before = self._now, self._ended
        accepted, uploads, asked = dict[int, ClientTask](), dict[int, pf.Payload](), set[int]()
        busy, begins = 0.0, True
        while (lacking := self._buffer - len(accepted)) > 0:
            # 1. Ask clients whose machines are there, and have nothing to do.
            if begins or len(self._arrived) < lacking:
                asked |= self._fill({*asked, *self._tasks, *self._arrived, *accepted})
            begins = False
            if len(self._arrived) >= lacking or not self._waits(len(accepted), asked):
                # 2. The buffer is full, or nothing more can come: check the uploads together.
                if not self._arrived:
                    break
                came = self._taken(lacking)
                uploads |= coordinator.accept({c: (f.version, r) for c, (f, r) in came.items()})
                accepted |= {c: task for c, (task, _) in came.items() if c in uploads}
                continue
            # 3. Wait until an upload arrives, a client is lost, or one may be there again.
            for client, reply in coordinator.arrived(PAUSE).items():
                task = self._tasks.pop(client)
                task.end = self._clock()
                self._ended += 1
                busy += task.end - max(task.start, self._before)
                if reply is not None:  # otherwise the record has the reason
                    self._arrived[client] = task, reply
        self._now = self._clock()
        busy += sum(self._now - max(f.start, self._before) for f in self._tasks.values())
        self._write(step, dict(sorted(accepted.items())), busy)
        return self._weighed(uploads, {c: f.download for c, f in accepted.items()})

    def _taken(self, count: int) -> dict[int, tuple[ClientTask, schedules.TrainReply]]:
        """Take the first uploads out of the buffer, without those that are too stale."""
        coordinator, bound, result = self._coordinator, self._config.max_staleness, {}
        for client in [*self._arrived][:count]:
            task, reply = self._arrived.pop(client)
            if bound is not None and coordinator.step - task.version > bound:
                coordinator.drop(client, task.version, "stale")
            else:
                result[client] = task, reply
        return result

    def _fill(self, away: set[int]) -> set[int]:
        """Ask clients until as many are in training as may be; return them.

        They are asked one after another, since the clients of one machine take turns.
        """
        chosen = set[int]()
        while len(self._tasks) < self._concurrency:
            free = np.setdiff1d(self._coordinator.reachable(), [*away, *chosen])
            if not len(free):
                break
            (client,) = self._coordinator.choose(1, free, self._draws)
            self._draws += 1
            download = self._coordinator.send([client])[client]
            self._tasks[client] = ClientTask(self._coordinator.step, self._clock(), download)
            chosen.add(client)
        return chosen

    def _waits(self, accepted: int, asked: set[int]) -> bool:
        """Return True if further uploads can come, or if there are too few to act.

        Args:
            accepted: Accepted uploads of this step.
            asked: Clients that were asked in this step.
        """
        settings, count = self._coordinator.plan.settings, accepted + len(self._arrived)
        if self._tasks:
            self._alone = None
            return True
        if count >= max(1, settings.min_clients):
            return False
        if not len(np.setdiff1d(self._coordinator.members(), [*asked, *self._arrived])):
            return False  # all others were asked, and are lost
        self._alone = self._clock() if self._alone is None else self._alone
        return self._clock() - self._alone < settings.wait_for_clients

    # --- the record -----------------------------------------------------------------------------

    def _write(self, step: int, accepted: Mapping[int, ClientTask], busy: float) -> None:
        """Write the line of the step."""
        versions = {client: task.version for client, task in accepted.items()}
        self._end(step, versions, busy)
        self._line |= {
            "clock": "real",
            "time": round(self._now, 3),
            "versions": {str(client): version for client, version in versions.items()},
            "seconds": {str(c): round(f.end - f.start, 3) for c, f in accepted.items()},
        }

    def line(self) -> dict[str, Any]:
        """Return the step's moment, version, staleness, idle share, and what its scores are of."""
        evaluated = {
            str(client): version for client, version in self._coordinator.evaluated.items()
        }
        return {**self._line, **({"evaluated": evaluated} if evaluated else {})}

    # --- checkpoints ----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the counts and the time."""
        return {"uploads": self._uploads, "ended": self._ended, "seconds": self._now}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue; no client is in training."""
        self._uploads, self._ended = state["uploads"], state["ended"]
        self._now = self._earlier = state["seconds"]
        self._began = time.monotonic()
