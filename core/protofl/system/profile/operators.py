"""Operators: what PyTorch ran in a short while, by its own profiler."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile

TOP = 40
"""Operators that a sample's sums name; the others are one sum."""


class Operators:
    """Records operators from now on.

    The profiler under `torch.profiler.profile` is used: starting that one imports torch's compiler,
    which takes a second.
    """

    def __init__(self, device: torch.device) -> None:
        # torch's profiler writes lines of its own to standard error at every level below.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._profiler: Any = None
        if not torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            # Otherwise the program around us is profiling, and there is only one profiler.
            cuda = "cuda" if device.type == "cuda" else None
            self._profiler = profile(use_kineto=True, use_device=cuda)
            self._profiler.__enter__()

    def stop(self) -> dict[str, Any]:
        """Stop recording.

        Returns:
            ``cpu`` and ``gpu``: {operator: [seconds without those of operators inside, calls]};
            ``trace``: the events of torch's own trace in Chrome's format.
        """
        if self._profiler is None:
            return {"cpu": {}, "gpu": {}, "trace": []}
        self._profiler.__exit__(None, None, None)
        sums: dict[str, dict[str, list[float]]] = {"cpu": {}, "gpu": {}}
        for op in self._profiler.key_averages():
            side = "cpu" if op.device_type.name == "CPU" else "gpu"
            own = op.self_cpu_time_total if side == "cpu" else op.self_device_time_total
            sums[side][op.key] = [max(0.0, own) / 1e6, op.count]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            self._profiler.export_chrome_trace(str(path))
            trace = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
        self._profiler = None
        return {side: _top(found) for side, found in sums.items()} | {"trace": trace}


def _top(sums: dict[str, list[float]]) -> dict[str, list[float]]:
    ranked = sorted(sums.items(), key=lambda item: -item[1][0])
    kept, rest = dict(ranked[:TOP]), [values for _, values in ranked[TOP:]]
    if rest:
        kept["others"] = [sum(column) for column in zip(*rest, strict=True)]
    return kept
