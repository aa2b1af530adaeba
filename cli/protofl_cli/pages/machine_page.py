"""``protofl show machine``: what a bug report needs."""

from __future__ import annotations

import importlib.metadata
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

from protofl.errors import UsageError
from protofl.system.files.home import expand_user
from protofl_cli.json.json_output import print_json
from protofl_cli.screens import render


def show_machine(*, as_json: bool = False) -> None:
    """Print what a bug report needs: versions, processor, devices, extras, plugins."""
    import torch

    from protofl.hooks.discovery.registry import Registry
    from protofl.system.files.atomic import default_data_dir
    from protofl.system.machine import machine_facts, usable_cores
    from protofl.system.version import versions

    facts = machine_facts()
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    gpus += ["mps"] if torch.backends.mps.is_available() else []
    shown = folder = default_data_dir()
    with suppress(UsageError):  # a user without a home folder
        shown, home = (folder := expand_user(folder)), expand_user("~")
        shown = Path("~") / folder.relative_to(home) if folder.is_relative_to(home) else folder
    packages = Counter(f"{p.distribution} {p.version}" for p in Registry().plugins())
    installed, missing = _extras()
    rows = [
        *((name, version) for name, version in versions().items()),
        ("processor", facts["processor"]),
        ("instructions", f"{facts['instruction_set']}, limits: {facts['instruction_limits']}"),
        ("cores", str(len(usable_cores()))),
        ("devices", ", ".join(["cpu", *gpus])),
        ("data folder", str(shown)),
        ("extras", ", ".join(installed) or "none"),
        ("not installed", ", ".join(missing) or "none"),
        ("plugins", ", ".join(f"{count} of {name}" for name, count in packages.items())),
    ]
    if as_json:
        print_json(dict(rows))
        return
    render.heading("machine", "for a bug report")
    render.pairs(rows)


def _extras() -> tuple[list[str], list[str]]:
    """Return the extras whose packages are installed, and the others."""
    names = importlib.metadata.metadata("protofl").get_all("Provides-Extra") or []
    packages: dict[str, list[str]] = {name: [] for name in names}
    for line in importlib.metadata.requires("protofl") or ():
        match = re.fullmatch(r"([\w.-]+)[^;]*;.*extra == ['\"]([\w-]+)['\"]\s*", line)
        if match and match[2] in packages:
            packages[match[2]].append(match[1])
    there = [name for name, needed in packages.items() if needed and all(map(_is_there, needed))]
    return there, [name for name in names if name not in there]


def _is_there(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
