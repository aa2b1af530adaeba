"""Checks of a node before it starts: one line each."""

from __future__ import annotations

import shutil
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import protofl as pf
from protofl_flower.deployment import programs
from protofl_flower.deployment.node_process import (
    check_clock,
    look_at,
    server_of,
    settings_of,
)

LEAST = 1 << 30
"""Free bytes that a node should have for its clients."""


def checks(folder: Path) -> list[tuple[str, str, bool]]:
    """Return the name, the finding and the success of each check."""
    made: dict[str, Callable[[], str]] = {
        "settings": lambda: _settings(folder),
        "data": lambda: _data(folder),
        "key": lambda: _key(folder),
        "flower": lambda: programs.program("flower-supernode"),
        "device": lambda: _device(settings_of(folder)),
        "disk": lambda: _disk(folder),
        "server": lambda: _server(folder),
    }
    result = []
    for name, check in made.items():
        try:
            result.append((name, check(), True))
        except (pf.ProtoflError, OSError, ValueError) as error:
            problem = error.what if isinstance(error, pf.ProtoflError) else str(error)
            result.append((name, problem, False))
    return result


def _settings(folder: Path) -> str:
    """Check node.toml and its policy as the host does."""
    from protofl_flower.node.host import read_settings

    _, clients, policy = read_settings(folder, settings_of(folder))
    methods = ", ".join(sorted(policy.methods)) or "all installed methods"
    return f"client {', '.join(map(str, sorted(clients)))}; allows {methods}"


def _data(folder: Path) -> str:
    """Read the node's own data, without the federation's classes."""
    from protofl_flower.node.host import read_settings
    from protofl_flower.node.local_data import LocalData

    values = settings_of(folder)
    machine_options, clients, _ = read_settings(folder, values)
    data = LocalData.read(values.get("data"), sorted(clients), Path(machine_options["data_dir"]))
    return "those of the run" if data is None else str(data.described())


def _key(folder: Path) -> str:
    mode = stat.S_IMODE((folder / "key").stat().st_mode)
    if mode & 0o077:
        raise pf.UsageError(f"{folder / 'key'} can be read by others: chmod 600 it")
    return f"{folder / 'key'}, for its owner alone"


def _device(settings: dict[str, Any]) -> str:
    import torch

    name = str(settings.get("device", "cpu"))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return str(torch.zeros(1, device=name).device)
    except (RuntimeError, AssertionError) as error:
        raise pf.UsageError(f"device {name}: torch cannot compute there: {error}") from None


def _disk(folder: Path) -> str:
    free = shutil.disk_usage(folder).free
    if free < LEAST:
        raise pf.UsageError(f"{free / 1e9:.3g} GB free in {folder}, less than {LEAST / 1e9:.3g} GB")
    return f"{free / 1e9:.3g} GB free"


def _server(folder: Path) -> str:
    """Check that the server answers with a certificate of the federation, and its time."""
    address = server_of(folder, settings_of(folder))
    try:
        version, ahead = look_at(address, folder / "ca.crt")
        check_clock(ahead)
        return f"{address} answers, {version}"
    except ssl.SSLCertVerificationError as error:
        what = f"the certificate of {address} is refused: {error.verify_message}"
        raise pf.UsageError(what) from None
    except OSError as error:
        raise pf.UsageError(f"{address} does not answer: {error}") from None
