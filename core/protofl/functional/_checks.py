"""Argument checks that read shapes and dtypes only, so that they never wait for a device."""

from __future__ import annotations

import torch
from torch import Tensor


def check_shape(name: str, tensor: Tensor, letters: str, **sizes: int) -> None:
    """Raise ``ValueError`` unless ``tensor`` has one axis per word of ``letters``.

    Args:
        name: The argument's name, for the message.
        tensor: The argument.
        letters: The axes as in a docstring, such as ``"N K"``.
        sizes: The required size of some of the axes, by letter.
    """
    axes = letters.split()
    fits = tensor.ndim == len(axes) and all(
        tensor.shape[axes.index(axis)] == size for axis, size in sizes.items()
    )
    if not fits:
        want = ", ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in axes)
        raise ValueError(f"{name} must be [{want}]: got shape {list(tensor.shape)}")


def check_floating(**tensors: Tensor) -> None:
    """Raise ``ValueError`` unless every tensor holds real floating-point numbers."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be floating point: got {tensor.dtype}")


def check_labels(name: str, labels: Tensor, rows: int) -> None:
    """Raise ``ValueError`` unless ``labels`` is an integer vector with ``rows`` entries."""
    check_shape(name, labels, "N", N=rows)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{name} must be integers: got {labels.dtype}")


def check_mask(name: str, mask: Tensor, rows: int) -> None:
    """Raise ``ValueError`` unless ``mask`` is a bool vector with ``rows`` entries."""
    check_shape(name, mask, "C", C=rows)
    if mask.dtype != torch.bool:
        raise ValueError(f"{name} must be bool: got {mask.dtype}")


def check_classes(features: Tensor, prototypes: Tensor, features_name: str = "features") -> None:
    """Raise ``ValueError`` unless the two are floating-point [N, K] and [C, K] with one K."""
    check_shape(features_name, features, "N K")
    check_shape("prototypes", prototypes, "C K", K=features.shape[1])
    check_floating(**{features_name: features, "prototypes": prototypes})


def result_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if a tensor has it, otherwise float32: sums in half precision lose too much."""
    # Not `torch.promote_types`: torch 2.6 cannot read it from an exported program.
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
