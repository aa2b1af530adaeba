"""The device of a run, and settings of torch for a block."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import torch

from protofl.errors import UsageError
from protofl.system.transfers import has_streams


def device_of(text: str) -> torch.device:
    """Return the device that ``--device`` names, and check that torch can compute on it.

    Raises:
        UsageError: The device is unknown, missing, or not usable with this torch.
    """
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    use = "use auto, cpu, cuda or cuda:N"
    try:
        device = torch.device(text)
    except RuntimeError:
        raise UsageError(f"--device {text} is not a device", do=use) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {text}: found no CUDA device", do="use --device cpu")
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, NotImplementedError, AssertionError, ImportError):
        raise UsageError(f"--device {text}: this torch can't compute there", do=use) from None
    return device


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
    if not enabled or torch.are_deterministic_algorithms_enabled():
        # Setting the same value would import torch's compiler, which takes more than a second.
        yield
        return
    os.environ.setdefault(WORKSPACE, ":4096:8")
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
        asked: The option; None if nobody has set it.
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
    ``torch.backends.cudnn.benchmark`` is off: it chooses kernels by their speed of the moment.

    Args:
        precision: A key of `ARITHMETIC`.
        device: Where the block computes.
    """
    if not has_streams(device):
        yield
        return
    factors = ARITHMETIC[TORCHS_OWN if precision == "bf16" else precision]
    convolutions, products = (factor == "tf32" for factor in factors)
    before, cudnn = _Flags.now(), torch.backends.cudnn
    benchmark = cudnn.benchmark
    wanted = _Flags.of(convolutions, products, before)
    if before == wanted and not benchmark:
        yield
        return
    wanted.set()
    cudnn.benchmark = False
    try:
        yield
    finally:
        before.set()
        cudnn.benchmark = benchmark


class _Flags(NamedTuple):
    """torch's flags of float32 arithmetic on CUDA.

    torch has two interfaces for them: ``allow_tf32`` with `torch.set_float32_matmul_precision`, and
    in later versions ``fp32_precision`` of each operator. Setting the former sets the latter too.
    If a program sets the latter alone, reading the former raises.

    Attributes:
        matmul: `torch.get_float32_matmul_precision`; empty if it can't be read.
        cudnn: ``torch.backends.cudnn.allow_tf32``; None if it can't be read.
        operators: ``fp32_precision`` of convolutions, recurrent layers and matrix products, as far
            as this torch has it.
    """

    matmul: str
    cudnn: bool | None
    operators: tuple[str, ...]

    @classmethod
    def now(cls) -> _Flags:
        operators = tuple(str(operator.fp32_precision) for operator in _operators())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some versions call the former interface deprecated
            with suppress(RuntimeError):
                allowed = bool(torch.backends.cudnn.allow_tf32)
                return cls(torch.get_float32_matmul_precision(), allowed, operators)
        return cls("", None, operators)

    @classmethod
    def of(cls, convolutions: bool, products: bool, before: _Flags) -> _Flags:
        """Return the flags for TF32 in some operators, in the interfaces that can be read."""
        each = ["tf32" if on else "ieee" for on in (convolutions, convolutions, products)]
        operators = tuple(each) if before.operators else ()
        if before.cudnn is None:
            return cls("", None, operators)
        return cls("high" if products else "highest", convolutions, operators)

    def set(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self.cudnn is not None:
                torch.set_float32_matmul_precision(self.matmul)
                torch.backends.cudnn.allow_tf32 = self.cudnn
            for operator, precision in zip(_operators(), self.operators, strict=True):
                operator.fp32_precision = precision


def _operators() -> list[Any]:
    """Return torch's operators with a precision of their own; none in older versions."""
    cudnn: Any = torch.backends.cudnn
    found = [getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None), torch.backends.cuda.matmul]
    return found if all(hasattr(operator, "fp32_precision") for operator in found) else []


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a forward pass: autocast for ``bf16``, nothing for others."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
