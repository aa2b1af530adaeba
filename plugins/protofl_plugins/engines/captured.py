"""CUDA graphs: a training step is recorded once and replayed as one launch.

A net of many small kernels spends its time on launching them. Here the step (forward, loss,
gradients, update) is captured once for each architecture, shape of a batch and composition, on
fixed memory into which each client's weights, batches and tables are copied. So one capture serves
all clients of an architecture, in all rounds. Several clients train at once on CUDA streams.

Without a CUDA device the same steps run on the same fixed memory, one after the other: slower
than ``eager``, and of use for trying things out.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Literal

import protofl as pf

from protofl_plugins.engines.fallback import Fallback
from protofl_plugins.engines.stage import Stage
from protofl_plugins.engines.stepping import kind_of


class Captured:
    """Training steps captured in CUDA graphs, several clients at once on streams."""

    class Config(pf.Config):
        """Options."""

        streams: int = pf.Field(
            2,
            ge=1,
            description="clients trained at once, each on a stream; all are in memory, and each "
            "of one architecture has fixed memory of its own",
        )
        last: Literal["capture", "plain"] = pf.Field(
            "capture",
            description="an epoch's smaller last batch: a capture for each size that occurs, or "
            "its kernels launched one by one",
        )

    def __init__(self) -> None:
        self._stages: dict[tuple[Hashable, int], Stage] = {}
        self._fallback = Fallback("captured")

    @pf.hookimpl
    def choose_groups(self, architectures: list[str], config: Config) -> list[list[int]]:
        """`streams` clients at a time, of any architectures."""
        places, size = range(len(architectures)), config.streams
        return [[*places[at : at + size]] for at in range(0, len(places), size)]

    @pf.hookimpl
    def train(self, job: pf.TrainJob, config: Config) -> dict[str, float]:
        """One client."""
        return self.train_group([job], config)[0]

    @pf.hookimpl
    def train_group(self, jobs: list[pf.TrainJob], config: Config) -> list[dict[str, float]]:
        """Each client on a stream of its own."""
        return self._fallback.train(jobs, partial(self._on_stages, config))

    def _on_stages(self, config: Config, jobs: list[pf.TrainJob]) -> list[dict[str, float]]:
        kinds = [kind_of(job) for job in jobs]
        keys = [(kind, kinds[:place].count(kind)) for place, kind in enumerate(kinds)]
        pairs = list(zip(jobs, keys, strict=True))
        try:
            for job, key in pairs:
                if key not in self._stages:
                    self._stages[key] = Stage(job, plain_last=config.last == "plain")
                with job.stream():
                    self._stages[key].train(job)
            return [self._stages[key].end(job) for job, key in pairs]
        except Exception:
            self._stages.clear()  # their memory is free before eager takes some
            raise
