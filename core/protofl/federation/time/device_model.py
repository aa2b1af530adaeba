"""Devices of clients in virtual time, as a plugin defines them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from protofl.errors import RunFailure, error_context
from protofl.federation.plan.plan import Plan
from protofl.system.randomness import numpy_stream

FIGURES = ("flops", "download", "upload", "latency")
"""The figures of a device."""

RETURN = "return two arrays [M]: who is there (bool), and until when (float); or None"

WAITS = 100_000
"""Number of changes of availability for which a server waits for enough clients."""


@dataclass(frozen=True)
class Device:
    """The device of a client.

    Attributes:
        flops: Floating-point operations a second in training.
        download: Bits a second from the server.
        upload: Bits a second to the server.
        latency: Seconds that a bit is under way, each way.
    """

    flops: float
    download: float
    upload: float
    latency: float

    def seconds_down(self, size: int) -> float:
        """Return the seconds of a download of some bytes."""
        return self.latency + 8 * size / self.download

    def seconds_up(self, size: int) -> float:
        """Return the seconds of an upload of some bytes."""
        return self.latency + 8 * size / self.upload

    def seconds_of(self, flops: int) -> float:
        """Return the seconds of a number of floating-point operations."""
        return flops / self.flops


@dataclass(frozen=True)
class Moment:
    """The start of a round, and the clients that are available then.

    Attributes:
        seconds: The moment.
        clients: Those who are there, ascending; None for all.
        until: When each client [M] leaves; None if no client does.
    """

    seconds: float
    clients: np.ndarray | None = None
    until: np.ndarray | None = None

    def stays(self, client: int) -> float:
        """Return the seconds until a client leaves."""
        return math.inf if self.until is None else float(self.until[client]) - self.seconds


class DeviceModel:
    """The devices of a run's clients.

    Args:
        plan: The run.
    """

    def __init__(self, plan: Plan) -> None:
        self._choice, self._plan = plan.choices["device-model"], plan
        self.start(0)
        self.comes_and_goes = self._presence(0.0) is not None
        """True if clients may be away."""

    def start(self, trial: int) -> None:
        """Start a trial with the devices of its seed."""
        self._seed = self._plan.seed(trial)
        self._devices: dict[int, Device] = {}

    def device(self, client: int) -> Device:
        """Return a client's device.

        Raises:
            RunFailure: What the plugin gives is none.
        """
        if client not in self._devices:
            with error_context(f"device of device-model/{self._choice.name}, client {client}"):
                figures = self._choice.call(
                    "device",
                    client=client,
                    num_clients=self._plan.info.num_clients,
                    seed=self._seed,
                    generator=numpy_stream(self._seed, "world", client),
                )
                self._devices[client] = device_of(figures)
        return self._devices[client]

    def wait(self, seconds: float, least: int, among: np.ndarray | None = None) -> Moment:
        """Return the first moment after ``seconds`` at which enough clients are available.

        Args:
            seconds: The moment.
            least: How many.
            among: The clients of whom they are, ascending; None for all.

        Raises:
            RunFailure: There is none.
        """
        now, clients = seconds, np.arange(0)
        for _ in range(WAITS):
            presence = self._presence(now)
            if presence is None:
                return Moment(now, among)
            there, until = presence
            clients = np.flatnonzero(there)
            if among is not None:
                clients = np.intersect1d(clients, among, assume_unique=True)
            if len(clients) >= least:
                return Moment(now, clients, until)
            now = float(until.min(initial=math.inf))
            if now == math.inf:
                break
        raise RunFailure(
            f"device-model/{self._choice.name}: {len(clients)} of "
            f"{self._plan.info.num_clients} clients "
            f"are there from {seconds:g} s on, and a round needs {least}",
            do="take a device model in which clients come back, or lower --min-clients",
        )

    def at(self, seconds: float) -> Moment:
        """Return a moment, with the clients that are available then."""
        presence = self._presence(seconds)
        if presence is None:
            return Moment(seconds)
        there, until = presence
        return Moment(seconds, np.flatnonzero(there), until)

    def _presence(self, seconds: float) -> tuple[np.ndarray, np.ndarray] | None:
        """Return who is there, and until when; None if everybody always is."""
        count = self._plan.info.num_clients
        with error_context(f"presence of device-model/{self._choice.name}, {seconds:g} s"):
            presence = self._choice.call(
                "presence", num_clients=count, seconds=seconds, seed=self._seed
            )
            return presence_of(presence, count, seconds)


def presence_of(
    presence: Any,  # noqa: ANN401 - it may be anything
    clients: int,
    seconds: float,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Check the availability that a plugin returns: who is there and until when; None for all.

    Args:
        presence: What its hook returns.
        clients: Clients M.
        seconds: The moment.

    Raises:
        RunFailure: These are no such arrays, or something changes that is past.
    """
    if presence is None:
        return None
    if not (isinstance(presence, (tuple, list)) and len(presence) == 2):
        raise RunFailure(f"it returns {type(presence).__name__}, not two arrays", do=RETURN)
    there, until = map(np.asarray, presence)
    if there.shape != (clients,) or there.dtype != bool or until.shape != (clients,):
        raise RunFailure(
            f"it returns {there.dtype} {list(there.shape)} and {list(until.shape)}",
            f"there are {clients} clients",
            RETURN,
        )
    if not (until > seconds).all():
        client = int(np.flatnonzero(~(until > seconds))[0])
        raise RunFailure(
            f"client {client} is to change at {until[client]:g} s, which is not after "
            f"{seconds:g} s",
            do="return the next moment at which a client comes or leaves; inf for never",
        )
    return there, until


def device_of(figures: Any) -> Device:  # noqa: ANN401 - it may be anything
    """Check the device that a plugin returns.

    Raises:
        RunFailure: A figure is missing, is none of a device, or can't be.
    """
    if not isinstance(figures, Mapping) or {*figures} != {*FIGURES}:
        had = (
            ", ".join(map(str, figures)) if isinstance(figures, Mapping) else type(figures).__name__
        )
        raise RunFailure(f"it returns {had}", do=f"return a mapping of {', '.join(FIGURES)}")
    for name in FIGURES:
        value = figures[name]
        real = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        # Within these limits every round has a finite length.
        least, most = (0, 1e15) if name == "latency" else (1e-12, 1e30)
        if not real or not least <= value <= most:
            raise RunFailure(f"{name} is {value!r}", do=f"return a number, {least:g} … {most:g}")
    return Device(**{name: float(figures[name]) for name in FIGURES})
