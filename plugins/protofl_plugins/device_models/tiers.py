"""Tiers: phones, laptops and servers, which also differ within a tier.

======  ==========  ========  ========  =======  ==================================================
tier    in training download  upload    latency  where the figures are from
======  ==========  ========  ========  =======  ==================================================
phone   10 GFLOP/s  6 Mbit/s  2 Mbit/s  50 ms    Wang et al., "A Field Guide to Federated
                                                 Optimization" (arXiv 2107.06917), whose cost model
                                                 estimates 0.75 MB/s down and 0.25 MB/s up for
                                                 phones in production, and computing about seven
                                                 times slower than a developer's machine
laptop  70 GFLOP/s  100       20        20 ms    seven phones; the benchmark for broadband of the
                                                 US's FCC since March 2024
server  4 TFLOP/s   1000      1000      2 ms     half the peak of an NVIDIA T4 (8.1 TFLOP/s in
                                                 float32, data sheet); a Gbit/s line
======  ==========  ========  ========  =======  ==================================================

The bandwidths of phones and laptops are those of their sources. The others are round numbers of the
right order: what a device computes a second in training depends on the network more than on its
data sheet. Measured devices can be given with ``trace:FILE``.

A client's tier is drawn by the weights; its speed and its two bandwidths are the tier's times
exp(σ·z), with z a standard normal draw of each figure's own (σ: ``spread``).
"""

from __future__ import annotations

import numpy as np

import protofl as pf
from protofl_plugins.device_models.availability import ComingAndGoing, comings_and_goings

TIERS = {
    "phones": (10e9, 6e6, 2e6, 0.050),
    "laptops": (70e9, 100e6, 20e6, 0.020),
    "servers": (4e12, 1000e6, 1000e6, 0.002),
}
"""Operations a second, bits a second down and up, seconds of latency."""


class Tiers:
    """Phones, laptops and servers."""

    check_options = {"available": 0.7, "slot": 60}

    class Config(ComingAndGoing):
        """Options: --set devices.OPTION=VALUE."""

        phones: float = pf.Field(6.0, ge=0, le=1e9, description="weight of phones; 0: none")
        laptops: float = pf.Field(3.0, ge=0, le=1e9, description="weight of laptops; 0: none")
        servers: float = pf.Field(1.0, ge=0, le=1e9, description="weight of servers; 0: none")
        spread: float = pf.Field(
            0.5,
            ge=0,
            le=5,
            description="σ of the logarithms within a tier; 0: all of a tier are alike",
        )

    @pf.hookimpl
    def device(self, generator: np.random.Generator, config: Config) -> dict[str, float]:
        """Draw the tier, then how far the client is from it."""
        weights = np.array([config.phones, config.laptops, config.servers])
        if not weights.sum():
            raise pf.UsageError("tiers: all weights are 0", do="give one to a tier")
        tier = [*TIERS][int(generator.choice(len(TIERS), p=weights / weights.sum()))]
        speed, down, up = np.exp(config.spread * generator.standard_normal(3))
        flops, download, upload, latency = TIERS[tier]
        return {
            "flops": flops * float(speed),
            "download": download * float(down),
            "upload": upload * float(up),
            "latency": latency,
        }

    @pf.hookimpl
    def presence(
        self, num_clients: int, seconds: float, seed: int, config: Config
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return who is available in this slot, and for how long."""
        return comings_and_goings(num_clients, seconds, seed, config)
