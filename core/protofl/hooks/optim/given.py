"""What a run's options say of updates: the options of its optimiser and of its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protofl.hooks.optim.optimisers import optimizer_options
from protofl.hooks.optim.schedules import Schedule, schedule_of
from protofl.system.options.table import UPDATES


def training_options(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The further options of the optimiser and of the schedule, with their defaults.

    Args:
        settings: The options of a run.

    Raises:
        UsageError: One is unknown or out of its range, or there is no such optimiser.
    """
    optimizer, schedule = (settings["options"].get(owner, {}) for owner in UPDATES)
    found = schedule_of(settings["lr_schedule"], schedule)
    rules = settings["momentum"], settings["weight_decay"]
    return {
        "optimizer": optimizer_options(settings["optimizer"], optimizer, *rules),
        "schedule": {} if found == Schedule() else found.model_dump(mode="json", by_alias=True),
    }
