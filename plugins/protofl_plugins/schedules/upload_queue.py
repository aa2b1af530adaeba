"""The parts that the asynchronous queues in virtual and in real time share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import protofl as pf
from protofl import schedules
from protofl_plugins.schedules.options import AsynchronousConfig
from protofl_plugins.schedules.stale_uploads import as_it_counts


class UploadQueue:
    """The schedule of a trial: counts, evaluations, and the record of a step.

    Args:
        coordinator: The server and the clients.
        config: The options.
        buffer: B.
    """

    def __init__(
        self, coordinator: schedules.Coordinator, config: AsynchronousConfig, buffer: int
    ) -> None:
        self._coordinator, self._config, self._buffer = coordinator, config, buffer
        plan = coordinator.plan
        self._concurrency = config.concurrency or plan.info.participants
        self._every = config.eval_uploads or plan.settings.eval_every * plan.info.participants
        self._now, self._before = 0.0, 0.0
        self._uploads, self._ended, self._ended_before = 0, 0, 0
        self._line: dict[str, Any] = {}

    def line(self) -> dict[str, Any]:
        """Return the step's moment, version, uploads so far, staleness and idle share."""
        return self._line

    def is_due(self, step: int) -> bool:
        """Return True if uploads or seconds pass a multiple of those between evaluations.

        Uploads that were lost or left out count, too, as they do in rounds.
        """
        if seconds := self._config.eval_seconds:
            return self._now // seconds > self._before // seconds
        return self._ended // self._every > self._ended_before // self._every

    def _end(self, step: int, versions: Mapping[int, int], busy: float) -> None:
        """End a step: its line.

        Args:
            step: The step.
            versions: The version that each client with an accepted upload downloaded.
            busy: Seconds of the step in which clients were in training, over all clients.
        """
        self._uploads += len(versions)
        ages = [step - version for version in versions.values()]
        length = len(self._coordinator.members()) * (self._now - self._before)
        self._line = {
            "time": self._now,
            "version": step + 1,
            "uploads": self._uploads,
            "staleness": {
                "mean": sum(ages) / len(ages) if ages else None,
                "max": max(ages, default=None),
            },
            "idle": max(0.0, 1 - busy / length) if length else None,
        }

    def _weighed(
        self, uploads: Mapping[int, pf.Payload], downloads: Mapping[int, bytes]
    ) -> dict[int, pf.Payload]:
        """Return the uploads of a step by client, each with the weight of its staleness."""
        return {
            client: as_it_counts(
                self._coordinator, self._config, client, uploads[client], downloads[client]
            )
            for client in sorted(uploads)
        }
