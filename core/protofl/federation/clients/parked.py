"""A client's weights and state in host memory, beside a device that computes in streams.

The tensors of a client are copied in one piece each way, through pinned memory, on streams of their
own. So the device trains one client while the last one leaves and the next one comes.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from protofl.hooks.views.client_state import ClientState
from protofl.system.files.tensors import Packed
from protofl.system.transfers import free_memory, gathered, has_streams, module_of, pinned, spread


class CopyStreams:
    """The streams on which clients come to a device and leave it.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._made: dict[str, Any] = {}

    def __getitem__(self, way: str) -> Any:  # noqa: ANN401 - a stream of a device's module
        if way not in self._made:
            self._made[way] = module_of(self.device).Stream(device=self.device)
        return self._made[way]

    @property
    def current(self) -> Any:  # noqa: ANN401 - a stream of a device's module
        """The stream on which the program launches."""
        return module_of(self.device).current_stream(self.device)


class Parked:
    """A packed client in host memory.

    Args:
        packed: The client; its tensors are copied.
        streams: Those of the clients' device; None where there are none. The copy is in order with
            what the program has launched, and nothing waits for it.
    """

    def __init__(self, packed: Packed, streams: CopyStreams | None = None) -> None:
        tensors, self.header = packed
        self._streams, self._order = streams, [*tensors]
        self._like: dict[str, Tensor] = {}
        if streams is not None and has_streams(streams.device):
            self._like = {k: t for k, t in tensors.items() if t.device.type == streams.device.type}
        self._rest = {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in tensors.items()
            if name not in self._like
        }
        self._buffer, self._arrived = torch.empty(0, dtype=torch.uint8), None
        if self._like:
            assert streams is not None
            self._leave(streams)
            self._like = {
                name: torch.empty_like(tensor, device="meta").contiguous()
                for name, tensor in self._like.items()
            }

    def _leave(self, streams: CopyStreams) -> None:
        """Start the copy to host memory."""
        module, out = module_of(streams.device), streams["out"]
        piece = gathered(self._like)
        self._buffer = pinned(piece, streams.device)
        out.wait_stream(streams.current)
        with module.stream(out):
            self._buffer.copy_(piece, non_blocking=True)
            piece.record_stream(out)  # its memory is free when the copy is done
            self._arrived = out.record_event()

    @property
    def size(self) -> int:
        """Bytes on the device."""
        return self._buffer.numel()

    def packed(self) -> Packed:
        """Return the client, in host memory; waits until it is there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        tensors = {**self._rest, **spread(self._buffer, self._like)}
        return {name: tensors[name] for name in self._order}, self.header

    def fetched(self) -> Fetched | None:
        """Start the copy to the device while it computes; None if its memory is full."""
        if not self._like:
            return Fetched(self, None, None)
        streams = self._streams
        assert streams is not None
        stream = streams["in"]
        if self._arrived is not None:
            stream.wait_event(self._arrived)
        with suppress(torch.OutOfMemoryError), module_of(streams.device).stream(stream):
            piece = self._buffer.to(streams.device, non_blocking=True)
            return Fetched(self, piece, stream.record_event())
        return None


class Fetched:
    """A parked client on its way to the device.

    Args:
        parked: The client.
        piece: Its tensors on the device, in one buffer.
        arrived: An event after the copy.
    """

    def __init__(self, parked: Parked, piece: Tensor | None, arrived: Any) -> None:  # noqa: ANN401
        self.parked, self._piece, self._arrived = parked, piece, arrived

    def packed(self) -> Packed:
        """Return the client's tensors on the device, for the stream on which the program launches.

        What is launched from here on waits for the copy; the program does not.
        """
        parked, there = self.parked, dict[str, Tensor]()
        if self._piece is not None:
            assert parked._streams is not None
            current = parked._streams.current
            current.wait_event(self._arrived)
            self._piece.record_stream(current)  # made for another stream
            there = spread(self._piece, parked._like)
        tensors = {**parked._rest, **there}
        return {name: tensors[name] for name in parked._order}, parked.header


class Beside:
    """Clients that stay on a device with streams beside their copy in host memory or a file.

    Who is there first stays, as clients come in turns and the oldest would always go just before it
    is needed. Those that a stage does not need make room for those that it does.

    Args:
        device: The device.
        sharers: Hosts that use the device, each of which takes its share.
    """

    def __init__(self, device: torch.device, sharers: int) -> None:
        self._device, self._sharers = device, sharers
        self._there: dict[int, tuple[ClientState, int]] = {}
        self._needed: frozenset[int] | None = None  # not known

    def expect(self, clients: Collection[int]) -> None:
        """Note the clients of the next stage."""
        self._needed = frozenset(clients)

    def get(self, client: int) -> ClientState | None:
        """Return a client that is there."""
        return self._there[client][0] if client in self._there else None

    def take(self, client: int) -> ClientState | None:
        """Remove and return a client that is there."""
        return self._there.pop(client, (None, 0))[0]

    def offer(self, client: int, state: ClientState, size: int) -> bool:
        """Keep a client of some bytes if there is room; returns whether it is kept."""
        if not self._fits(size) and self._needed is not None:
            for other in [*self._there.keys() - self._needed]:
                del self._there[other]
        if not self._fits(size):
            return False
        self._there[client] = state, size
        return True

    def _fits(self, size: int) -> bool:
        held = sum(size for _, size in self._there.values())
        # The new one has its memory already.
        return held + size <= (free_memory(self._device) + held + size) // (2 * self._sharers)

    def clear(self) -> None:
        """Forget all."""
        self._there.clear()
