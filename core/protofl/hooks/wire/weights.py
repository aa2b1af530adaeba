"""Weights on the wire: ``PREFIX/PARAMETER``, and buffers as ``PREFIX/buffer/NAME``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from protofl.errors import MissingKey, WrongShape
from protofl.functional.precision import in_float64
from protofl.hooks.wire.payload import Payload, weight_views
from protofl.system.transfers import gathered, has_streams, spread, to_device


def pack_weights(module: nn.Module, prefix: str, *, buffers: bool = True) -> Payload:
    """Return copies of a module's parameters and buffers by wire names.

    Those of a device with streams are parts of one piece of memory, copied by one kernel.
    """
    views = weight_views(module, prefix, buffers=buffers)
    if {has_streams(tensor.device) for tensor in views.values()} == {True}:
        return Payload(spread(gathered(views), views))
    return Payload({name: tensor.clone() for name, tensor in views.items()})


def _holder(payload: Mapping[str, Tensor]) -> str:
    return payload.holder if isinstance(payload, Payload) else Payload.holder


@torch.no_grad()
def load_weights(module: nn.Module, payload: Mapping[str, Tensor], prefix: str) -> None:
    """Copy ``PREFIX/*`` of a payload into a module; buffers that were not sent stay unchanged.

    Raises:
        MissingKey: A parameter was not sent.
        WrongShape: A parameter was sent in another shape.
    """
    targets, sources = dict[str, Tensor](), dict[str, Tensor]()
    for key, target in weight_views(module, prefix).items():
        if key in payload.keys():
            if payload[key].shape != target.shape:
                mismatch = f"the model has {list(target.shape)}"
                raise WrongShape(key, payload[key].shape, mismatch, _holder(payload))
            targets[key], sources[key] = target, payload[key]
        elif not key.startswith(f"{prefix}/buffer/"):
            raise MissingKey(key, _holder(payload), payload)
    devices = {target.device for target in targets.values()}
    if len(devices) == 1 and has_streams(device := devices.pop()):
        sources = to_device(sources, device)
    for key, target in targets.items():
        target.copy_(sources[key])


def average_weights(
    uploads: Sequence[Payload], prefix: str, weights: Tensor | None = None
) -> Payload:
    """Return the weighted mean of ``PREFIX/*`` over uploads.

    Integer buffers (BatchNorm's count of batches) are not averaged; their maximum is taken.

    Args:
        uploads: Payloads of M clients that hold the same names and shapes.
        prefix: ``model``, ``head``, ….
        weights: [M], normalised to sum 1; None for the plain mean.

    Raises:
        MissingKey: An upload lacks a tensor that another has.
        WrongShape: Shapes differ between uploads.
    """
    count = len(uploads)
    share = torch.ones(count, dtype=torch.float64) if weights is None else in_float64(weights)
    shares = (share / share.sum()).tolist()
    mean = Payload()
    start = prefix + "/"
    names = dict.fromkeys(key for upload in uploads for key in upload if key.startswith(start))
    if not names:
        raise MissingKey(f"{prefix}/*", uploads[0].holder, uploads[0])
    for name in names:
        tensors = [upload[name] for upload in uploads]
        if any(t.shape != tensors[0].shape for t in tensors):
            # The first of the rarest shapes identifies the client that differs.
            counts = Counter(tuple(t.shape) for t in tensors)
            odd, *_, usual = sorted(counts, key=counts.__getitem__)
            whose = next(u for u in uploads if u[name].shape == odd)
            mismatch = f"which cannot be averaged with another client's {list(usual)}"
            raise WrongShape(name, odd, mismatch, whose.holder)
        if tensors[0].is_floating_point():
            total = torch.zeros_like(tensors[0])
            for tensor, weight in zip(tensors, shares, strict=True):
                total.add_(tensor, alpha=weight)
            mean[name] = total
        else:
            mean[name] = torch.stack(tensors).amax(0)
    return mean
