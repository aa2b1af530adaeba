"""The facts about this machine on which the last bits of results depend."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_LIMITS = (
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "OPENBLAS_CORETYPE",
)
"""Environment variables that keep a library from using all instructions of the processor."""


def machine_facts() -> dict[str, str]:
    """Return the facts about this machine that the record of a run holds: {name: value}.

    - ``processor``: its type.
    - ``instruction_set``: the largest one that torch's own kernels use here (``AVX512``).
    - ``instruction_limits``: the environment variables that are set to limit the instructions of
      oneDNN, MKL or OpenBLAS; ``none`` if no one is.

    Two machines with equal facts and the same torch compute the same to the last bit.
    """
    import torch  # takes a second, and some callers have no other use for it

    limits = [f"{name}={os.environ[name]}" for name in _LIMITS if os.environ.get(name)]
    return {
        "processor": processor(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "instruction_limits": " ".join(limits) or "none",
    }


@cache
def processor() -> str:
    """Return the name of the processor, with its family and model number where Linux gives them.

    Virtual machines often hide the name, so the numbers are needed to tell two types apart.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    found = {name.strip(): value.strip() for name, _, value in (li.partition(":") for li in lines)}
    name = found.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{key} {found[of]}" for key, of in _NUMBERS.items() if found.get(of)]
    return f"{name} ({', '.join(numbers)})" if numbers else name


_NUMBERS = {"family": "cpu family", "model": "model"}


def recorded_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run's results may depend on beside its options, {name in words: value}.

    Args:
        config: The content of its ``config.json``.

    Returns:
        Versions and facts about the machine. protofl 0.1 has recorded no other fact than the
        instruction set, as ``cpu`` among the versions.
    """
    versions = dict(config.get("versions", {}))
    old = {"instruction_set": versions.pop("cpu")} if "cpu" in versions else {}
    found = {**versions, **old, **config.get("machine", {})}
    return {name.replace("_", " "): value for name, value in found.items()}
