"""Groups of clients of one architecture in lock-step: one batched pass for all of them.

Their parameters are stacked, and the step of one client is mapped over the stack with
``torch.func.vmap``: a linear layer becomes a batched matrix product, a convolution a grouped one.
Many small kernels become few larger ones, which is worth it where kernels are small beside the
cost of launching them: small nets on a GPU.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

import protofl as pf

from protofl_plugins.engines.lockstep import Lockstep
from protofl_plugins.engines.stepping import (
    by_eager,
    given_up,
    kind_of,
    or_by_eager,
    outline,
)

ODD = "its loss is given other values or shapes than other clients' losses"


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
        return by_eager([job])[0]

    @pf.hookimpl
    def train_group(self, jobs: list[pf.TrainJob]) -> list[dict[str, float]]:
        """Those of a kind in lock-step."""
        kinds = [_kind(job) for job in jobs]
        alike: dict[tuple[Hashable, str], list[int]] = {}
        for place, job in enumerate(jobs):
            given = outline(job.loss.given(0))
            alike.setdefault((kinds[place], given), []).append(place)
        found: dict[int, dict[str, float]] = {}
        for (kind, _), places in alike.items():
            own = [jobs[place] for place in places]
            if len(own) > 1:
                sums, _ = or_by_eager("vmapped", own, partial(_in_lockstep, own))
            else:
                odd = kinds.count(kind) > 1
                sums = by_eager(own, given_up("vmapped", own[0], ODD) if odd else "")
            found |= dict(zip(places, sums, strict=True))
        return [found[place] for place in range(len(jobs))]


def _kind(job: pf.TrainJob) -> Hashable:
    whole = job.whole()
    return kind_of(job, whole), whole.modes, job.phase, job.loss.kind


def _in_lockstep(jobs: list[pf.TrainJob]) -> list[dict[str, float]]:
    return Lockstep(jobs).train()
