"""Samples on a device: each tensor is copied there once, for all plans of a run."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from protofl.system.transfers import size_of


class Resident:
    """Tensors of data sets on a device, in their own type.

    A run makes several plans (its dry run, the check of an engine, other choices), which share it.

    Attributes:
        left_out: Bytes of samples for which the device had no room, and the room that it had.
    """

    def __init__(self) -> None:
        self.left_out: tuple[int, int] | None = None
        self._there: dict[int, tuple[weakref.ref[Tensor], Tensor | None]] = {}

    @property
    def size(self) -> int:
        """Bytes on the device."""
        return size_of(there for _, there in self._there.values() if there is not None)

    def of(
        self, tensor: Tensor, device: torch.device, room: Callable[[], int] | None = None
    ) -> Tensor:
        """Return a tensor on the device; the tensor itself if the device has no room for it.

        Args:
            tensor: The tensor, in host memory.
            device: The device.
            room: Returns the bytes that it may take; None for any number.
        """
        if tensor.device == device or device.type == "cpu":
            return tensor.to(device)
        original, copy = self._there.get(id(tensor), (None, None))
        if original is None or original() is not tensor:
            gone = [key for key, (original, _) in self._there.items() if original() is None]
            for key in gone:
                del self._there[key]
            size, most = size_of([tensor]), None if room is None else room()
            fits = most is None or size <= most
            if most is not None and not fits:
                self.left_out = size, most
            copy = tensor.to(device) if fits else None
            self._there[id(tensor)] = weakref.ref(tensor), copy
        return tensor if copy is None else copy
