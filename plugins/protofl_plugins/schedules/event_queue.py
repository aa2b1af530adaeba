"""The event queue of asynchronous schedules, in virtual time.

The server keeps up to ``concurrency`` clients in training. A client downloads, trains and uploads;
when its time is over, the upload lies in the buffer, and the server asks another client at once. A
client downloads each version at most once: one whose upload waits in the buffer is asked again
after the server's step. The server acts when B uploads are in the buffer, or when no further upload
can come. Events are ordered by virtual time, then by client.

A training depends on nothing but the client and its download, so it may be computed at any moment
between its download and its end. The queue computes it as late as possible, together with all
others that are under way: before that, the least seconds that it can take tell whether it comes
next. A resumed run computes the trainings under way again, from the downloads that its checkpoint
holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import protofl as pf
from protofl import schedules
from protofl_plugins.schedules.options import AsynchronousConfig
from protofl_plugins.schedules.upload_queue import UploadQueue


@dataclass
class ClientTask:
    """A client in training.

    Attributes:
        client: The client.
        version: The version that it downloaded.
        start: When it was asked.
        until: When it leaves; inf for never.
        download: Its download.
        parts: Seconds of its download, training and upload, as far as they are known.
        reply: The reply of its training, once it is computed.
        end: When its upload arrives, or when it leaves; the earliest possible time while the
            training is not computed.
        known: True if ``end`` is known.
    """

    client: int
    version: int
    start: float
    until: float
    download: bytes
    parts: list[float]
    reply: schedules.TrainReply | None = None
    end: float = 0.0
    known: bool = False

    @property
    def left(self) -> bool:
        """True if the client leaves before its upload arrives."""
        return sum(self.parts) > self.until - self.start


class EventQueue(UploadQueue):
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

    # --- a step of the server -------------------------------------------------------------------

    def collect(self, step: int) -> dict[int, pf.Payload]:
        """Return the uploads of a step: B of them, or as many as can come."""
        coordinator = self._coordinator
        self._now = self._before = coordinator.clock.elapsed
        self._ended_before = self._ended
        arrived, accepted, tried = dict[int, ClientTask](), dict[int, ClientTask](), set[int]()
        uploads, draws, busy = dict[int, pf.Payload](), 0, 0.0
        members, bound = coordinator.members(), self._config.max_staleness
        while len(accepted) < self._buffer:
            event, free, comes = None, members[:0], math.inf
            if len(accepted) + len(arrived) < self._buffer:
                # 1. Ask clients that are free and there.
                away = [*self._tasks, *tried, *arrived, *accepted]
                chosen, free, comes = self._fill(np.setdiff1d(members, away), draws)
                draws += bool(chosen)
                tried.update(chosen)
                # 2. Find the next event: an upload arrives, a client leaves, or one comes.
                training_before = len(self._tasks)
                event = self._next_task()
                if lost := training_before - len(self._tasks):  # their places are free
                    self._ended += lost
                    continue
                if event is None and len(free):
                    self._now = coordinator.clock.wait(1, free, self._now).seconds
                    continue
            if event is None:
                # 3. The buffer is full, or nothing more can come: check the uploads together.
                came = {c: (f.version, f.reply) for c, f in arrived.items() if f.reply is not None}
                if not came:
                    break
                uploads |= coordinator.accept(came)
                accepted |= {client: arrived[client] for client in came if client in uploads}
                arrived = {}
            elif comes < event.end:
                self._now = comes
            else:
                self._now = event.end
                del self._tasks[event.client]
                self._ended += 1
                busy += event.end - max(event.start, self._before)
                if event.left or event.reply is None:
                    coordinator.drop(event.client, event.version, "left")
                elif bound is not None and step - event.version > bound:
                    coordinator.drop(event.client, event.version, "stale")
                else:
                    arrived[event.client] = event
        busy += sum(self._now - max(f.start, self._before) for f in self._tasks.values())
        self._end(step, {c: f.version for c, f in accepted.items()}, busy)
        coordinator.clock.end(self._now, {c: f.parts for c, f in accepted.items()})
        return self._weighed(uploads, {c: f.download for c, f in accepted.items()})

    def _fill(self, free: np.ndarray, draw: int) -> tuple[list[int], np.ndarray, float]:
        """Ask clients until as many are in training as may be.

        Args:
            free: The clients that may be asked, ascending.
            draw: How often clients were asked in this step before.

        Returns:
            The clients that were asked; those that could still be asked, but are not there; and the
            time at which one of them may come.
        """
        places, clock = self._concurrency - len(self._tasks), self._coordinator.clock
        if places <= 0 or not len(free):
            return [], free[:0], math.inf
        moment = clock.at(self._now)
        there = free if moment.clients is None else np.intersect1d(free, moment.clients)
        chosen = (
            self._coordinator.choose(min(places, len(there)), there, draw) if len(there) else []
        )
        for client, download in sorted(self._coordinator.downloads(chosen).items()):
            down = clock.device(client).seconds_down(len(download))
            until = math.inf if moment.until is None else float(moment.until[client])
            task = ClientTask(client, self._coordinator.step, self._now, until, download, [down])
            self._estimate(task)
            self._tasks[client] = task
        rest = np.setdiff1d(free, chosen) if len(chosen) < places else free[:0]
        comes = math.inf if moment.until is None or not len(rest) else moment.until[rest].min()
        return chosen, rest, float(comes)

    def _estimate(self, task: ClientTask) -> None:
        """Set the earliest end of a task; one that will have left by then need not train."""
        least = self._coordinator.clock.least(task.client, task.parts)
        task.end = task.start + least
        if least > task.until - task.start:
            task.parts = [*task.parts, math.inf]
            task.end, task.known = task.until, True

    def _next_task(self) -> ClientTask | None:
        """Return the task that ends next, once its training is computed; None if none is left."""
        while self._tasks:
            first = min(self._tasks.values(), key=lambda f: (f.end, f.known, f.client))
            if first.known:
                return first
            self._compute()
        return None

    def _compute(self) -> None:
        """Compute all trainings that are under way; a lost client is in training no more."""
        pending = {c: f for c, f in self._tasks.items() if not f.known}
        replies = self._coordinator.train({c: (f.version, f.download) for c, f in pending.items()})
        clock = self._coordinator.clock
        for client, task in pending.items():
            if client not in replies:
                del self._tasks[client]
                continue
            task.reply = reply = replies[client]
            training = clock.training(client, reply.samples)
            task.parts += [training, clock.device(client).seconds_up(len(reply.blob))]
            task.end, task.known = task.start + sum(task.parts), True
            if task.left:
                task.end = task.until

    # --- checkpoints ----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the tasks; equal downloads are there once."""
        blobs = {id(task.download): task.download for task in self._tasks.values()}
        places = {key: place for place, key in enumerate(blobs)}
        tasks = [
            [f.client, f.version, f.start, None if f.until == math.inf else f.until,
             places[id(f.download)]]
            for f in self._tasks.values()
        ]  # fmt: skip
        downloads = [
            torch.frombuffer(bytearray(b), dtype=torch.uint8)
            if b
            else torch.empty(0, dtype=torch.uint8)
            for b in blobs.values()
        ]
        counts = {"uploads": self._uploads, "ended": self._ended}
        return {**counts, "tasks": tasks, "downloads": downloads}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the tasks of a checkpoint; their trainings are computed again."""
        self._uploads, self._ended = state["uploads"], state["ended"]
        downloads = [tensor.cpu().numpy().tobytes() for tensor in state["downloads"]]
        for client, version, start, until, place in state["tasks"]:
            until = math.inf if until is None else until
            down = self._coordinator.clock.device(client).seconds_down(len(downloads[place]))
            task = ClientTask(client, version, start, until, downloads[place], [down])
            self._estimate(task)
            self._tasks[client] = task
