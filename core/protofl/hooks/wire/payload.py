"""Payloads between server and clients: named tensors, as safetensors bytes.

Class-indexed tensors hold rows only for the classes that the sender has; the int tensor
``classes`` says which, or ``NAME.classes`` for a tensor NAME with rows of other classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from protofl.errors import MissingKey, RunFailure, WrongShape
from protofl.functional.precision import in_float64
from protofl.hooks.wire.keys import RUNTIME
from protofl.system.files.tensors import tensor_bytes


class BadUpload(RunFailure):
    """A client's upload cannot be sent; with ``--on-bad-upload skip`` the client is left out."""


class Payload(dict[str, Tensor]):
    """A flat mapping from the wire's names to tensors."""

    holder = "the payload"

    def __init__(self, tensors: Mapping[str, Tensor] | None = None, **named: Tensor) -> None:
        super().__init__({**(tensors or {}), **named})

    def __missing__(self, key: str) -> Tensor:
        raise MissingKey(key, self.holder, self)

    def classes_of(self, name: str) -> Tensor:
        """Return the class of each row of the tensor ``name``, [n] int."""
        class_key = f"{name}.classes"
        return self[class_key] if class_key in self.keys() else self["classes"]

    def is_table(self, name: str) -> bool:
        """Return True if the payload has a tensor with at most one row for each class."""
        classes = self.classes_of(name).tolist() if name in self.keys() else [0, 0]
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
        result.holder = self.holder
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
        # One pass without a mask (a NaN anywhere makes both bounds NaN), and one wait for a device.
        bounds = torch.stack([_extremes(self[key]) for key in names])
        fine = (torch.isfinite(bounds) & (bounds.abs() <= bound)).all(1).tolist()
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
        try:
            tensors = safetensors.torch.load(data)
        except safetensors.SafetensorError as error:
            raise RunFailure(f"{len(data)} bytes are not a payload: {error}") from error
        return cls({k: v.to(device) for k, v in sorted(tensors.items())})


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
        self.update(update)
