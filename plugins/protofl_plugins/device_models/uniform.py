"""Uniform device model: devices of one kind, alike or within a range.

Each figure of a client is the option's value times s^u with u uniform in −1 … 1, drawn for each
client and figure apart (s: ``spread``), so that figures are spread evenly on a logarithmic scale.

The defaults are those of a laptop on a broadband line, see ``tiers``.
"""

from __future__ import annotations

import numpy as np

import protofl as pf
from protofl_plugins.device_models.availability import ComingAndGoing, comings_and_goings


class UniformDevices:
    """Devices of one kind, all alike or spread by a factor."""

    check_options = {"available": 0.7, "slot": 60}

    class Config(ComingAndGoing):
        """Options: --set devices.OPTION=VALUE."""

        gflops: float = pf.Field(
            70.0, ge=1e-9, le=1e12, description="billions of operations a second in training"
        )
        download: float = pf.Field(100.0, ge=1e-9, le=1e12, description="Mbit/s from the server")
        upload: float = pf.Field(20.0, ge=1e-9, le=1e12, description="Mbit/s to the server")
        latency: float = pf.Field(
            20.0, ge=0, le=1e9, description="milliseconds that a bit is under way, each way"
        )
        spread: float = pf.Field(
            1.0,
            ge=1,
            le=1e6,
            description="s: figures lie between a value/s and s times it; 1: all are alike",
        )

    @pf.hookimpl
    def device(self, generator: np.random.Generator, config: Config) -> dict[str, float]:
        """The options' figures, each with a factor of its own."""
        factors = config.spread ** generator.uniform(-1, 1, 4)
        return {
            "flops": 1e9 * config.gflops * float(factors[0]),
            "download": 1e6 * config.download * float(factors[1]),
            "upload": 1e6 * config.upload * float(factors[2]),
            "latency": 1e-3 * config.latency * float(factors[3]),
        }

    @pf.hookimpl
    def presence(
        self, num_clients: int, seconds: float, seed: int, config: Config
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return who is available in this slot, and for how long."""
        return comings_and_goings(num_clients, seconds, seed, config)
