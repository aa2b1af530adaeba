"""``protofl data``: the cache of decoded data sets."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl.system.files.home import expand_user
from protofl.system.formatting import shape_text, size_text
from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.options import Block, DataDir, Debug
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl.data.cache import CacheEntry
    from protofl.data.spec import SampleSpec
    from protofl.hooks.discovery.registry import Registry


@prints_json
def list_data(
    data_dir: DataDir = None, block: Block = None, as_json: Json = False, debug: Debug = False
) -> None:
    """List the known data sets, and the content of the cache."""
    from protofl.data.cache import entries
    from protofl.errors import ProtoflError
    from protofl.hooks.discovery.registry import Registry

    folder = _folder(data_dir)
    cached = {entry.key: entry for entry in entries(folder)}
    with render.waiting("loading the data sets' plugins"):
        known = _known(Registry(block or ()))
    rows, values = [], list[dict[str, Any]]()
    for name, plugin, problem in known:
        argument = getattr(plugin, "argument", None)
        if plugin is None:
            rows.append((name, problem.partition(":")[0], "", "", "", problem))
            values.append(_values(name, None, problem=problem))
        elif argument:
            rows.append((f"{name}:{argument.upper()}", "-", "", "", "", _summary(plugin)))
            values.append(_values(f"{name}:{argument.upper()}", None, _summary(plugin)))
        else:
            try:
                entry = cached.pop(_key(name, plugin, folder), None)
            except ProtoflError as error:  # its hook fails
                rows.append((name, "broken", "", "", "", error.what))
                values.append(_values(name, None, problem=error.what))
                continue
            about = (*_about(entry),) if entry else ("no", "", "", "")
            rows.append((name, *about, _summary(plugin)))
            values.append(_values(name, entry, _summary(plugin)))
    rows += [(key, *_about(entry), entry.note or entry.problem) for key, entry in cached.items()]
    values += [_values(key, entry, entry.note, installed=False) for key, entry in cached.items()]
    if as_json:
        print_json({"folder": folder, "datasets": values})
        return
    render.table(
        ("data set", "cached", "samples", "classes", "sample", "about"),
        rows,
        right=("cached", "samples", "classes"),
        keep=("cached", "sample"),
    )
    render.line(f"The cache is {folder}.", "dim")


@prints_json
def import_data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an installed data set.")],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.npz",
            help="Arrays x_train and y_train, and x_test and y_test for a test part.",
        ),
    ],
    data_dir: DataDir = None,
    block: Block = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Add a data set to the cache from a .npz file, without a download."""
    from protofl.data.cache import cache_file, import_npz
    from protofl.errors import UsageError, unknown
    from protofl.hooks.discovery.registry import Registry

    registry = Registry(block or ())
    folder = _folder(data_dir)
    with render.waiting("loading the data sets' plugins"):
        known = _known(registry)
    fixed = {n for n, plugin, _ in known if plugin and not getattr(plugin, "argument", None)}
    if name not in fixed:
        if name in {n for n, _, _ in known}:
            plugin = registry.load("dataset", name)  # raises the error of a broken plugin
            argument = str(getattr(plugin, "argument", "")).upper()
            raise UsageError(
                f"data set {name!r} is read from your own path; it is not imported",
                do=f"use it as --dataset {name}:{argument}",
            )
        raise unknown(
            "data set", name, fixed, "a file of your own needs no import: --dataset npz:FILE"
        )
    plugin = registry.load("dataset", name)
    key = _key(name, plugin, folder)
    with render.waiting(f"reading {file}"):
        data = import_npz(key, file, folder)
    test = len(data.y) - data.num_train
    if as_json:
        about = {"train": data.num_train, "test": test, "classes": data.num_classes}
        print_json({"dataset": name, "file": cache_file(key, folder), **about})
        return
    render.line(
        f"{name}: {data.num_train:,} training and {test:,} test samples, "
        f"{data.num_classes} classes, {data.sample}, {_dtype(data.x.dtype)}"
    )
    render.line(f"in {cache_file(key, folder)}", "dim")


def _folder(data_dir: Path | None) -> Path:
    from protofl.system.files.atomic import default_data_dir

    return expand_user(data_dir or default_data_dir()).absolute()


def _known(registry: Registry) -> list[tuple[str, type | None, str]]:
    """Return (name, class, error) of each data set; the class is None if it cannot be loaded."""
    datasets: dict[str, tuple[str, type | None, str]] = {}
    with contextlib.redirect_stdout(sys.stderr):
        for plugin in registry.plugins("dataset"):
            status, _ = registry.status(plugin)
            loaded = registry.load("dataset", plugin.name) if status == "ok" else None
            datasets[plugin.name] = (plugin.name, loaded, "" if loaded else status)
    return list(datasets.values())


def _key(name: str, plugin: type, folder: Path) -> str:
    """Return the cache key of a data set with its default options."""
    from protofl.hooks.plugin.members import Choice
    from protofl.system.options.plugin_options import Config, parse_config

    config = parse_config(getattr(plugin, "Config", Config), {}, name)
    return str(Choice("dataset", name, plugin, config).call("cache_key", data_dir=folder))


def _values(
    name: str,
    entry: CacheEntry | None,
    description: str = "",
    *,
    problem: str = "",
    installed: bool = True,
) -> dict[str, Any]:
    """Return a line of the list as JSON values."""
    usable = entry if entry is not None and not entry.problem else None
    sample = usable.sample if usable else None
    return {
        "dataset": name,
        "installed": installed,
        "cached": entry is not None,
        "bytes": usable and usable.bytes,
        "samples": usable and usable.samples,
        "classes": usable and usable.classes,
        "kind": sample and sample.kind,
        "shape": sample and sample.shape,
        "description": description,
        "problem": problem or (entry.problem if entry else ""),
    }


def _about(entry: CacheEntry) -> tuple[str, str, str, str]:
    if entry.problem:
        return "unusable", "", "", ""
    size = size_text(entry.bytes)
    return size, f"{entry.samples:,}", str(entry.classes), _short(entry.sample)


def _short(sample: SampleSpec | None) -> str:
    """Return a sample as text: ``image 3×32×32``, ``table 13``."""
    return f"{sample.kind} {shape_text(sample.shape)}" if sample else ""


def _summary(plugin: type) -> str:
    from protofl_cli.commands.list_plugins import summary

    return summary(plugin)


def _dtype(dtype: Any) -> str:  # noqa: ANN401 - a torch.dtype; torch is not imported here
    return str(dtype).removeprefix("torch.")
