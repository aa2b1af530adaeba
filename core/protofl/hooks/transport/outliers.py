"""Comparison of clients' uploads with each other, before a mean is taken.

One client with huge weights would make a mean from which all the others diverge, and then they
would be left out in its place. The median of the clients' norms does not follow a few of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from statistics import median

import torch
from torch import Tensor

from protofl.functional.precision import in_float64
from protofl.hooks.transport.rules import Fault

LEAST = 3
"""Smallest number of clients to compare: with two, an outlier cannot be told from the other."""

WEIGHTS = 10.0
"""Largest ratio of the norm of a client's weights to the median over clients."""

OTHERS = 100.0
"""The same of other tensors, such as prototypes, whose norms differ more between clients."""


def outliers(
    values: Mapping[int, float], ratio: float, among: Collection[int] | None = None
) -> dict[int, tuple[float, float]]:
    """Return the clients whose value is far above the median of all.

    Args:
        values: {client: value}, not negative.
        ratio: Largest ratio to the median.
        among: The clients that are judged; all if None.

    Returns:
        {client: its value, and the median}; empty with fewer than `LEAST` clients.
    """
    if len(values) < LEAST:
        return {}
    usual = median(values.values())
    judged = values if among is None else among
    return {c: (values[c], usual) for c in judged if values[c] > ratio * usual}


def unusual_norms(uploads: Mapping[int, Mapping[str, Tensor]]) -> dict[int, Fault]:
    """Return the faults of uploads with far larger numbers than those of the other clients.

    The norm of a tensor is the root of its mean square, so sizes do not matter. A tensor of a part
    ``PART/NAME`` is compared with the same tensor of other clients, of any shape, and with the
    whole part, whichever is larger: a bias that starts at zero has no norm of its own. Changes of
    weights (``PART_update/NAME``), whole parts and other tensors may differ by `OTHERS`.

    Args:
        uploads: {client: upload}, checked one by one.
    """
    squares = _squares(uploads)
    parts = {client: _by_part(result) for client, result in squares.items()}
    usual_parts = _medians(parts.values())
    usual = _medians({k: _norm(*v) for k, v in result.items()} for result in squares.values())
    result: dict[int, Fault] = {}
    for client, tensors in squares.items():
        pairs = [
            (prefix, norm, usual_parts[prefix], OTHERS)
            for prefix, norm in parts[client].items()
            if prefix in usual_parts
        ]
        for name, (total, count) in tensors.items():
            prefix = _part(name)
            if name in usual and prefix.endswith("/"):
                ratio = OTHERS if prefix.endswith("_update/") else WEIGHTS
                base = max(usual[name], usual_parts.get(prefix, 0.0))
                pairs.append((name, _norm(total, count), base, ratio))
        for name, norm, base, ratio in pairs:
            if base and norm > ratio * base:
                shown = f"{name}*" if name.endswith("/") else name
                problem = f"of norm {norm:.3g} per number, {norm / base:.3g} times the usual one"
                result.setdefault(client, Fault(shown, "norm", problem))
    return result


def _squares(
    uploads: Mapping[int, Mapping[str, Tensor]],
) -> dict[int, dict[str, tuple[float, int]]]:
    """Return the sum of squares and the size of each floating-point tensor, {client: {name: …}}."""
    tensors = [
        (client, name, tensor)
        for client, upload in uploads.items()
        for name, tensor in upload.items()
        if tensor.is_floating_point() and tensor.numel()
    ]
    sums = [torch.linalg.vector_norm(in_float64(tensor)).square() for *_, tensor in tensors]
    values = torch.stack(sums).tolist() if sums else []  # one wait for a device
    result: dict[int, dict[str, tuple[float, int]]] = {client: {} for client in uploads}
    for (client, name, tensor), total in zip(tensors, values, strict=True):
        result[client][name] = total, tensor.numel()
    return result


def _by_part(squares: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    """Return the norm of each part, without buffers, and of each tensor outside of a part."""
    sums: dict[str, tuple[float, int]] = {}
    for name, (total, count) in squares.items():
        if "/buffer/" not in name:
            before, size = sums.get(_part(name), (0.0, 0))
            sums[_part(name)] = before + total, size + count
    return {prefix: _norm(*pair) for prefix, pair in sums.items()}


def _medians(each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each name that `LEAST` or more clients have."""
    values: dict[str, list[float]] = {}
    for norms in each:
        for name, value in norms.items():
            values.setdefault(name, []).append(value)
    return {
        name: median(client_norms)
        for name, client_norms in values.items()
        if len(client_norms) >= LEAST
    }


def _part(name: str) -> str:
    prefix, slash, _ = name.partition("/")
    return prefix + slash


def _norm(total: float, count: int) -> float:
    return math.sqrt(total / count)
