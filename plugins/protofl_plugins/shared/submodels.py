"""Clients that train a part of the server's net: options, and the steps of a round.

A part has m of the n channels of each layer. ``shift`` says by how many channels the parts of this
round have rolled: 0 for HeteroFL, the round for FedRolex.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.shared import weights


class SubmodelConfig(weights.ModelSharingConfig):
    """Options of the parts."""

    aggregate: Literal["weighted", "uniform"] = pf.Field(
        "uniform", description="weights 1 of clients in a number's mean, or n_i"
    )
    recipe: Literal["sgd", "adam", "run"] = pf.Field(
        "sgd",
        description="defaults of the run's optimiser: the published code's SGD, the Adam of its "
        "configuration file, or those of every run",
    )
    mask: Literal["both", "loss", "none"] = pf.Field(
        "both",
        description="where scores of classes that a client does not have are 0: in its loss and "
        "in its own accuracy, in its loss, or nowhere. With a mask a client changes only its "
        "classes' rows of the head",
    )


# --- before the run -------------------------------------------------------------------------------


def optimiser(config: SubmodelConfig, sgd: Mapping[str, float]) -> dict[str, Any]:
    """Return the run's options of the optimiser that ``recipe`` names.

    Args:
        config: The options.
        sgd: Learning rate, momentum and weight decay of the published code's SGD. Published code
            clips gradients at norm 1.
    """
    return {
        "sgd": {"optimizer": "sgd", "clip": 1.0, **sgd},
        "adam": {"optimizer": "adam", "clip": 1.0, "lr": 3e-4, "weight_decay": 5e-4},
        "run": {},
    }[config.recipe]


def unequal_nets(run: pf.RunInfo) -> list[str]:
    """Return the reason why clients' nets are not parts of one: they are more than its widths."""
    nets = {a.name.partition("@")[0] for a in run.architectures}
    if run.homogeneous or (len(nets) == 1 and len(_layers_of(run)) == 1):
        return []
    names = ", ".join(a.name for a in run.architectures)
    return [
        f"it needs one net in several widths, and the clients have {names}; "
        "--models widths:resnet18@1,0.5,0.25"
    ]


def _layers_of(run: pf.RunInfo) -> set[tuple[str, ...]]:
    """Return the different lists of names of the nets' parameters; one for widths of one net."""
    models = map(run.unset_model, run.architectures)
    return {tuple(name for name, _ in model.named_parameters()) for model in models}


def widest_net(server: pf.Server[SubmodelConfig]) -> pf.Payload:
    """Return the weights of the widest client's net, and keep its name and the shapes of all."""
    nets = {
        name: server.build(name)
        for name in dict.fromkeys(card.architecture for card in server.clients.values())
    }
    buffers = weights.averages_buffers(server.config)
    payloads = {
        name: pf.models.pack_weights(net, "model", buffers=buffers) for name, net in nets.items()
    }
    server.state["shapes"] = {
        name: {key: [*tensor.shape] for key, tensor in payload.items()}
        for name, payload in payloads.items()
    }
    whole = max(payloads, key=lambda name: sum(t.numel() for t in payloads[name].values()))
    server.state["whole"] = whole
    server.state["positions"] = {
        f"model/{path}.weight": int(getattr(module, "positions", 1))
        for path, module in nets[whole].named_modules()
        if isinstance(module, nn.Linear)
    }
    return payloads[whole]


# --- a round --------------------------------------------------------------------------------------


def part_of(server: pf.Server[SubmodelConfig], client: int, shift: int = 0) -> pf.Payload:
    """Return W_i, the client's part of W."""
    return pf.Payload(
        {
            key: server.global_state[key][_window_of(server, client, key, shift)].clone()
            for key in server.state["shapes"][server.clients[client].architecture]
        }
    )


def absent_classes(client: pf.Client[SubmodelConfig]) -> Tensor:
    """Return the classes that the client does not have, [C] bool, whose scores are masked.

    Of other tasks none is: samples without a label train its score too.
    """
    if client.task.has_classes:
        return client.class_counts == 0
    return torch.zeros(client.num_classes, dtype=torch.bool, device=client.device)


def trained_part(client: pf.Client[SubmodelConfig]) -> pf.Payload:
    """Return the client's part after training, n_i and its classes."""
    classes = (~absent_classes(client)).nonzero().flatten()
    return pf.Payload(weights.MODEL.upload_payload(client), classes=classes)


def mean_over_holders(
    server: pf.Server[SubmodelConfig], uploads: pf.Uploads, shift: int = 0
) -> pf.Payload:
    """Return W: each number is its mean over the clients that have it, or what it was."""
    result = pf.Payload()
    for key, old in server.global_state.select("model/*").items():
        if not old.is_floating_point():  # BatchNorm's count of batches
            result[key] = torch.stack([u[key] for u in uploads.values()]).amax(0)
            continue
        total, count = torch.zeros_like(old), torch.zeros_like(old)
        for client, upload in uploads.items():
            window = _window_of(server, client, key, shift)
            share = _share(server, upload, key, old)
            total[window] += share * upload[key]
            count[window] += share.expand(upload[key].shape)
        result[key] = torch.where(count > 0, total / count.clamp(min=1e-12), old)
    return result


def _share(server: pf.Server[SubmodelConfig], upload: pf.Payload, key: str, old: Tensor) -> Tensor:
    """Return a client's weight in the mean of a tensor; by row for the head's classes."""
    share = torch.ones((), device=old.device, dtype=old.dtype)
    if server.config.aggregate == "weighted":
        share = upload["samples"].to(share)
    if server.config.mask == "none" or not key.startswith("model/head."):
        return share
    rows = torch.zeros(len(old), device=old.device, dtype=old.dtype)
    rows[upload["classes"]] = share
    return rows.reshape(-1, *[1] * (old.ndim - 1))


def _window_of(
    server: pf.Server[SubmodelConfig], client: int, key: str, shift: int
) -> tuple[Tensor | slice, ...]:
    """Return the index of a client's part in a tensor of the whole net."""
    state = server.state
    return window(
        server.global_state[key].shape,
        state["shapes"][server.clients[client].architecture][key],
        shift=shift,
        positions=state["positions"].get(key, 1),
        device=server.device,
    )


def window(
    whole: Sequence[int],
    part_shape: Sequence[int],
    *,
    shift: int = 0,
    positions: int = 1,
    device: torch.device | None = None,
) -> tuple[Tensor | slice, ...]:
    """Return the index of a part in a tensor: of each dimension, m of the n channels.

    Args:
        whole: The shape of the tensor of the whole net.
        part_shape: The shape of the part, of as many dimensions.
        shift: Channels by which the window has rolled: it begins at (−shift) mod n and goes
            round the end. 0: the first m channels.
        positions: Entries of the second dimension that belong to one channel.
        device: Of the index.
    """
    sizes = [*zip(whole, part_shape, strict=True)]
    if not shift:
        return tuple(slice(m) for _, m in sizes)
    index = list[Tensor]()
    for place, (n, m) in enumerate(sizes):
        each = positions if place == 1 else 1
        channels, kept = n // each, math.ceil(m / each)
        start = (-shift) % channels if m < n else 0
        rows = (start + torch.arange(kept, device=device)) % channels
        entries = (rows.unsqueeze(1) * each + torch.arange(each, device=device)).flatten()
        index.append(entries.reshape(-1, *[1] * (len(sizes) - place - 1)))
    return tuple(index)
