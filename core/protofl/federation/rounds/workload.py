"""The mini-batches that clients of a trial have to do, as far as they are known beforehand."""

from __future__ import annotations

from functools import cache

from protofl.data.batches import batch_bounds
from protofl.federation.plan.plan import Plan


class Workload:
    """Counts the mini-batches of clients' jobs from the plan.

    A phase that trains on rows that the server chooses is taken to train on all public samples, and
    a phase that needs something of the download to take place.

    Args:
        plan: The run.
        trial: The trial.
    """

    def __init__(self, plan: Plan, trial: int) -> None:
        self._plan, self._split = plan, plan.split(trial)
        found = plan.composition.phases(plan.info)
        self._phases = [phase for phase in found if plan.composition.terms_of(phase)]
        public = self._split.public if plan.public_data is None else plan.public_data.y
        self._public = 0 if public is None else len(public)

        @cache
        def batches(samples: int) -> int:
            bounds = batch_bounds(samples, plan.settings.batch_size, plan.settings.drop_last)
            return len(bounds)

        self._batches = batches

    def training(self, client: int, *when: str) -> int:
        """Mini-batches on which a client trains in a round, or in one of the times of it.

        Args:
            client: The client.
            *when: ``before_upload``, ``after_server``, or both if none is given.
        """
        own, epochs = int(self._split.train_sizes[client]), self._plan.settings.local_epochs
        return sum(
            (phase.epochs or epochs)
            * self._batches(own if phase.data == "private" else self._public)
            for phase in self._phases
            if not when or phase.when in when
        )

    def scoring(self, client: int, epochs: int = 0) -> int:
        """Mini-batches of an evaluation of a client.

        Args:
            client: The client.
            epochs: Epochs for which it is fine-tuned before.
        """
        size = self._plan.info.architecture_of(client).eval_batch
        own, held = int(self._split.train_sizes[client]), self._split.held_out(client)
        scored = [len(self._split.test(client)), 0 if held is None else len(held)]
        if "train-accuracy" in self._plan.settings.measure:
            scored.append(own)
        tuned = [p for p in self._phases if (p.when, p.data) == ("before_upload", "private")]
        steps = epochs * len(tuned) * self._batches(own)
        return steps + sum(-(-count // size) for count in scored)
