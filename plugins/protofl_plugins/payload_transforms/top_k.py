"""Top-k: only the largest numbers of a tensor are sent, with their positions.

Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; the equations
are those of Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018:

    sent    Top_k(v)_j = v_j where |v_j| is among the k largest, else 0          (Def. 2.1)
    with memory (``error_feedback``)
    sent    g = Top_k(m + v)                                                     (Alg. 1, line 4)
    memory  m ← m + v − g                                                        (Alg. 1, line 6)

On the wire: the k numbers under the tensor's own name, and their places as ``NAME.indices`` in the
smallest integer type. The receiver sees zeros elsewhere. A tensor that would not become smaller is
sent whole.

**Rows.** With ``per=row`` a tensor by class, or of public samples, keeps the k largest of *each
row*, so that no class is without numbers; weights (``PART/*``) keep the k largest of *each tensor*.
With ``per=tensor`` all are taken whole.

**Memory** is the sender's, a client's, of uploads alone: of tensors by class a row for each class,
so that it stays with its class where others come and go, and else one for each row of the tensor.
It is meant for what adds up over the rounds, gradients and updates. Of what is sent anew each
round, such as prototypes and weights, it sends what was left out before later, and larger.
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


class TopK(Coded):
    """Sends the k largest numbers of each row, or tensor, and their places (Stich et al., 2018)."""

    encodes = {"indices": "the places of the numbers that are sent, ascending in each row"}

    class Config(CodingConfig):
        """Options."""

        share: float = pf.Field(
            0.1, gt=0, le=1, description="k as a share of the numbers; 1 sends all, and no places"
        )
        count: int = pf.Field(0, ge=0, description="k itself; 0 for the share")
        per: Literal["row", "tensor"] = pf.Field(
            "row", description="k of each row of a tensor by class or public sample, or of it whole"
        )
        error_feedback: bool = pf.Field(
            False, description="keep what was not sent, and add it to the next upload"
        )

    @staticmethod
    def encoded(
        payload: pf.Payload,
        config: Config,
        generator: torch.Generator,
        state: dict[str, Any] | None,
    ) -> pf.Payload:
        """Return Top_k(v), or Top_k(m + v)."""
        sent, memory = pf.Payload(payload), state if config.error_feedback else None
        for name, tensor in payload.items():
            k = _kept(name, tensor, config)
            if not k:
                continue
            v = tensor if memory is None else tensor + _memory(memory, name, payload)
            sent[name], places = largest_entries(_rows(name, v, config), k)
            put_beside(sent, f"{name}.indices", places)
            if memory is not None:
                left = v - _dense(sent[name], places, v, name, config)
                _remember(memory, name, payload, left)
        return sent

    @staticmethod
    def decoded(payload: pf.Payload, form: pf.Payload, config: Config) -> pf.Payload:
        """Return the entries at their places, and zeros elsewhere."""
        encoded = {name: k for name, whole in form.items() if (k := _kept(name, whole, config))}
        result = checked_names(payload, form, {f"{name}.indices" for name in encoded})
        for name, k in encoded.items():
            entries, whole = payload[name], form[name]
            rows = len(_rows(name, whole, config))
            if entries.shape != (rows, k) or entries.dtype != whole.dtype:
                raise ValueError(f"{name!r} must be {[rows, k]} of {whole.dtype}")
            result[name] = _dense(entries, payload[f"{name}.indices"], whole, name, config)
        return result


def _rows(name: str, tensor: Tensor, config: TopK.Config) -> Tensor:
    return in_rows(tensor, by_row=config.per == "row" and "/" not in name)


def _kept(name: str, tensor: Tensor, config: TopK.Config) -> int:
    """Return the k of a tensor, which its form determines; 0 if it is sent whole."""
    if not is_chosen(name, tensor, config):
        return 0
    length = _rows(name, tensor, config).shape[1]
    k = min(config.count or max(1, round(config.share * length)), length)
    size = tensor.element_size()
    return k if k * (size + index_type(length).itemsize) < length * size else 0


def _dense(
    entries: Tensor, places: Tensor, whole: Tensor, name: str, config: TopK.Config
) -> Tensor:
    length = _rows(name, whole, config).shape[1]
    return with_entries(entries, places, length).reshape(whole.shape)


# --- the largest entries --------------------------------------------------------------------------


def largest_entries(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the entries of each row that are largest in size: Top_k, Def. 2.1.

    ‖v − Top_k(v)‖² ≤ (1 − k/d)·‖v‖². Of equal sizes, any may be taken.

    Args:
        rows: [N, d].
        count: k, from 1 to d.

    Returns:
        The entries [N, k] and their places [N, k], ascending in each row, in `index_type` of d.
    """
    places = rows.abs().topk(count, dim=1, sorted=False).indices.sort(dim=1).values
    return rows.gather(1, places), places.to(index_type(rows.shape[1]))


