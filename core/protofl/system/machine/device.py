"""The device that ``--device`` names."""

from __future__ import annotations

import torch

from protofl.errors import UsageError


def device_of(text: str) -> torch.device:
    """The device of a name, on which this torch can compute.

    Raises:
        UsageError: There is none.
    """
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    use = "use auto, cpu, cuda or cuda:N"
    try:
        device = torch.device(text)
    except RuntimeError:
        raise UsageError(f"--device {text} is no device", do=use) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {text}: no CUDA device is at hand", do="use --device cpu")
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, NotImplementedError, AssertionError, ImportError):
        raise UsageError(f"--device {text}: this torch can't compute there", do=use) from None
    return device
