"""The reference engine: one step after the other, as PyTorch runs them.

Parameters are updated in a few operations for all of them. Fully connected layers can be updated
without their gradient being stored (`protofl_plugins.engines.fused`), and 1×1 convolutions of few
images are one product (`protofl_plugins.engines.pointwise`): the same sums, rounded differently in
the last place.
"""

from __future__ import annotations

from collections.abc import Callable

import protofl as pf
from torch import Tensor

from protofl_plugins.engines.fused import FusedLinears
from protofl_plugins.engines.pointwise import pointwise_convolutions
from protofl_plugins.engines.stepping import Sums, forward, total
from protofl_plugins.engines.updates import Update


class Eager:
    """One step after the other, as PyTorch runs them; the reference for all other engines."""

    class Config(pf.Config):
        """Options."""

        fused: bool = pf.Field(
            True,
            description="update fully connected layers by the factors of their gradients, where "
            "the optimiser is plain SGD; false stores each gradient first, as losses need that "
            "take gradients themselves",
        )

    @pf.hookimpl
    def train(self, job: pf.TrainJob, config: Config) -> dict[str, float]:
        """Train on every mini-batch; gradients and updates without per-parameter Python."""
        with FusedLinears(job if config.fused else None) as fused, pointwise_convolutions(job):
            return train_by(job.model.features, job, fused)


def train_by(
    features: Callable[[Tensor], Tensor], job: pf.TrainJob, fused: FusedLinears
) -> dict[str, float]:
    """Train a client on every mini-batch.

    Args:
        features: f(x) of the client's model, however it is computed.
        job: The client.
        fused: Its layers that are updated by factors.

    Returns:
        Each loss term's sum over samples.
    """
    parameters = [p for group, _ in job.groups for p in group]
    update, sums = Update(job, job.groups), Sums()
    for step, batch in enumerate(job.batches()):
        job.lap("data")
        output = forward(features, job.model.head, batch.x, job.precision)
        job.lap("forward")
        terms = job.loss(batch, output, step)
        loss = total(terms)
        job.lap("loss")
        gradients = fused.gradients(loss, parameters)
        job.lap("backward")
        if job.after_batch is not None:
            job.after_batch(batch, output)
        update(gradients)
        fused.update()
        for label, term in terms.items():
            sums.add(label, term, len(batch.x))
        job.lap("update")
    return sums.read()
