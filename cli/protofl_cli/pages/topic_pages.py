"""``protofl show machine`` and ``protofl show wire``: pages that are not about a plugin."""

from __future__ import annotations

import importlib.metadata
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from protofl.errors import UsageError
from protofl.hooks.wire.keys import (
    RUNTIME,
    RUNTIME_KEYS,
    Key,
    declared_keys,
    meaning_of,
    reveals_of,
    shape_of,
)
from protofl.system.files.home import expand_user
from protofl_cli.json.json_output import print_json
from protofl_cli.screens import render

ENABLES = {
    "dev": "the tests",
    "docs": "the site",
    "diffusion": "--generator stable-diffusion",
    "pandas": "Run.frame",
    "tables": "--dataset parquet:FILE",
    "hf": "--dataset hf:NAME",
    "privacy": "--with dp-prototypes, --with dp-sgd, protofl leak",
    "ray": "--backend ray",
    "flower": "protofl deploy",
    "transformers": "fedtsp --set encoder=transformers",
    "browser": "tests of pages",
    "tensorboard": "--track tensorboard",
    "mlflow": "--track mlflow",
    "wandb": "--track wandb",
    "tune": "sweep --search",
    "onnx": "export to ONNX",
}
"""The feature that each optional extra of protofl enables."""


def machine(*, as_json: bool = False) -> None:
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
        ("extras", "; ".join(f"{name} ({ENABLES[name]})" for name in installed) or "none"),
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
    packages: dict[str, list[str]] = {name: [] for name in ENABLES}
    for line in importlib.metadata.requires("protofl") or ():
        match = re.fullmatch(r"([\w.-]+)[^;]*;.*extra == ['\"]([\w-]+)['\"]\s*", line)
        if match and match[2] in packages:
            packages[match[2]].append(match[1])
    there = [name for name, needed in packages.items() if needed and all(map(_is_there, needed))]
    return there, [name for name in ENABLES if name not in there]


def _is_there(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def wire(*, as_json: bool = False) -> None:
    """Print the keys of payloads that the runtime and the installed methods declare."""
    from protofl.errors import ProtoflError
    from protofl.hooks.discovery.registry import Registry

    registry, methods = Registry(), {}
    for plugin in registry.plugins("method"):
        with suppress(ProtoflError):  # `protofl list-plugins` lists the plugins that are broken
            methods[plugin.name] = registry.load("method", plugin.name)
    if as_json:
        declared = declared_by(methods).items()
        print_json(
            [
                {
                    "name": name,
                    "shape": row.shape,
                    "meaning": row.meaning,
                    "reveals": row.reveals,
                    "methods": row.methods,
                }
                for name, row in declared
            ]
        )
        return
    render.heading("wire", "names of tensors in payloads")
    rows = [
        (name, row.shape, row.meaning, " ".join(row.methods))
        for name, row in declared_by(methods).items()
    ]
    render.table(("name", "shape", "content", "methods"), rows, keep=("name",), wrap=True)


@dataclass(frozen=True)
class WireRow:
    """A key on the page of the wire.

    Attributes:
        shape: Its shape; empty if no declaration gives one.
        meaning: Its content: the runtime's words, or those of the first method that gives a shape.
        reveals: What a curious server learns from it; see `reveals_of`.
        by_class: True if its rows belong to classes.
        methods: {method: ``↑`` to the server, ``↓`` to a client, or both}.
    """

    shape: str
    meaning: str
    reveals: str
    by_class: bool
    methods: dict[str, str]


def declared_by(methods: Mapping[str, type]) -> dict[str, WireRow]:
    """Return all keys that methods declare by name: those of the runtime, then others.

    Args:
        methods: {name: class}.
    """
    keys: dict[str, str | Key] = dict(RUNTIME_KEYS)
    senders: dict[str, dict[str, str]] = {name: {} for name in RUNTIME_KEYS}
    runtime_names = {key: name for name, key in RUNTIME_KEYS.items()}
    for method, plugin in methods.items():
        for attribute, arrow in (("uploads", "↑"), ("downloads", "↓")):
            for declared, key in declared_keys(plugin, attribute).items():
                known = RUNTIME.find(declared)
                name = runtime_names[known] if known in runtime_names else declared
                if isinstance(key, Key) and isinstance(keys.get(name, ""), str):
                    keys[name] = key
                keys.setdefault(name, key)
                arrows = senders.setdefault(name, {}).get(method, "")
                senders[name][method] = arrows + arrow * (arrow not in arrows)
    further = sorted(keys.keys() - RUNTIME_KEYS.keys())
    return {name: _row(name, keys[name], senders[name]) for name in (*RUNTIME_KEYS, *further)}


def _row(name: str, declared: str | Key, methods: dict[str, str]) -> WireRow:
    by_class = declared.by_class if isinstance(declared, Key) else RUNTIME.is_by_class(name)
    reveals = reveals_of(name, declared)
    return WireRow(shape_of(name, declared), meaning_of(declared), reveals, by_class, methods)


TOPICS = {"machine": machine, "wire": wire}
"""Pages by the name that ``protofl show`` takes."""