def with_entries(entries: Tensor, places: Tensor, length: int) -> Tensor:
    """Return rows [N, d] that hold entries at their places and zero elsewhere.

    Args:
        entries: [N, k].
        places: [N, k], as they were received.
        length: d.

    Raises:
        ValueError: The shapes differ, the type of the places is not `index_type` of d, or they do
            not ascend from 0 to d−1.
    """
    if places.shape != entries.shape:
        raise ValueError(f"places must be {[*entries.shape]}: got shape {[*places.shape]}")
    if places.dtype != index_type(length):
        raise ValueError(f"places must be {index_type(length)}: got {places.dtype}")
    at = places.long()
    if at.numel():
        low, high = int(at.min()), int(at.max())
        if low < 0 or high >= length:
            wrong = low if low < 0 else high
            raise ValueError(f"places must be from 0 to {length - 1}: got {wrong}")
        if bool((at[:, 1:] <= at[:, :-1]).any()):
            raise ValueError("places must ascend in each row")
    return entries.new_zeros(len(entries), length).scatter(1, at, entries)


def index_type(length: int) -> torch.dtype:
    """Return the smallest integer type for 0…length−1, of those that torch computes with.

    Args:
        length: How many numbers there are.

    Returns:
        uint8, int16, int32 or int64.
    """
    sizes = {torch.uint8: 1 << 8, torch.int16: 1 << 15, torch.int32: 1 << 31}
    return next((dtype for dtype, end in sizes.items() if length <= end), torch.int64)


# --- what was not sent ----------------------------------------------------------------------------


def _keys(name: str, payload: pf.Payload) -> Tensor:
    """Return keys of a tensor's rows that are stable over rounds: classes, or row numbers."""
    rows = len(payload[name])
    names = ["public_index"] if name.startswith("public_") else [f"{name}.classes", "classes"]
    whose = [payload[key] for key in names if key in payload and "/" not in name]
    if whose and whose[0].shape == (rows,) and len({*whose[0].tolist()}) == rows:
        return whose[0]
    return torch.arange(rows, device=payload[name].device)


def _memory(state: dict[str, Any], name: str, payload: pf.Payload) -> Tensor:
    """Return the memory m of a tensor, in its shape; zero for new rows."""
    tensor, result = payload[name], torch.zeros_like(payload[name])
    kept = state.get(name)
    if kept is not None and kept["left"].shape[1:] == tensor.shape[1:]:
        here, there = (_keys(name, payload).unsqueeze(1) == kept["keys"]).nonzero(as_tuple=True)
        result[here] = kept["left"][there]
    return result


def _remember(state: dict[str, Any], name: str, payload: pf.Payload, left: Tensor) -> None:
    """Store the new memory m + v − g; rows that are not sent this time keep theirs."""
    keys, kept = _keys(name, payload), state.get(name)
    if kept is not None and kept["left"].shape[1:] == left.shape[1:]:
        others = ~torch.isin(kept["keys"], keys)
        keys = torch.cat([keys, kept["keys"][others]])
        left = torch.cat([left, kept["left"][others]])
    state[name] = {"keys": keys, "left": left}
