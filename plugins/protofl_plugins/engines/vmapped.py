"""Groups of clients of one architecture in lock-step: one batched pass for all of them.

Their parameters are stacked, and the step of one client is mapped over the stack with
``torch.func.vmap``: a linear layer becomes a batched matrix product, a convolution a grouped one.
Many small kernels become few larger ones, which is worth it where kernels are small beside the
cost of launching them: small nets on a GPU.
"""

from __future__ import annotations

from collections.abc import Hashable
from copy import deepcopy

import protofl as pf

from protofl_plugins.engines.eager import Eager
from protofl_plugins.engines.lockstep import Lockstep
from protofl_plugins.engines.stepping import by_eager, kind_of, reason


class Vmapped:
    """Groups of clients of one architecture in lock-step, by torch.func.vmap."""

    class Config(pf.Config):
        """Options."""

        group: int = pf.Field(
            8, ge=1, description="clients trained in lock-step at most; all are in memory at once"
        )

    @pf.hookimpl
    def choose_groups(self, architectures: list[str], config: Config) -> list[list[int]]:
        """Clients of one architecture, `group` at a time."""
        places: dict[str, list[int]] = {}
        for place, name in enumerate(architectures):
            places.setdefault(name, []).append(place)
        size = config.group
        return [own[at : at + size] for own in places.values() for at in range(0, len(own), size)]

    @pf.hookimpl
    def train(self, job: pf.TrainJob) -> dict[str, float]:
        """A single client is trained in the reference way."""
        return Eager().train(job)

    @pf.hookimpl
    def train_group(self, jobs: list[pf.TrainJob]) -> list[dict[str, float]]:
        """Those of a kind in lock-step."""
        alike: dict[Hashable, list[int]] = {}
        for place, job in enumerate(jobs):
            whole = job.whole()
            kind = kind_of(job, whole), whole.modes, job.phase, job.loss.kind
            alike.setdefault(kind, []).append(place)
        found: dict[int, dict[str, float]] = {}
        for places in alike.values():
            own = [jobs[place] for place in places]
            sums = by_eager(own) if len(own) == 1 else _in_lockstep(own)
            found |= dict(zip(places, sums, strict=True))
        return [found[place] for place in range(len(jobs))]


def _in_lockstep(jobs: list[pf.TrainJob]) -> list[dict[str, float]]:
    """Train a group, or have ``eager`` do it and say why."""
    # What after_batch has collected by the time of a failure must not be collected twice.
    collects = jobs[0].after_batch is not None
    kept = [deepcopy((j.record.scratch, j.record.state)) if collects else None for j in jobs]
    try:
        return Lockstep(jobs).train()
    except Exception as error:  # whatever it is: an error that is the method's own comes again
        for job, before in zip(jobs, kept, strict=True):
            if before is not None:
                job.record.scratch, job.record.state = before
        why = f"vmapped gave {jobs[0].architecture} to eager: {reason(error)}"
        return by_eager(jobs, why)
