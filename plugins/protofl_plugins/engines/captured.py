"""CUDA graphs: a training step is recorded once and replayed as one launch.

A net of many small kernels spends its time on launching them. Here the step (forward, loss,
gradients, update) is captured once for each architecture, shape of a batch and composition, on
fixed memory into which each client's weights, batches and tables are copied. So one capture serves
all clients of an architecture, in all rounds. Several clients train at once on CUDA streams.

Without a CUDA device the same steps run on the same fixed memory, one after the other: slower
than ``eager``, and of use for trying things out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import protofl as pf
import torch
from torch import Tensor

from protofl_plugins.engines.recorder import CUDAGraph, Plain, Recorder
from protofl_plugins.engines.stage import Stage
from protofl_plugins.engines.stepping import by_eager, given_up, or_by_eager


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
        self._stages: dict[tuple[str, int], Stage] = {}
        self._failed: dict[str, str] = {}
        self._streams: list[torch.cuda.Stream] = []

    @pf.hookimpl
    def choose_groups(self, architectures: list[str], config: Config) -> list[list[int]]:
        """`streams` clients at a time, of any architectures."""
        places, size = range(len(architectures)), config.streams
        return [[*places[at : at + size]] for at in range(0, len(places), size)]

    @pf.hookimpl
    def train(self, job: pf.TrainJob, config: Config) -> dict[str, float]:
        """One client."""
        return self._train([job], config)[0]

    @pf.hookimpl
    def train_group(self, jobs: list[pf.TrainJob], config: Config) -> list[dict[str, float]]:
        """Each client on a stream of its own."""
        return self._train(jobs, config)

    def _train(self, jobs: list[pf.TrainJob], config: Config) -> list[dict[str, float]]:
        failed = [job.architecture for job in jobs if job.architecture in self._failed]
        if failed:  # it is named in every note, so a group that holds it is split
            if len(jobs) > 1:
                return [self._train([job], config)[0] for job in jobs]
            return by_eager(jobs, given_up("captured", jobs[0], self._failed[failed[0]]))
        sums, why = or_by_eager("captured", jobs, partial(self._on_stages, jobs, config))
        if why and len(jobs) == 1:
            self._failed[jobs[0].architecture] = why
            self._forget(jobs[0].architecture)
        return sums

    def _forget(self, architecture: str) -> None:
        for key in [key for key in self._stages if key[0] == architecture]:
            del self._stages[key]

    def _on_stages(self, jobs: list[pf.TrainJob], config: Config) -> list[dict[str, float]]:
        taken: Counter[str] = Counter()
        lanes = []
        for place, job in enumerate(jobs):
            key = job.architecture, taken[job.architecture]
            taken[job.architecture] += 1
            stage = self._stages.get(key)
            if stage is None or not stage.fits(job):
                self._stages.pop(key, None)  # its memory is free before the new one takes some
                stage = self._stages[key] = Stage(job, _recording(job, config))
            lanes.append(_Lane(stage, job, self._stream(job.device, place, len(jobs))))
        for lane in lanes:
            lane.begin()
        # Clients that share torch's global generators can't take turns: each has its own numbers.
        for lane in (lane for lane in lanes if lane.stage.random):
            with lane.job.stream():
                while lane.advance():
                    pass
        waiting = [lane for lane in lanes if not lane.stage.random]
        while waiting:
            waiting = [lane for lane in waiting if lane.advance()]
        found = [lane.end() for lane in lanes]
        return [dict(zip(labels, sums.tolist(), strict=True)) for labels, sums in found]

    def _stream(self, device: torch.device, place: int, count: int) -> Any:  # noqa: ANN401
        """A CUDA stream for a client of a group; None for the current one."""
        if device.type != "cuda" or count == 1:
            return None
        while len(self._streams) <= place:
            self._streams.append(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        return self._streams[place]


class _Lane:
    """A client on its stage and its stream."""

    def __init__(self, stage: Stage, job: pf.TrainJob, stream: Any) -> None:  # noqa: ANN401
        self.stage, self.job, self._stream = stage, job, stream
        self._batches: Iterator[pf.Batch] = iter(job.batches())
        self._batch: pf.Batch | None = None
        self._step = 0

    def begin(self) -> None:
        """Load the client, and record its first step where that has not been done."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.job.device))
        with self._here():
            self.stage.begin(self.job)
            self._batch = next(self._batches, None)
            if self._batch is not None:
                self.stage.program(self.job, self._batch, self.job.loss.given(0))

    def advance(self) -> bool:
        """One step; whether another one follows."""
        if self._batch is None:
            return False
        with self._here():
            self.stage.step(self.job, self._batch, self._step)
            self._batch, self._step = next(self._batches, None), self._step + 1
        return self._batch is not None

    def end(self) -> tuple[list[str], Tensor]:
        """Unload the client; work on the current stream waits for it."""
        with self._here():
            found = self.stage.end(self.job)
        if self._stream is not None:
            torch.cuda.current_stream(self.job.device).wait_stream(self._stream)
        return found

    def _here(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _recording(job: pf.TrainJob, config: Any) -> Callable[..., Recorder]:  # noqa: ANN401
    """Makes the recorders of a stage, whose captures share one memory pool."""
    usual, device = job.batch_size, job.device
    pools: list[Any] = []

    def record(step: Callable[[], None], size: int) -> Recorder:
        if config.last == "plain" and size != usual:
            return Plain(step)
        if device.type != "cuda":
            return Plain(step, warm_up=1)
        with torch.cuda.device(device):
            graph = CUDAGraph(step, pools[0] if pools else None)
        pools.append(graph.pool)
        return graph

    return record
