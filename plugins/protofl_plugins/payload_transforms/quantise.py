"""Quantise: tensors are sent with 16 or 8 bits a number.

    fp16, bf16   v rounded to that type; what fp16 can't hold becomes ±65504
    int8         s = max_j |v_j| / 127,   q_j = round(v_j / s),   seen: s·q_j

q is Eq. 1 of Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, with zero point 0; |v_j − s·q_j| ≤ s/2. On the wire:
q under the tensor's own name, and s as ``NAME.scale`` in float32, one for each row (``per=row``: of
a class, of a public sample, of an output of a layer) or for the tensor.

``stochastic=true`` rounds up or down at random so that the mean is v: q_j = ⌊v_j/s + u_j⌋ with
u ~ U[0, 1) (QSGD: Alistarh et al., NeurIPS 2017, section 3.1), and in 16 bits to one of the two
neighbours (Gupta et al., "Deep Learning with Limited Numerical Precision", ICML 2015, section 3).
The draws are the sender's: a client's own for uploads, one for all clients for downloads.

Floats count what crosses as floats: q are none, so look at the bytes.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.payload_transforms.number_coding import (
    Coded,
    CodingConfig,
    checked_names,
    in_rows,
    is_chosen,
    put_beside,
)

_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}


class Quantise(Coded):
    """Sends 16 bits a number, or 8 with a scale for each row (Jacob et al., 2018)."""

    encodes = {"scale": "s, the step between two neighbouring numbers of each row (int8)"}

    class Config(CodingConfig):
        """Options."""

        direction: Literal["up", "down", "both"] = pf.Field(
            "both", description="encode uploads, downloads, or both"
        )
        to: Literal["fp16", "bf16", "int8"] = pf.Field(
            "int8",
            description="the type that crosses: fp16 has 11 digits, bf16 8 and float32's range",
        )
        per: Literal["row", "tensor"] = pf.Field(
            "row", description="what has a scale of its own (int8)"
        )
        stochastic: bool = pf.Field(
            False, description="round at random, so that the mean is the number itself"
        )

    @staticmethod
    def encoded(
        payload: pf.Payload,
        config: Config,
        generator: torch.Generator,
        state: dict[str, Any] | None,
    ) -> pf.Payload:
        """Return q, and s."""
        sent = pf.Payload(payload)
        for name, tensor in payload.items():
            if not _is_encoded(name, tensor, config):
                continue
            rows, uniform = _rows(tensor, config), None
            if config.stochastic:
                uniform = torch.rand(rows.shape, generator=generator).to(tensor.device)
            if config.to == "int8":
                q, scale = quantise_int8(rows, uniform)
                put_beside(sent, f"{name}.scale", scale)
            else:
                q = round_to_half(rows, _TYPES[config.to], uniform)
            sent[name] = q.reshape(tensor.shape)
        return sent

    @staticmethod
    def decoded(payload: pf.Payload, form: pf.Payload, config: Config) -> pf.Payload:
        """Return the numbers s·q."""
        encoded = [name for name, whole in form.items() if _is_encoded(name, whole, config)]
        scales = {f"{name}.scale" for name in encoded} if config.to == "int8" else set()
        result = checked_names(payload, form, scales)
        for name in encoded:
            sent, whole = payload[name], form[name]
            if sent.shape != whole.shape or sent.dtype != _TYPES[config.to]:
                raise ValueError(f"{name!r} must be {list(whole.shape)} of {config.to}")
            if config.to == "int8":
                sent = dequantise_int8(_rows(sent, config), payload[f"{name}.scale"])
            result[name] = sent.to(whole.dtype).reshape(whole.shape)
        return result


def _rows(tensor: Tensor, config: Quantise.Config) -> Tensor:
    return in_rows(tensor, by_row=config.per == "row")


def _is_encoded(name: str, tensor: Tensor, config: Quantise.Config) -> bool:
    """Return True if a tensor is quantised, which its form alone decides."""
    if not is_chosen(name, tensor, config):
        return False
    scales = 4 * len(_rows(tensor, config)) if config.to == "int8" else 0
    size = tensor.numel() * _TYPES[config.to].itemsize + scales
    return size < tensor.numel() * tensor.element_size()


# --- 8 bits ---------------------------------------------------------------------------------------

LEVELS = 127
"""The largest q; −128 is not used, so that zero stays in the middle."""


def quantise_int8(rows: Tensor, uniform: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return rows as integers of 8 bits and a scale each, symmetric around zero.

    s = max_j |v_j| / 127, q_j = round(v_j / s), so |v_j − s·q_j| ≤ s/2; or with u ~ U[0, 1)
    q_j = ⌊v_j / s + u_j⌋, whose mean is v_j / s, so |v_j − s·q_j| < s.

    Args:
        rows: [N, d], finite.
        uniform: u [N, d] for stochastic rounding; None rounds to the nearest.

    Returns:
        q [N, d] int8 in −127…127, and s [N] float32, 0 for a row of zeros.
    """
    v = rows.to(torch.promote_types(rows.dtype, torch.float32))
    # Dividing first keeps the largest float32 finite.
    scale = v.abs().amax(1).div(LEVELS).float() if v.shape[1] else v.new_zeros(len(v)).float()
    divided = v / torch.where(scale > 0, scale, 1).to(v.dtype).unsqueeze(1)
    whole = divided.round() if uniform is None else (divided + uniform.to(divided)).floor()
    return whole.clamp(-LEVELS, LEVELS).to(torch.int8), scale


def dequantise_int8(integers: Tensor, scale: Tensor) -> Tensor:
    """Return s·q, [N, d] float32.

    Args:
        integers: q [N, d] int8.
        scale: s [N] float32, as it was received.

    Raises:
        ValueError: A shape or dtype is wrong, or a scale is negative or not finite.
    """
    if integers.dtype != torch.int8 or scale.dtype != torch.float32:
        raise ValueError(f"expected int8 and float32, got {integers.dtype} and {scale.dtype}")
    if integers.ndim != 2 or scale.shape != integers.shape[:1]:
        raise ValueError(f"scale must be {[*integers.shape[:1]]}: got shape {[*scale.shape]}")
    if not bool((torch.isfinite(scale) & (scale >= 0)).all()):
        raise ValueError("scale must be finite and not negative")
    return integers.float() * scale.unsqueeze(1)


# --- 16 bits --------------------------------------------------------------------------------------


def round_to_half(tensor: Tensor, dtype: torch.dtype, uniform: Tensor | None = None) -> Tensor:
    """Return a tensor in 16 bits; numbers beyond the type's range become its largest.

    With u ~ U[0, 1) one of the two neighbours a ≤ v ≤ b in the type is taken, b with probability
    (v − a)/(b − a), so that the mean is v.

    Args:
        tensor: Finite numbers.
        dtype: ``torch.float16`` or ``torch.bfloat16``.
        uniform: u, of the tensor's shape; None rounds to the nearest.
    """
    v = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    v = v.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    near = v.to(dtype)
    if uniform is None:
        return near
    # The last number of the type that is not above v, and the next one.
    order = _in_order(near.view(torch.int16).int()) - (near.to(v.dtype) > v).int()
    a, b = (_in_order(place).to(torch.int16).view(dtype) for place in (order, order + 1))
    share = (v - a.to(v.dtype)) / (b.to(v.dtype) - a.to(v.dtype))
    return torch.where(uniform.to(v.dtype) < share, b, a)


def _in_order(bits: Tensor) -> Tensor:
    """Return bits of 16-bit numbers as integers that count upwards through both signs; and back."""
    return torch.where(bits < 0, torch.iinfo(torch.int16).min - bits, bits)
