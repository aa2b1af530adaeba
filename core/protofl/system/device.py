"""The device of a run, and settings of torch for a block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from protofl.errors import UsageError
from protofl.system.transfers import has_streams


def devices_of(text: str) -> tuple[torch.device, ...]:
    """Return the devices that ``--device`` names, and check that torch can compute on the first.

    See `protofl.system.named_devices.checked_devices`.
    """
    if text.strip() == "auto":
        return (torch.device("cuda" if torch.cuda.is_available() else "cpu"),)
    from protofl.system.named_devices import checked_devices

    return checked_devices(text)


@contextmanager
def current_card(device: torch.device) -> Iterator[None]:
    """Make a GPU torch's current one in a block; pinned memory and graphs use the current one."""
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


WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""The environment variable that torch reads, once in a process, before it allows cuBLAS in
deterministic mode."""


def prepare_deterministic(device: torch.device) -> None:
    """Let this process and its workers use cuBLAS deterministically on a device, and try it.

    torch looks for `WORKSPACE` when cuBLAS first computes in a process, so this is called before
    anything else of a run computes on the device.

    Raises:
        UsageError: cuBLAS has computed before, without the variable.
    """
    os.environ.setdefault(WORKSPACE, ":4096:8")
    if device.type != "cuda":
        return
    square = torch.ones(2, 2, device=device)
    with deterministic_kernels(True):
        try:
            (square @ square).sum().item()
        except RuntimeError as error:
            if WORKSPACE not in str(error):
                raise
            raise UsageError(
                "--deterministic: this program has used cuBLAS before, or has another "
                f"{WORKSPACE} ({os.environ[WORKSPACE]})",
                do=f"set {WORKSPACE}=:4096:8 before the program starts",
            ) from None


@contextmanager
def deterministic_kernels(enabled: bool) -> Iterator[None]:
    """Make torch use only deterministic CUDA kernels in a block, if enabled."""
    if not enabled:
        yield
        return
    from protofl.system.pooling_gradients import repeatable_pooling

    os.environ.setdefault(WORKSPACE, ":4096:8")
    with repeatable_pooling():
        if torch.are_deterministic_algorithms_enabled():
            # Setting the same value would import torch's compiler, which takes more than a second.
            yield
            return
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


# --- precision ------------------------------------------------------------------------------------

TORCHS_OWN = "tf32-conv"
"""The precision of a GPU if none is asked for: torch's default, TF32 in convolutions."""


class Arithmetic(NamedTuple):
    """How a precision multiplies float32 numbers on a GPU. Sums are always in float32.

    Attributes:
        convolutions: Factors in convolutions and recurrent layers: ``float32``, or rounded to
            ``tf32`` (10 bits of the mantissa) or ``bfloat16`` (7 bits).
        products: Factors in matrix products.
    """

    convolutions: str
    products: str

    @property
    def coarsest(self) -> str:
        """The type of factors that rounds most."""
        return max(self, key=("float32", "tf32", "bfloat16").index)


ARITHMETIC = {
    "fp32": Arithmetic("float32", "float32"),
    TORCHS_OWN: Arithmetic("tf32", "float32"),
    "tf32": Arithmetic("tf32", "tf32"),
    "bf16": Arithmetic("bfloat16", "bfloat16"),
}
"""{precision: its arithmetic on a GPU}. bf16 is autocast of the forward pass and its gradients;
whatever autocast leaves in float32 is computed as with `TORCHS_OWN`."""


def precision_on(device: torch.device, asked: str | None, *, recorded: bool = False) -> str:
    """Return the precision of a run: the one that is asked for, or the device's own.

    Args:
        device: Where the run computes.
        asked: The option; None if it is not set.
        recorded: Whether it is that of a recorded run, which may come from another device.

    Raises:
        UsageError: TF32 is asked for where there is none.
    """
    if has_streams(device):
        return asked or TORCHS_OWN
    if asked == "tf32" and not recorded:
        raise UsageError(
            f"--precision tf32: device {device} computes in float32",
            do="use --device cuda, or leave --precision out",
        )
    return "bf16" if asked == "bf16" else "fp32"


@contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """Set torch's flags for a precision on a GPU in a block; nothing changes for a CPU.

    A CUDA graph keeps the kernels of its capture, so a capture belongs into the block as well.

    Args:
        precision: A key of `ARITHMETIC`.
        device: Where the block computes.
    """
    if not has_streams(device):
        yield
        return
    from protofl.system.gpu_flags import rounded_factors

    factors = ARITHMETIC[TORCHS_OWN if precision == "bf16" else precision]
    with rounded_factors(*(factor == "tf32" for factor in factors)):
        yield


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a forward pass: autocast for ``bf16``, nothing for others."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
