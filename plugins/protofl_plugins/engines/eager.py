"""The reference engine: one step after the other, as PyTorch runs them.

Parameters are updated in a few operations for all of them. On a CPU, linear layers and convolutions
on small maps are matrix products, which plain SGD updates in the backward pass
(`protofl_plugins.engines.layers`): the same sums, rounded differently in the last place.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.engines.layers import FastLayers
from protofl_plugins.engines.stepping import Sums, forward, total
from protofl_plugins.engines.updates import update_of

All = list[dict[str, float]]
"""The sums of each client's loss terms."""


class Eager:
    """One step after the other, as PyTorch runs them; the reference for all other engines."""

    @pf.hookimpl
    def train(self, job: pf.backends.TrainJob) -> dict[str, float]:
        """Train on every mini-batch; gradients and updates without per-parameter Python."""
        layers = FastLayers(job)
        with layers.taken():
            return train_by(job.model.features, job, layers)


def train_by(
    features: Callable[[Tensor], Tensor], job: pf.backends.TrainJob, layers: FastLayers
) -> dict[str, float]:
    """Train a client on every mini-batch and return each loss term's sum over samples.

    Args:
        features: f(x) of the client's model, however it is computed.
        job: The client.
        layers: Its layers that are computed as products.
    """
    parameters = [p for group, _ in job.groups for p in group]
    update, sums = update_of(job), Sums()
    for step, batch in enumerate(job.batches()):
        job.lap("data")
        output = forward(features, job.model.head, batch.x, job.precision)
        job.lap("forward")
        terms = job.loss(batch, output, step)
        loss = total(terms)
        job.lap("loss")
        if job.after_batch is not None:  # before the backward pass, which updates weights
            job.after_batch(batch, output)
        gradients = layers.gradients(loss, parameters)
        job.lap("backward")
        layers.update(update(gradients, norms=layers.norms()))
        sums.add(terms, len(batch.x))
        job.lap("update")
    return sums.read()


class Fallback:
    """Has clients trained in an engine's way, and by ``eager`` where that fails.

    What has failed once is not tried again: an architecture in a phase, or more clients at once
    than fit into the memory.

    Args:
        engine: The engine's name.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._failed: dict[tuple[str, str], str] = {}
        self._most = 0

    def train(
        self, jobs: list[pf.backends.TrainJob], train: Callable[[list[pf.backends.TrainJob]], All]
    ) -> All:
        """Train clients by ``train``, which must not change their weights if it fails."""
        if self._most and len(jobs) > self._most:
            parts = [jobs[at : at + self._most] for at in range(0, len(jobs), self._most)]
            return [sums for part in parts for sums in self.train(part, train)]
        keys = {(job.architecture, job.phase.name) for job in jobs}
        if not keys & self._failed.keys():
            # What after_batch has collected by the time of a failure must not be collected twice.
            snapshots = [job.snapshot() for job in jobs]
            try:
                return train(jobs)
            except Exception as error:  # one that is the method's own comes again
                if isinstance(error, pf.backends.NotReplayable) and jobs[0].checks:
                    raise
                for restore in snapshots:
                    restore()
                if isinstance(error, torch.OutOfMemoryError) and len(jobs) > 1:
                    self._most = (len(jobs) + 1) // 2
                elif len(keys) == 1:
                    self._failed |= dict.fromkeys(keys, _reason(error))
        if 0 < self._most < len(jobs):
            gc.collect()  # the error's frames are gone, which held the attempt's memory
            jobs[0].notes.append(
                f"engine {self._engine}: {self._most} clients at once, for lack of memory"
            )
            return self.train(jobs, train)
        if len(keys) > 1:  # one of them is why
            return [sums for job in jobs for sums in self.train([job], train)]
        return self.by_eager(jobs, self._failed[keys.pop()])

    def by_torch(self, jobs: list[pf.backends.TrainJob]) -> All:
        """Train clients whose optimiser is torch's own, which an engine's steps can't be given."""
        return self.by_eager(jobs, f"optimizer {jobs[0].optimizer} is torch's own")

    def by_eager(self, jobs: list[pf.backends.TrainJob], why: str = "") -> All:
        """Train clients with the reference engine, with a note about the reason."""
        result = []
        for job in jobs:
            with job.stream():
                result.append(Eager().train(job))
            if why:
                note = f"engine {self._engine}: {job.architecture} is trained by eager: {why}"
                job.notes.append(note)
        return result


def _reason(error: BaseException) -> str:
    """The first line of an error, as a note gives it; two where the first only announces."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return text if len(text) <= 160 else text[:157] + "…"
