"""Clients as their seeds say: data, model, and what methods set up."""

from __future__ import annotations

from dataclasses import dataclass

from protofl.errors import naming
from protofl.federation.plan.plan import Plan
from protofl.hooks.malicious import checked_labels
from protofl.hooks.models.architecture import SplitModel
from protofl.hooks.views.client import Client
from protofl.hooks.views.records import ClientRecord
from protofl.system.randomness import global_stream


@dataclass
class Builder:
    """Makes the clients of a host.

    Attributes:
        plan: The run.
        trial: The trial of which they are.
    """

    plan: Plan
    trial: int = 0

    def __call__(self, client: int, model: SplitModel | None) -> ClientRecord:
        """A client; ``model`` is one to take, whose weights are another's, or None."""
        plan, trial = self.plan, self.trial
        architecture = plan.info.architecture_of(client)
        layout = architecture.channels_last
        split, public = plan.split(trial), plan.public_samples(trial, layout)
        held = split.held_out(client)
        record = ClientRecord(
            id=client,
            info=plan.info,
            architecture=architecture,
            seed=plan.seed(trial),
            device=plan.device,
            configs=plan.composition.configs,
            train=plan.samples(split.train(client), layout),
            test=plan.samples(split.test(client), layout),
            validation=None if held is None else plan.samples(held, layout),
            public=public,
            model=plan.initial_model(client, trial) if model is None else model,
        )
        view, labels = Client(record, plan.composition.main), record.train.y
        with naming(f"train_labels, client {client}"):
            found = plan.composition.pass_on("train_labels", "labels", labels, client=view)
            record.train.y = checked_labels(found, labels, plan.info.num_classes)
        with global_stream(plan.seed(trial), "setup", client), naming(f"setup_client {client}"):
            plan.composition.lifecycle("setup_client", client=view)
        return record
