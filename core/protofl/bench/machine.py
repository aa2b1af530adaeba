"""The machine on which figures were measured."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from protofl.machine.cores import usable_cores
from protofl.machine.facts import machine_facts
from protofl.version import versions


def machine() -> dict[str, Any]:
    """What a figure depends on beside the code."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        **versions(),
        "system": platform.platform(),
        **machine_facts(),
        "cores": len(usable_cores()),
        "gpu": gpu,
        "load_before": load,
    }
