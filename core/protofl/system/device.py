"""The device of a run, and settings of torch for a block."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from protofl.errors import UsageError
from protofl.system.transfers import has_streams, module_of

USE = "use auto, cpu, cuda, cuda:N, several cards as cuda:0,cuda:1, cuda:all, or mps"

ALL = "cuda:all"
"""All cards of this machine that the program may use."""


def names_several(text: object) -> bool:
    """Return True if a value of ``--device`` may name more than one device."""
    return "," in str(text) or str(text).strip() == ALL


def devices_of(text: str) -> tuple[torch.device, ...]:
    """Return the devices that ``--device`` names, and check that torch can compute on the first.

    Worker processes check the others, because each check takes some of a card's memory. Those that
    do not exist are found here.

    Args:
        text: A device, or several cards: ``cuda:0,cuda:1``, or `ALL`. A card may be named twice.

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
            f"--device {text}: only cards of one kind can be used together",
            do="name one device, or cards with their numbers: cuda:0,cuda:1",
        )
    for name, device in zip(names, devices, strict=True):
        if device.index is None:
            raise UsageError(
                f"--device {text}: {name} has no number",
                do=f"name each card with its number: {name}:0,{name}:1",
            )
        _check_number(text, device)
    return (_checked(text, names[0]), *devices[1:])


def device_of(text: str) -> torch.device:
    """Return the one device that a text names, and check that torch can compute on it.

    Raises:
        UsageError: As `devices_of`; or the text names several devices.
    """
    if names_several(text):
        raise UsageError(f"--device {text}: one device is expected here", do="name one device")
    return devices_of(text)[0]


def _named(text: str, name: str) -> torch.device:
    """Return the device of a name in a value of ``--device``."""
    try:
        return torch.device(name)
    except RuntimeError:
        which = f": {name!r}" if name != text.strip() else ""
        raise UsageError(f"--device {text}{which} is not a device", do=USE) from None


def _checked(text: str, name: str) -> torch.device:
    """Return a device on which torch can compute."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
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
                cards(device),
                "end the programs that use it (nvidia-smi shows them), or name another card",
            ) from None
        raise UsageError(f"--device {text}: this torch can't compute there", do=USE) from None
    return device


def _no_cuda(text: str) -> UsageError:
    return UsageError(f"--device {text}: found no CUDA device", _hidden(), "use --device cpu")


def _check_number(text: str, device: torch.device) -> None:
    """Check that a card with a device's number exists.

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
            f"--device {text}: there is no card {device}",
            cards(device),
            "cards count from 0: name one of these",
        )


def cards(device: torch.device) -> str:
    """Return the cards of a device's kind in words, for errors: numbers and names."""
    module = module_of(device)
    texts = []
    for number in range(module.device_count()):
        try:
            texts.append(f"{device.type}:{number} ({module.get_device_name(number)})")
        except (RuntimeError, AssertionError):  # a card that can't be asked still has a number
            texts.append(f"{device.type}:{number}")
    hidden = _hidden() if device.type == "cuda" else ""
    return "; ".join(filter(None, (f"there are: {', '.join(texts)}", hidden)))


def _hidden() -> str:
    """Return which environment variable hides cards; empty if none does."""
    name = _visible()
    value = os.environ.get(name)
    return "" if value is None else f"{name}={value!r} chooses them"


def _visible() -> str:
    """Return the environment variable that chooses the cards of a process."""
    hip = torch.version.hip is not None and "HIP_VISIBLE_DEVICES" in os.environ
    return "HIP_VISIBLE_DEVICES" if hip else "CUDA_VISIBLE_DEVICES"


def visible_as_only(device: torch.device) -> dict[str, str]:
    """Return the environment in which a card is the only one that a process sees, as number 0.

    A process that computes on another card than number 0 still takes memory on number 0, wherever a
    library asks for "the current card": for pinned memory, graphs and streams.

    Args:
        device: A card by its number in this process, which may itself see only some.

    Returns:
        The variable; empty for devices that are not CUDA's.
    """
    if device.type != "cuda":
        return {}
    name, number = _visible(), device.index or 0
    value = os.environ.get(name)
    shown = [str(n) for n in range(number + 1)] if value is None else value.split(",")
    return {name: shown[number].strip()} if number < len(shown) else {}


def different_cards(devices: Sequence[torch.device]) -> str:
    """Return a line about cards of several models, which round differently; empty if all are alike.

    Args:
        devices: The devices of a run.
    """
    if len(set(devices)) < 2:
        return ""
    names = {str(d): module_of(d).get_device_name(d) for d in devices}
    if len(set(names.values())) == 1:
        return ""
    said = ", ".join(f"{device} is {name}" for device, name in names.items())
    return (
        f"the cards are of several models ({said}): last digits depend on which card trains a "
        "client, and two equal runs may differ"
    )


@contextmanager
def current_card(device: torch.device) -> Iterator[None]:
    """Make a card torch's current one in a block; pinned memory and graphs use the current one."""
    if device.type != "cuda" or device.index is None:
        yield
        return
    with torch.cuda.device(device):
        yield


@contextmanager
def compute_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads in a block; rounding depends on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic_kernels(enabled: bool) -> Iterator[None]:
    """Make torch use only deterministic CUDA kernels in a block, if enabled."""
    if not enabled or torch.are_deterministic_algorithms_enabled():
        # Setting the same value would import torch's compiler, which takes more than a second.
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a forward pass: autocast for ``bf16``, nothing for ``fp32``."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
