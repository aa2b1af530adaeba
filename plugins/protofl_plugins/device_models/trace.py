"""Traces: devices from a CSV file, measured or from another simulator.

The first line names the columns, in any order. Empty lines and lines that begin with ``#`` are left
out. A line is a device:

============  =====================================================================
gflops        billions of floating-point operations a second in training, 1e-9 … 1e12
download      Mbit/s from the server, 1e-9 … 1e12
upload        Mbit/s to the server, 1e-9 … 1e12
latency       milliseconds that a bit is under way, each way, 0 … 1e15
============  =====================================================================

``assign=order`` gives client i the i-th device, and there must be as many as clients;
``assign=random`` draws a device for each client by seed.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal

import numpy as np

import protofl as pf
from protofl_plugins.device_models.availability import ComingAndGoing, comings_and_goings
from protofl_plugins.shared.text_files import read_lines, stamp

COLUMNS = {"gflops": 1e9, "download": 1e6, "upload": 1e6, "latency": 1e-3}
"""The columns, and their units in those of a device."""

WHAT = "trace"


class Trace:
    """The devices that a CSV file lists."""

    argument = "path"

    class Config(ComingAndGoing):
        """Options: --set devices.OPTION=VALUE."""

        path: Path = pf.Field(description="the file")
        assign: Literal["order", "random"] = pf.Field(
            "order", description="order: client i has the i-th device; random: each draws one"
        )

    @pf.hookimpl
    def device(self, client: int, num_clients: int, seed: int, config: Config) -> dict[str, float]:
        """The figures of the client's line."""
        devices = _read(str(config.path), stamp(config.path, WHAT))
        if config.assign == "random":
            drawn = pf.numpy_stream(seed, "trace").integers(len(devices), size=num_clients)
            return devices[int(drawn[client])]
        if len(devices) < num_clients:
            raise pf.UsageError(
                f"the trace {config.path} has {len(devices)} devices, and there are {num_clients} "
                "clients",
                do=f"take --clients {len(devices)}, or --set devices.assign=random: each client "
                "draws one",
            )
        return devices[client]

    @pf.hookimpl
    def presence(
        self, num_clients: int, seconds: float, seed: int, config: Config
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return who is available in this slot, and for how long."""
        return comings_and_goings(num_clients, seconds, seed, config)


@functools.lru_cache(maxsize=4)
def _read(path: str, stamp: tuple[int, int]) -> list[dict[str, float]]:
    """Return the devices of a file; cached until the file changes."""
    lines = [
        (number, [word.strip() for word in line.split(",")])
        for number, line in read_lines(path, WHAT)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    names = lines[0][1] if lines else []
    if sorted(names) != sorted(COLUMNS):
        raise pf.UsageError(
            f"the trace {path} has the columns {', '.join(names) or 'none'}",
            f"expected {','.join(COLUMNS)}",
            "name them in the first line",
        )
    if len(lines) == 1:
        raise pf.UsageError(f"the trace {path} lists no device", do="write a device in a line")
    devices = []
    for number, words in lines[1:]:
        try:
            figures = dict(zip(names, map(float, words), strict=True))
        except ValueError:
            raise pf.UsageError(
                f"{path}, line {number}: {','.join(words)!r}",
                f"expected a number for each of {','.join(names)}",
            ) from None
        for name, value in figures.items():
            least, most = (0, 1e15) if name == "latency" else (1e-9, 1e12)
            if not least <= value <= most:
                raise pf.UsageError(
                    f"{path}, line {number}: {name} is {value:g}, expected {least:g} … {most:g}"
                )
        device = {name: unit * figures[name] for name, unit in COLUMNS.items()}
        devices.append({"flops": device.pop("gflops"), **device})
    return devices
