"""Payloads between server and clients: named tensors, as safetensors bytes.

Class-indexed tensors hold rows only for the classes that the sender has; the int tensor
``classes`` says which, or ``NAME.classes`` for a tensor NAME with rows of other classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from protofl.errors import MissingKey, RunFailure, WrongShape
from protofl.functional.precision import in_float64
from protofl.hooks.wire.keys import RUNTIME
from protofl.system.files.tensors import WIRE_TYPES, tensor_bytes, tensor_places
from protofl.system.transfers import (
    has_streams,
    keep_apart,
    onto,
    room_for,
    spread,
    staging,
    to_device,
)


class BadUpload(RunFailure):
    """A client's upload cannot be sent; with ``--on-bad-upload skip`` the client is left out."""


class Payload(dict[str, Tensor]):
    """A flat mapping from the wire's names to tensors.

    Attributes:
        version: Of an upload: the steps of the server before its download, which is the round's
            number if the run has rounds.
        staleness: Of an upload: the steps of the server between its download and this one.
    """

    holder = "the payload"
    version: int = 0
    staleness: int = 0

    _came: Mapping[str, tuple[Tensor, int, Tensor]] = MappingProxyType({})
    """{name: a tensor of whole numbers, its version, and its content in host memory}."""

    def __init__(self, tensors: Mapping[str, Tensor] | None = None, **named: Tensor) -> None:
        super().__init__({**(tensors or {}), **named})
        if isinstance(tensors, Payload):
            if tensors._came:
                self._came = tensors._came
            if tensors.version or tensors.staleness:
                self.version, self.staleness = tensors.version, tensors.staleness

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has too: its tensors are others, and their versions begin anew."""
        return {name: value for name, value in vars(self).items() if name != "_came"}

    def __missing__(self, key: str) -> Tensor:
        raise MissingKey(key, self.holder, self)

    def classes_of(self, name: str) -> Tensor:
        """Return the class of each row of the tensor ``name``, [n] int."""
        return self[self._classes_key(name)]

    def _classes_key(self, name: str) -> str:
        class_key = f"{name}.classes"
        return class_key if class_key in self.keys() else "classes"

    def is_table(self, name: str) -> bool:
        """Return True if the payload has a tensor with at most one row for each class."""
        there = name in self.keys()
        classes = on_host(self, self._classes_key(name)).tolist() if there else [0, 0]
        return len({*classes}) == len(classes)

    def has_class_rows(self, name: str) -> bool:
        """Return True if a tensor's rows belong to the classes that this payload names."""
        named = "classes" in self.keys() or f"{name}.classes" in self.keys()
        return named and class_indexed(name, self[name], self.classes_of(name))

    def rows(self, name: str, width: int | None = None) -> tuple[Tensor, Tensor]:
        """Return a class-indexed tensor as it was sent.

        Args:
            name: A tensor [n, …] whose rows belong to ``classes_of(name)``.
            width: The required width of its rows, [n, width]; None for any.

        Returns:
            The rows [n, …], and the class of each, [n].

        Raises:
            MissingKey: The payload has no such tensor.
            WrongShape: Its rows have another width, or their number differs from the classes'.
        """
        rows = self[name]
        if width is not None and rows.shape[1:] != (width,):
            raise WrongShape(name, rows.shape, f"rows of width {width} are wanted", self.holder)
        classes = self.classes_of(name)
        if classes.shape != rows.shape[:1]:
            mismatch = f"and the classes of its rows in shape {list(classes.shape)}"
            raise WrongShape(name, rows.shape, mismatch, self.holder)
        return rows, classes

    def table(self, name: str, num_classes: int, width: int | None = None) -> tuple[Tensor, Tensor]:
        """Return a class-indexed tensor with a row for every class.

        Args:
            name: A tensor [n, …] whose rows belong to ``classes_of(name)``.
            num_classes: C.
            width: The required width of its rows; None for any.

        Returns:
            The dense tensor [C, …], zero for classes without a row, and the mask ``known`` [C].

        Raises:
            MissingKey: The payload has no such tensor.
            WrongShape: Its rows have another width, or a class has several rows.
        """
        rows, classes = self.rows(name, width)
        if not self.is_table(name):
            mismatch = "a table has one row for each class; read several with rows()"
            raise WrongShape(name, rows.shape, mismatch, self.holder)
        dense = rows.new_zeros((num_classes, *rows.shape[1:]))
        known = torch.zeros(num_classes, dtype=torch.bool, device=rows.device)
        return dense.index_copy(0, classes, rows), known.index_fill(0, classes, True)

    def select(self, *names: str) -> Payload:
        """Select the named tensors that exist, with the classes of their rows.

        ``head/*`` selects all names that begin with ``head/``.
        """
        starts = tuple(name[:-1] for name in names if name.endswith("*"))
        weights = {k: v for k, v in self.items() if starts and k.startswith(starts)}
        keys = [k for n in names for k in (n, f"{n}.classes") if k in self.keys()]
        chosen = Payload({k: self[k] for k in keys})
        bare = [n for n in names if n in chosen.keys() and f"{n}.classes" not in chosen.keys()]
        if bare and "classes" in self.keys():
            chosen["classes"] = self["classes"]
        result = Payload(weights | chosen)
        result.holder, result._came = self.holder, self._came
        return result

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors named ``PREFIX/*`` without the prefix."""
        start = prefix + "/"
        return {key[len(start) :]: value for key, value in self.items() if key.startswith(start)}

    @property
    def floats(self) -> int:
        """Elements of floating-point tensors; buffers (BatchNorm statistics) do not count."""
        return sum(
            tensor.numel()
            for key, tensor in self.items()
            if tensor.is_floating_point() and "/buffer/" not in key
        )

    def nonfinite(self, bound: float = math.inf) -> str | None:
        """Return the name of a tensor that holds NaN, infinity or |x| above a bound, or None."""
        names = [k for k, tensor in self.items() if tensor.is_floating_point() and tensor.numel()]
        if not names:
            return None
        if has_streams(self[names[0]].device):
            # Few kernels for all tensors of a type; which one it is matters only if one is bad.
            types = {self[key].dtype: list[Tensor]() for key in names}
            for key in names:
                types[self[key].dtype].append(self[key].reshape(-1))
            if all(_within(map(torch.cat, types.values()), bound)):
                return None
        fine = _within((self[key] for key in names), bound)
        return next((key for key, good in zip(names, fine, strict=True) if not good), None)

    def to_bytes(self, about: Mapping[str, str] | None = None) -> bytes:
        """Return the bytes on the wire with optional metadata; an empty payload is 0 bytes."""
        return tensor_bytes(self, about) if self else b""

    @classmethod
    def from_bytes(cls, data: bytes, device: torch.device | str = "cpu") -> Payload:
        """Read the bytes that `to_bytes` wrote.

        Raises:
            RunFailure: The bytes are damaged.
        """
        if not data:
            return cls()
        if torch.device(device).type != "cpu":
            return cls(PayloadOnDevice(data, torch.device(device)).payload())
        try:
            tensors = safetensors.torch.load(data)
        except safetensors.SafetensorError as error:
            raise RunFailure(f"{len(data)} bytes are not a payload: {error}") from error
        return cls(dict(sorted(tensors.items())))


class PayloadOnDevice:
    """The bytes of a payload on a device: copied there once, unpacked as often as wanted.

    Args:
        data: The bytes that `Payload.to_bytes` wrote.
        device: The device.

    Attributes:
        data: The bytes.

    Raises:
        RunFailure: The bytes are damaged.
    """

    def __init__(self, data: bytes, device: torch.device) -> None:
        self.data = data
        try:
            places = sorted(tensor_places(data).items())
        except ValueError as error:
            raise RunFailure(f"{len(data)} bytes are not a payload: {error}") from error
        self._like = {
            name: torch.empty(entry.shape, dtype=_FROM_WIRE[entry.dtype], device="meta")
            for name, (entry, _) in places
        }
        host = staging(room_for(self._like.values()), device)
        for here, (_, (_, (start, end))) in zip(
            spread(host, self._like).values(), places, strict=True
        ):
            here.view(-1).view(torch.uint8).numpy()[:] = np.frombuffer(
                data, np.uint8, end - start, start
            )
        self._host = _whole_numbers(spread(host, self._like))
        self._buffer = onto(host, device)

    def payload(self, *, again: bool = False) -> Payload:
        """Return the payload, whose tensors are parts of one piece of memory.

        Args:
            again: Whether it is to be unpacked again: then the payload gets a copy of the memory,
                since hooks may write into what they are given.
        """
        buffer = self._buffer.clone() if again else self._buffer
        return _with_host(Payload(spread(buffer, self._like)), self._host)


def moved(payload: Payload, device: torch.device) -> Payload:
    """Return a payload in host memory on a device, copied there in one piece."""
    if device.type == "cpu":
        return Payload({name: tensor.to(device) for name, tensor in payload.items()})
    return _with_host(Payload(to_device(payload, device)), _whole_numbers(payload))


def on_host(payload: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a tensor in host memory, to read it.

    The program waits for a device only if the tensor has not come in bytes, or was changed.
    """
    tensor = payload[name]
    if tensor.device.type != "cpu" and isinstance(payload, Payload) and name in payload._came:
        same, version, content = payload._came[name]
        if same is tensor and version == tensor._version:
            return content
    return tensor.cpu()


def _whole_numbers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of the classes and counts among tensors in host memory."""
    return {
        name: tensor.clone()
        for name, tensor in tensors.items()
        if tensor.dtype == torch.int64 and tensor.dim() < 2 and "/" not in name
    }


def _with_host(payload: Payload, host: Mapping[str, Tensor]) -> Payload:
    payload._came = {n: (payload[n], payload[n]._version, content) for n, content in host.items()}
    return payload


_FROM_WIRE = {name: dtype for dtype, name in WIRE_TYPES.items()}


def class_indexed(name: str, tensor: Tensor, classes: Tensor) -> bool:
    """Return True if a tensor's rows belong to classes.

    The runtime's own keys say so. A tensor of another name counts if it has a row for every class
    of ``classes``, and its name is neither ``PREFIX/NAME`` nor starts with ``public_``.
    """
    known = RUNTIME.find(name)
    if known is not None:
        return known.by_class
    plain = "/" not in name and not name.endswith(".classes") and tensor.dim() > 0
    return plain and not name.startswith("public_") and len(tensor) == len(classes)


def _within(tensors: Iterable[Tensor], bound: float) -> list[bool]:
    """Return whether all numbers of each tensor are finite and at most a bound."""
    # One pass without a mask (a NaN anywhere makes both bounds NaN), and one wait for a device.
    bounds = torch.stack([_extremes(tensor) for tensor in tensors])
    fine: list[bool] = (torch.isfinite(bounds) & (bounds.abs() <= bound)).all(1).tolist()
    return fine


def _extremes(tensor: Tensor) -> Tensor:
    """Return the smallest and the largest number of a tensor."""
    wide = tensor.float() if tensor.element_size() == 1 else tensor  # float8 has no order
    return in_float64(torch.stack(torch.aminmax(wide)))


Uploads: TypeAlias = Mapping[int, Payload]
"""The uploads of a round, {client id: payload}, in ascending client id."""


def class_rows(known: Tensor, **tables: Tensor) -> Payload:
    """Return class-indexed tensors to send: the rows of the known classes, and ``classes``.

    Args:
        known: Mask [C] of the classes to send.
        **tables: Dense tensors [C, …] by their names on the wire.
    """
    classes = known.nonzero().squeeze(1)
    return Payload({name: table[classes] for name, table in tables.items()}, classes=classes)


def stack_rows(
    uploads: Mapping[int, Payload], name: str, num_classes: int, width: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return a class-indexed tensor of all uploads, with a row for every client and class.

    Args:
        uploads: {client id: payload} of M clients.
        name: The tensor's name on the wire.
        num_classes: C.
        width: The required width of the rows; None for any.

    Returns:
        The stacked tensor [M, C, …], zero for rows that were not sent, and the mask of sent
        rows, [M, C] bool.

    Raises:
        MissingKey: An upload has no such tensor.
        WrongShape: Its rows have another width, or a class has several rows.
    """
    tables = [upload.table(name, num_classes, width) for upload in uploads.values()]
    return torch.stack([t for t, _ in tables]), torch.stack([known for _, known in tables])


class GlobalState(Payload):
    """The server's global state by wire names; results of server hooks are merged into it."""

    holder = "the server's global state"

    def merge(self, update: Mapping[str, Tensor]) -> None:
        """Merge the changes that a server hook returned.

        If ``classes`` changes, tensors that stay keep the classes of their rows under
        ``NAME.classes``, so the class of every row is always known.
        """
        old, new = self.get("classes"), update.get("classes")
        if new is not None and old is not None and not torch.equal(old, new):
            for name in [n for n in self if n not in update and class_indexed(n, self[n], old)]:
                self.setdefault(f"{name}.classes", old)
        for name in update:
            class_key = f"{name}.classes"
            if class_key in self.keys() and class_key not in update:
                del self[class_key]  # its rows are those of the update's own ``classes`` now
        self.update(keep_apart({**update}))


def weight_views(module: nn.Module, prefix: str, *, buffers: bool = True) -> dict[str, Tensor]:
    """Return a module's parameters and buffers by wire names, without copies."""
    named: dict[str, Tensor] = {f"{prefix}/{name}": p for name, p in module.named_parameters()}
    if buffers:
        named |= {f"{prefix}/buffer/{name}": b for name, b in module.named_buffers()}
    return {name: tensor.detach() for name, tensor in named.items()}
