"""Whether two loops reached the same: weights, knowledge and accuracies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from protofl.bench.loops import Loop
from protofl.files.tensors import apart

TOLERANCE = 1e-9
"""Largest relative difference after some rounds in float64."""

LEAST = 1e-3
"""A tensor whose entries are all smaller is measured by this: a bias between two BatchNorms has the
gradient 0, and holds nothing but rounding."""


def write_state(loop: Loop, path: Path) -> dict[str, Any]:
    """Write all clients' weights and the server's knowledge; accuracies by client."""
    tensors = {f"knowledge/{k}": v for k, v in loop.knowledge().items()}
    for client, named in loop.weights():
        tensors |= {f"client/{client}/{k}": v for k, v in named.items()}
    safetensors.torch.save_file(apart(tensors), path)
    return {"accuracies": {str(c): a for c, a in sorted(loop.accuracies().items())}}


def compare(
    ours: Path,
    theirs: Path,
    our_accuracies: Mapping[str, float],
    their_accuracies: Mapping[str, float],
) -> dict[str, Any]:
    """How far two states are apart.

    What the other loop says it knows is compared; protofl may know more (the factors of FedKD's
    last broadcast).

    Returns:
        ``largest``: over all tensors, the largest difference of two entries relative to the
        tensor's largest entry, or to `LEAST` (infinite where a tensor is missing, has another
        shape, or holds NaN on one side alone); ``where``: that tensor's name; ``tensors``: how many
        were compared;
        ``accuracies_apart``: clients whose accuracies differ, and ``accuracy``: the largest such
        difference.
    """
    a, b = safetensors.torch.load_file(ours), safetensors.torch.load_file(theirs)
    names = {n for n in a if n.startswith("client/")} | b.keys()
    found = {name: difference(a.get(name), b.get(name)) for name in sorted(names)}
    where = max(found, key=lambda name: found[name], default="")
    clients = our_accuracies.keys() | their_accuracies.keys()
    apart_by = {
        c: abs(our_accuracies.get(c, -1.0) - their_accuracies.get(c, -1.0)) for c in clients
    }
    return {
        "largest": found.get(where, 0.0),
        "where": where,
        "tensors": len(found),
        "accuracies_apart": sum(value > 0 for value in apart_by.values()),
        "accuracy": max(apart_by.values(), default=0.0),
    }


def difference(a: Tensor | None, b: Tensor | None) -> float:
    """The largest |a − b| over the largest |b|, `LEAST` at least; infinity where there is none."""
    if a is None or b is None or a.shape != b.shape:
        return float("inf")
    if a.numel() == 0 or torch.equal(a, b):
        return 0.0
    a, b = a.double(), b.double()
    apart_by = float((a - b).abs().max())
    scale = max(float(b.abs().max()), LEAST)
    if not apart_by < float("inf"):  # NaN too
        return float("inf")
    return apart_by / scale
