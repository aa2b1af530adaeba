"""``protofl data import``: a data set put into the cache."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofl.system.files.home import expand_user
from protofl_cli.json.json_output import Json, print_json, prints_json
from protofl_cli.options.options import Block, DataDir, Debug
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl.hooks.discovery.registry import Registry


@prints_json("protofl_cli.json.data:ImportedData")
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


def _dtype(dtype: Any) -> str:  # noqa: ANN401 - a torch.dtype; torch is not imported here
    return str(dtype).removeprefix("torch.")
