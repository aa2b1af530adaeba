"""Devices by their names, as ``--device`` gives them, and the GPUs of this machine."""

from __future__ import annotations

import math
import os

import torch

from protofl.errors import UsageError
from protofl.system.transfers import has_streams, module_of

USE = "use auto, cpu, cuda, cuda:N, several GPUs as cuda:0,cuda:1, cuda:all, or mps"

ALL = "cuda:all"
"""All GPUs of this machine that the program may use."""


def names_several(text: object) -> bool:
    """Return True if a value of ``--device`` may name more than one device."""
    return "," in str(text) or str(text).strip() == ALL


def checked_devices(text: str) -> tuple[torch.device, ...]:
    """Return the devices that ``--device`` names, and check that torch can compute on the first.

    Worker processes check the others, because each check takes some of a GPU's memory. Those that
    do not exist are found here.

    Args:
        text: A device other than ``auto``, or several GPUs: ``cuda:0,cuda:1``, or `ALL`. A GPU
            may be named twice.

    Raises:
        UsageError: A device is unknown, missing or full, is not usable with this torch, or can't be
            used together with the others.
    """
    if not names_several(text):
        return (_checked(text, text.strip()),)
    if text.strip() == ALL:
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = [f"cuda:{number}" for number in range(found)]
        if not names:
            raise _no_cuda(text)
    else:
        names = [name.strip() for name in text.split(",")]
    devices = [_named(text, name) for name in names]
    if len({device.type for device in devices}) > 1 or not has_streams(devices[0]):
        raise UsageError(
            f"--device {text}: only GPUs of one kind can be used together",
            do="name one device, or GPUs with their numbers: cuda:0,cuda:1",
        )
    for name, device in zip(names, devices, strict=True):
        if device.index is None:
            raise UsageError(
                f"--device {text}: {name} has no number",
                do=f"name each GPU with its number: {name}:0,{name}:1",
            )
        _check_number(text, device)
    return (_checked(text, names[0]), *devices[1:])


def _named(text: str, name: str) -> torch.device:
    """Return the device of a name in a value of ``--device``."""
    try:
        return torch.device(name)
    except RuntimeError:
        which = f": {name!r}" if name != text.strip() else ""
        raise UsageError(f"--device {text}{which} is not a device", do=USE) from None


def _checked(text: str, name: str) -> torch.device:
    """Return a device on which torch can compute."""
    device = _named(text, name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise _no_cuda(text)
    if device.index is not None:
        _check_number(text, device)
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, NotImplementedError, AssertionError, ImportError) as error:
        if "out of memory" in str(error):
            raise UsageError(
                f"--device {text}: {device} has no memory left",
                gpus(device),
                "end the programs that use it (nvidia-smi shows them), or name another GPU",
            ) from None
        raise UsageError(f"--device {text}: this torch cannot compute there", do=USE) from None
    return device


def _no_cuda(text: str) -> UsageError:
    return UsageError(f"--device {text}: found no CUDA device", _hidden(), "use --device cpu")


def _check_number(text: str, device: torch.device) -> None:
    """Check that a GPU with a device's number exists.

    Raises:
        UsageError: There is none.
    """
    if device.type == "cuda" and not torch.cuda.is_available():
        raise _no_cuda(text)
    try:
        count = module_of(device).device_count() if has_streams(device) else math.inf
    except (RuntimeError, AttributeError):  # torch has no module for it, or one without a count
        return
    if 0 < count <= device.index:  # without any, torch can't compute there anyway
        raise UsageError(
            f"--device {text}: GPU {device} does not exist",
            gpus(device),
            "GPUs count from 0: name one of these",
        )


def gpus(device: torch.device) -> str:
    """Return the GPUs of a device's kind in words, for errors: numbers and names."""
    module = module_of(device)
    texts = []
    for number in range(module.device_count()):
        try:
            texts.append(f"{device.type}:{number} ({module.get_device_name(number)})")
        except (RuntimeError, AssertionError):  # a GPU that can't be asked still has a number
            texts.append(f"{device.type}:{number}")
    hidden = _hidden() if device.type == "cuda" else ""
    return "; ".join(filter(None, (f"there are: {', '.join(texts)}", hidden)))


def _hidden() -> str:
    """Return which environment variable hides GPUs; empty if none does."""
    name = _visible()
    value = os.environ.get(name)
    return "" if value is None else f"{name}={value!r} chooses them"


def _visible() -> str:
    """Return the environment variable that chooses the GPUs of a process."""
    hip = torch.version.hip is not None and "HIP_VISIBLE_DEVICES" in os.environ
    return "HIP_VISIBLE_DEVICES" if hip else "CUDA_VISIBLE_DEVICES"


def visible_as_only(device: torch.device) -> dict[str, str]:
    """Return the environment in which a GPU is the only one that a process sees, as number 0.

    A process that computes on another GPU than number 0 still takes memory on number 0, wherever a
    library asks for "the current GPU": for pinned memory, graphs and streams.

    Args:
        device: A GPU by its number in this process, which may itself see only some.

    Returns:
        The variable; empty for devices that are not CUDA's.
    """
    if device.type != "cuda":
        return {}
    name, number = _visible(), device.index or 0
    value = os.environ.get(name)
    shown = [str(n) for n in range(number + 1)] if value is None else value.split(",")
    return {name: shown[number].strip()} if number < len(shown) else {}
