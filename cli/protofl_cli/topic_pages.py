"""``protofl show machine`` and ``protofl show wire``: pages that are not about a plugin."""

from __future__ import annotations

import importlib.metadata
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

from protofl.errors import UsageError
from protofl.system.files.home import expand_user
from protofl_cli import render

ENABLES = {
    "dev": "the tests",
    "docs": "the site",
    "diffusion": "--generator stable-diffusion",
    "pandas": "Run.frame",
    "ray": "--backend ray",
    "flower": "protofl deploy",
    "transformers": "--text-encoder transformers:FOLDER",
    "browser": "tests of pages",
    "timm": "--models timm:NAME",
    "tensorboard": "--track tensorboard",
    "mlflow": "--track mlflow",
    "wandb": "--track wandb",
    "tune": "sweep --search",
    "onnx": "export to ONNX",
}
"""The feature that each optional extra of protofl enables."""


def machine() -> None:
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
    render.heading("machine", "for a bug report")
    render.pairs(
        [
            *((name, version) for name, version in versions().items()),
            ("processor", facts["processor"]),
            ("instructions", f"{facts['instruction_set']}, limits: {facts['instruction_limits']}"),
            ("cores", str(len(usable_cores()))),
            ("devices", ", ".join(["cpu", *gpus])),
            ("data folder", str(shown)),
            ("extras", "; ".join(f"{name} ({ENABLES[name]})" for name in installed) or "none"),
            ("not installed", ", ".join(missing) or "none"),
            ("plugins", ", ".join(f"{count} of {name}" for name, count in packages.items())),
        ]
    )


def _extras() -> tuple[list[str], list[str]]:
    """Return the extras whose packages are installed, and the others."""
    packages: dict[str, list[str]] = {name: [] for name in ENABLES}
    for line in importlib.metadata.requires("protofl") or ():
        found = re.fullmatch(r"([\w.-]+)[^;]*;.*extra == ['\"](\w+)['\"]\s*", line)
        if found and found[2] in packages:
            packages[found[2]].append(found[1])
    there = [name for name, needed in packages.items() if needed and all(map(_is_there, needed))]
    return there, [name for name in ENABLES if name not in there]


def _is_there(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def wire() -> None:
    """Print the names of tensors that methods share."""
    from protofl.hooks.wire.vocabulary import VOCABULARY

    render.heading("wire", "names of tensors in payloads")
    rows = [(key.name, key.shape, key.meaning) for key in VOCABULARY]
    render.table(("name", "shape", "content"), rows, keep=("name",), wrap=True)


TOPICS = {"machine": machine, "wire": wire}
"""Pages by the name that ``protofl show`` takes."""
