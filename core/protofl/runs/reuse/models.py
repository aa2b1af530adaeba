"""What a recorded run was made of, here and now: its plan, models with the weights it kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.federation.plan.plan import Plan
from protofl.hooks.models.architecture import SplitModel
from protofl.hooks.wire.weights import load_weights
from protofl.records.folder.reading import Reading
from protofl.records.folder.result import Weights, read_weights
from protofl.records.recorded.part import Part
from protofl.system.options.parsing import options_in
from protofl.system.options.table import portable


def plan_of(config: Mapping[str, Any], folder: Path) -> Plan:
    """What the options of a run resolve to here, on the CPU: data, split, models before training.

    Args:
        config: What its ``config.json`` holds.
        folder: Its folder, for errors.

    Raises:
        UsageError: Data or plugins are not there any more, or the data are others.
    """
    given = portable(options_in(config)) | {"device": "cpu"}
    plan = Plan.make(given, report=lambda line: None)
    recorded = config.get("data", {}).get("digest")
    if recorded and recorded != plan.data.digest:
        raise UsageError(
            f"the data of {config['dataset']} are not those of {folder}", do="restore the data"
        )
    return plan


def weights_of(
    reading: Reading | Part, which: str, trial: int, *, clients: Sequence[int]
) -> Weights:
    """What is kept of a round; that of a part has to be among its rounds.

    Args:
        reading: The run, or a part of one.
        which: ``last`` or ``best``.
        trial: The trial.
        clients: Whose weights to read.

    Raises:
        UsageError: The round is not kept, or is none of the part.
    """
    if isinstance(reading, Reading):
        return read_weights(reading.path, which, trial, clients=clients)
    kept = read_weights(reading.path, which, reading.trials[trial], clients=clients)
    reading.check_round(kept, which, trial)
    return kept


def model_of(plan: Plan, client: int, trial: int, kept: Weights) -> SplitModel:
    """A client's model in eval mode, with the weights that are kept of it.

    A client that has not trained is what its seed made it.
    """
    model = plan.initial_model(client, trial)
    if client in kept.clients:
        load_weights(model, kept.clients[client], "model")
    return model.eval()
