"""Weights of uploads whose server has acted since their download.

Only keys that are both uploaded and downloaded change: u is the client's tensor, g what the client
would download now, d what it downloaded, s(τ) the weight of its staleness and α the mixing.

    knowledge   u ← g + α·s(τ)·(u − g)     `asynchronous = True`        (FedAsync, Algorithm 1)
    versions    u ← g + α·s(τ)·(u − d)     `asynchronous = "versions"`  (FedBuff, Algorithm 1)

Class-indexed tensors are mixed row by row, for the classes that the server has. The method's own
``server_aggregate`` then averages as in rounds. With α·s = 1 an upload of knowledge stays what it
is, and so does an upload of the current version.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

import protofl as pf
from protofl import schedules
from protofl_plugins.schedules.options import AsynchronousConfig, staleness_weight
from protofl_plugins.schedules.refusals import runs_on_versions


def as_it_counts(
    coordinator: schedules.Coordinator,
    config: AsynchronousConfig,
    client: int,
    upload: pf.Payload,
    download: bytes,
) -> pf.Payload:
    """Return an accepted upload with the weight of its staleness.

    Args:
        coordinator: The server.
        config: The options.
        client: The client.
        upload: Its upload.
        download: The download with which it trained.
    """
    plan, base = coordinator.plan, None
    weight = config.mixing * staleness_weight(config, upload.staleness)
    if upload.staleness and runs_on_versions(plan):
        base = pf.Payload.from_bytes(download, plan.device)
    if weight == 1 and base is None:
        return upload
    return mixed(upload, coordinator.next_download(client), base, weight, plan.info.num_classes)


def mixed(
    upload: pf.Payload,
    now: pf.Payload,
    base: Mapping[str, Tensor] | None,
    weight: float,
    num_classes: int,
) -> pf.Payload:
    """Return an upload as it counts now.

    Args:
        upload: The client's upload.
        now: What the client would download now.
        base: What it downloaded, for a method with versions; None for knowledge.
        weight: α·s(τ).
        num_classes: C.
    """
    if weight == 1 and (base is None or not upload.staleness):
        return upload
    changed = {}
    for key in shared_keys(upload, now):
        u, g = upload[key], now[key]
        if by_rows(upload, key):
            if not (now.is_table(key) and u.shape[1:] == g.shape[1:]):
                continue
            table, known = now.table(key, num_classes)
            classes = upload.classes_of(key)
            rows = known[classes].view(-1, *[1] * (u.dim() - 1))
            changed[key] = torch.where(rows, _mix(u, table[classes], None, weight), u)
        elif u.shape == g.shape:
            d = None if base is None else base.get(key)
            changed[key] = _mix(u, g, d if d is not None and d.shape == u.shape else None, weight)
    result = pf.Payload({**upload, **changed})
    result.version, result.staleness = upload.version, upload.staleness
    return result


def shared_keys(upload: pf.Payload, download: pf.Payload) -> list[str]:
    """Return the floating-point keys that are both uploaded and downloaded."""
    return [key for key in upload if upload[key].is_floating_point() and key in download.keys()]


def by_rows(payload: pf.Payload, key: str) -> bool:
    """Return True if the rows of a tensor belong to classes."""
    return payload.has_class_rows(key)


def _mix(u: Tensor, g: Tensor, d: Tensor | None, weight: float) -> Tensor:
    difference = u - (g if d is None else d)
    return g + weight * difference.to(g.dtype)
