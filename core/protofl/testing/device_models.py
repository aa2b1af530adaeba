"""Contract of device models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from protofl.errors import ProtoflError, UsageError
from protofl.federation.time.device_model import device_of, presence_of
from protofl.hooks.plugin.members import Choice
from protofl.system.randomness import numpy_stream
from protofl.testing.contract import Contract, expect, refusal, skip

MOMENTS = (0.0, 1.0, 59.5, 3600.0, 90_000.0, 1e7)
"""Seconds at which one asks who is there."""


class DeviceModelContract(Contract):
    """The checks of a device model: its devices, and who is there.

    Attributes:
        clients: Numbers of clients to try; those that the device model refuses are left out, and
            said so.
    """

    kind = "device-model"
    clients: ClassVar[tuple[int, ...]] = (1, 3, 40)

    def device(self, client: int, clients: int, choice: Choice | None = None) -> Mapping[str, Any]:
        """Return the device model's answer for a client."""
        result: Mapping[str, Any] = (choice or self.choice()).call(
            "device",
            client=client,
            num_clients=clients,
            seed=5,
            generator=numpy_stream(5, "world", client),
        )
        return result

    def presence(
        self, clients: int, seconds: float, choice: Choice | None = None
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the availability as a run reads it; None for all."""
        answer = (choice or self.choice()).call(
            "presence", num_clients=clients, seconds=seconds, seed=5
        )
        return presence_of(answer, clients, seconds)

    def taken(self) -> list[int]:
        """The numbers of clients that it does not refuse."""
        result, refused = [], []
        for clients in self.clients:
            try:
                self.device(0, clients)
            except UsageError as error:
                refused.append(f"{clients} clients: refused ({refusal(error)})")
            else:
                result.append(clients)
        if not result:
            skip("; ".join(refused))
        self.remarks += refused
        return result

    def test_every_client_has_a_device(self) -> None:
        """Every client has a speed, two bandwidths and a latency that can be."""
        for clients in self.taken():
            for client in range(clients):
                try:
                    device_of(self.device(client, clients))
                except ProtoflError as error:
                    expect(False, f"client {client} of {clients}: {refusal_of(error)}")

    def test_devices_follow_the_seed(self) -> None:
        """A client's device is the same whoever was asked before."""
        for clients in self.taken():
            choice = self.choice()
            forth = [self.device(c, clients, choice) for c in range(clients)]
            np.random.seed(1)
            back = [self.device(c, clients) for c in reversed(range(clients))]
            expect(forth == back[::-1], "a client's device is another the second time")

    def test_presence(self) -> None:
        """Availability lasts until the moment that the device model names, whenever it is asked."""
        if "presence" not in self.choice().hooks:
            skip("it has no presence: everybody always is there")
        for clients in self.taken():
            once = [self.presence(clients, seconds) for seconds in MOMENTS]
            again = [self.presence(clients, seconds) for seconds in reversed(MOMENTS)][::-1]
            for seconds, first, same in zip(MOMENTS, once, again, strict=True):
                expect((first is None) == (once[0] is None), "it is None at some moments alone")
                if first is None or same is None:
                    continue
                equal = all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
                expect(equal, f"at {seconds:g} s others are there the second time")
                there, until = first
                for client in range(clients):
                    end = until[client] if math.isfinite(until[client]) else seconds + 1e6
                    within = self.presence(clients, seconds + (end - seconds) * 0.97)
                    assert within is not None
                    expect(
                        bool(within[0][client] == there[client]),
                        f"client {client} changes before {until[client]:g} s, the moment that "
                        f"was named at {seconds:g} s",
                    )

    def test_it_keeps_nothing_on_itself(self) -> None:
        """The device model keeps nothing on self."""
        choice = self.choice()
        for clients in self.taken():
            self.device(0, clients, choice)
            self.presence(clients, 10.0, choice)
        kept = vars(choice.instance)
        expect(not kept, f"self holds {', '.join(kept)} after it was asked")


def refusal_of(error: ProtoflError) -> str:
    """An error in one line."""
    return " ".join(str(error).split())
