"""torch's flags of float32 arithmetic on GPUs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch


@contextmanager
def rounded_factors(convolutions: bool, products: bool) -> Iterator[None]:
    """Set the flags in a block.

    ``torch.backends.cudnn.benchmark`` is off: it chooses kernels by their speed of the moment.

    Args:
        convolutions: True to round factors to TF32 in convolutions and recurrent layers.
        products: True to round them in matrix products.
    """
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
