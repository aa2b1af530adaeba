"""Copies between a device and host memory: many tensors in one piece.

A copy between a GPU and host memory takes some 10 µs to start, so hundreds of small tensors take
milliseconds. Here they are packed into one buffer where they are, copied once, and read as views.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn

ALIGNMENT = 16
"""Bytes at whose multiples tensors begin in a buffer: no element is larger."""


def has_streams(device: torch.device) -> bool:
    """Return True for a device that computes beside the program, in the order of streams."""
    return device.type not in ("cpu", "meta", "mps")


def module_of(device: torch.device) -> Any:  # noqa: ANN401 - `torch.cuda` or another
    """Return the module with the streams and graphs of a device, such as `torch.cuda`."""
    return torch.get_device_module(device)


def free_memory(device: torch.device) -> int:
    """Return the bytes of a device with streams that tensors can still take.

    What torch holds for tensors of this process and no tensor uses counts as free.
    """
    module = module_of(device)
    free, _ = module.mem_get_info(device)
    held = module.memory_reserved(device) - module.memory_allocated(device)
    return int(free) + max(0, int(held))


def size_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors' elements."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def pinned(like: Tensor, device: torch.device) -> Tensor:
    """Return empty host memory of a tensor's shape, from which copies to a device don't wait."""
    return torch.empty_like(like, device="cpu", pin_memory=device.type == "cuda")


def staging(size: int, device: torch.device) -> Tensor:
    """Return empty host memory [size] uint8, from which `onto` copies without waiting.

    torch reuses pinned memory only after the copies from it, so it may be dropped at once.
    """
    return torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")


def onto(host: Tensor, device: torch.device) -> Tensor:
    """Copy memory of `staging` to its device; the program waits only where there are no streams."""
    return host.to(device, non_blocking=has_streams(device))


def room_for(like: Iterable[Tensor]) -> int:
    """Return the bytes that a buffer of tensors of these shapes and types takes; see `spread`."""
    sizes = (tensor.numel() * tensor.element_size() for tensor in like)
    return sum(size + -size % ALIGNMENT for size in sizes)


def gathered(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return one buffer [bytes] uint8 with the content of tensors of one device, where they are.

    `spread` reads it. The tensors are copied once, without a copy of each one.
    """
    pieces = _pieces(tensors)
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8)


def _pieces(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the bytes of tensors, and zeros between them, in the order of a buffer."""
    pieces: list[Tensor] = []
    for tensor in tensors.values():
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        pieces.append(flat)
        if gap := -flat.numel() % ALIGNMENT:
            pieces.append(flat.new_zeros(gap))
    return pieces


def spread(buffer: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as views of a buffer that `gathered` made.

    Args:
        buffer: The buffer [bytes] uint8, on any device.
        like: Tensors with the names, shapes and types, in the same order.
    """
    result, at = dict[str, Tensor](), 0
    for name, tensor in like.items():
        size = tensor.numel() * tensor.element_size()
        values = buffer[at : at + size].view(tensor.dtype)
        result[name] = values.view(tensor.shape)
        at += size + -size % ALIGNMENT
    return result


def to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to host memory, those of a device in one piece.

    Args:
        tensors: Tensors; those in host memory already are returned as they are.

    Returns:
        The tensors in the same order, contiguous; those of a device are views of one buffer in
        pinned memory.
    """
    result = dict(tensors)
    for device in {tensor.device for tensor in tensors.values()} - {torch.device("cpu")}:
        there = {name: t for name, t in tensors.items() if t.device == device}
        buffer = gathered(there)
        host = pinned(buffer, device)
        host.copy_(buffer, non_blocking=has_streams(device))
        if has_streams(device):
            module_of(device).current_stream(device).synchronize()
        result |= spread(host, there)
    return result


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to host memory that nothing else uses, those of a device in one piece.

    The program waits for the copies. torch keeps pinned memory that is freed and gives it to the
    next copies of the same size, so repeated copies allocate it once.
    """
    here = {name: tensor.detach() for name, tensor in tensors.items()}
    there = to_host(here)
    return {
        name: host.clone(memory_format=torch.contiguous_format) if host is here[name] else host
        for name, host in there.items()
    }


def to_device(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copy tensors from host memory to a device in one piece, without waiting for it.

    Returns:
        The tensors in the same order, views of one buffer; tensors on the device are returned as
        they are.
    """
    here = {name: t for name, t in tensors.items() if t.device != device}
    if not here or device.type == "cpu":
        return {name: tensor.to(device) for name, tensor in tensors.items()}
    host = staging(room_for(here.values()), device)
    if host.numel():
        torch.cat(_pieces(here), out=host)
    return {**tensors, **spread(onto(host, device), here)}


def as_floats(values: Mapping[str, SupportsFloat]) -> dict[str, float]:
    """Return numbers and tensors of one number each as numbers, after one wait for their device."""
    here = to_host({name: v for name, v in values.items() if isinstance(v, Tensor)})
    return {name: float(here.get(name, value)) for name, value in values.items()}


def keep_apart(state: Any) -> Any:  # noqa: ANN401 - nested mappings and lists
    """Give tensors of a device that are parts of larger memory, as of a payload, their own memory.

    A tensor that is kept would keep the whole. Mappings and lists are changed in place.

    Returns:
        The state; its tuples, which can't be changed, are new.
    """
    if isinstance(state, dict):
        for key, value in state.items():
            state[key] = keep_apart(value)
    elif isinstance(state, list):
        state[:] = map(keep_apart, state)
    elif type(state) is tuple:
        return tuple(map(keep_apart, state))
    elif isinstance(state, Tensor) and not isinstance(state, nn.Parameter):
        size = state.numel() * state.element_size()
        if has_streams(state.device) and state.untyped_storage().nbytes() > size:
            return state.clone()
    return state
