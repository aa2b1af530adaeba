"""Comparison of clients with each other, if bad uploads or lost clients are left out.

One client with huge weights would make a mean from which all the others diverge, and then they
would be left out in its place. The median of the clients' norms does not follow a few of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from protofl.data.tasks import CLASSIFICATION, Task
from protofl.errors import RunFailure
from protofl.federation.clients.evaluation import counted, value_of
from protofl.federation.jobs.jobs import TrainReply
from protofl.functional.precision import in_float64
from protofl.hooks.plugin.members import Choice
from protofl.hooks.transport.rules import Fault, diverged
from protofl.hooks.wire.payload import Payload

LEAST = 3
"""Smallest number of clients to compare: with two, an outlier looks like the other."""

WEIGHTS = 10.0
"""Largest ratio of the norm of a client's weights to the median over clients."""

OTHERS = 100.0
"""The same of other tensors, such as prototypes, whose norms differ more between clients."""

FAR_LOSS = 1000.0
"""Largest ratio of a client's mean loss to the median over clients."""

FAR_COUNTS = 100.0
"""Largest ratio of a client's counts per sample to the median over clients, or to 1."""


def outliers(values: Mapping[int, float], ratio: float) -> dict[int, tuple[float, float]]:
    """Return the clients whose value is far above the median of all.

    Args:
        values: {client: value}, not negative.
        ratio: Largest ratio to the median.

    Returns:
        {client: its value, and the median}; empty with fewer than `LEAST` clients.
    """
    if len(values) < LEAST:
        return {}
    usual = median(values.values())
    return {c: (value, usual) for c, value in values.items() if value > ratio * usual}


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


def odd_losses(replies: Mapping[int, TrainReply]) -> dict[int, str]:
    """Return the losses that would decide the mean over clients: {client: in words}."""
    result = {
        client: f"a {terms[0]} loss of NaN or infinity"
        for client, reply in replies.items()
        if (terms := diverged(reply.sums))
    }
    each: dict[str, dict[int, float]] = {}
    for client, reply in replies.items():
        for term, total in reply.sums.items() if client not in result else ():
            each.setdefault(term, {})[client] = abs(total) / max(reply.samples, 1)
    for term, means in each.items():
        for client, (mean, usual) in outliers(means, FAR_LOSS).items():
            if mean > FAR_LOSS:  # a median may be tiny
                description = f"a {term} loss of {mean:.3g} per sample, others of about {usual:.3g}"
                result.setdefault(client, description)
    return result


def odd_counts(
    metrics: Sequence[Choice],
    clients: Mapping[int, Payload],
    samples: Mapping[int, int],
    num_classes: int,
    task: Task = CLASSIFICATION,
) -> dict[int, Fault]:
    """Return the faults of counts that have another shape, no value, or decide a sum over clients.

    Counts of NaN or infinity, of a model that diverged, are removed in place: the figure is without
    the client.

    Args:
        metrics: The run's metrics.
        clients: {client: what it counts}.
        samples: {client: its test samples}.
        num_classes: C.
        task: The task.
    """
    if not clients:
        return {}
    metrics_by_name = {metric.name: metric for metric in metrics}
    # The shape of counts depends on C and on options alone, so one sample shows it.
    usual_counts = counted(metrics, torch.zeros(1, num_classes), task.no_labels(1, num_classes))
    faults: dict[int, Fault] = {}
    for name in dict.fromkeys(name for counts in clients.values() for name in counts):
        counts = {c: payload[name] for c, payload in clients.items() if name in payload}
        shape = usual_counts[name].shape
        scales = {}
        for client, tensor in counts.items():
            if tensor.shape != shape:
                detail = f"of shape {list(tensor.shape)}, expected {list(shape)}"
                faults.setdefault(client, Fault(name, "shape", detail))
                continue
            if not tensor.isfinite().all():
                del clients[client][name]
                continue
            try:
                value_of(metrics_by_name[name], tensor)
            except RunFailure as error:
                faults.setdefault(client, Fault(name, "figures", f"without a value: {error.what}"))
                continue
            largest = float(tensor.abs().max()) if tensor.numel() else 0.0
            scales[client] = largest / max(samples[client], 1)
        for client, (scale, usual) in outliers(scales, FAR_COUNTS).items():
            if scale > FAR_COUNTS:  # a median may be tiny
                detail = f"with {scale:.3g} per sample, those of others have about {usual:.3g}"
                faults.setdefault(client, Fault(name, "norm", detail))
    return faults
