"""The device of a run, and settings of torch for a block."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import torch

from protofl.errors import UsageError
from protofl.system.transfers import has_streams, module_of

USE = "use auto, cpu, cuda, cuda:N, several GPUs as cuda:0,cuda:1, cuda:all, or mps"

ALL = "cuda:all"
"""All GPUs of this machine that the program may use."""


def names_several(text: object) -> bool:
    """Return True if a value of ``--device`` may name more than one device."""
    return "," in str(text) or str(text).strip() == ALL


def devices_of(text: str) -> tuple[torch.device, ...]:
    """Return the devices that ``--device`` names, and check that torch can compute on the first.

    Worker processes check the others, because each check takes some of a GPU's memory. Those that
    do not exist are found here.

    Args:
        text: A device, or several GPUs: ``cuda:0,cuda:1``, or `ALL`. A GPU may be named twice.

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
