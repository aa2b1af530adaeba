"""``protofl generator train``: train an image generator on a data set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from protofl.system.files.home import expand_user
from protofl_cli.json.json_output import Json, pair_values, print_json, prints_json
from protofl_cli.options.groups import group_of
from protofl_cli.options.options import Block, DataDir, Debug, option, plugin_options
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.screens import render


@prints_json
def train(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Data set: NAME or NAME:PATH.")],
    generator: Annotated[str, option("--generator", "NAME", "Generator to train.")] = "tiny-style",
    set_: Annotated[
        list[str] | None,
        option(
            "--set",
            "KEY=VALUE",
            "Option of the generator (epochs=30) or of the data set (dataset.side=32); repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, option("--out", "FILE", "File to write (default: NAME-DATASET.safetensors)")
    ] = None,
    force: Force = False,
    as_json: Json = False,
    data_dir: DataDir = None,
    block: Block = None,
    debug: Debug = False,
) -> None:
    """Train an image generator on a data set; use it with --set generator.weights=FILE."""
    from protofl.errors import UsageError
    from protofl.federation.plan.run_data import load_data
    from protofl.hooks.discovery.registry import Registry
    from protofl.hooks.plugin.members import choose
    from protofl.system.files.atomic import atomic_replacement, default_data_dir
    from protofl.system.formatting import size_text

    registry = Registry(block or ())
    options = plugin_options(set_, "KEY=VALUE", ("generator", "dataset"), bare="generator")
    choice = choose(registry, "generator", generator, options["generator"])
    if "train_generator" not in choice.hooks:
        able = [p.name for p in registry.plugins("generator") if _trainable(registry, p.name)]
        raise UsageError(
            f"generator {choice.name!r} cannot be trained",
            f"generators that can be trained: {', '.join(able) or 'none is installed'}",
        )
    data = choose(registry, "dataset", dataset, options["dataset"])
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{generator}-{Path(data.text).stem}")
    target = checked("--out", out or Path(f"{stem}.safetensors"), force=force)
    folder = expand_user(data_dir or default_data_dir()).absolute()
    images = load_data(data, folder, lambda text: render.line(text, "dim"))
    if images.sample.kind != "image":
        raise UsageError(
            f"{choice.name} makes images, and the samples of {data.text} are {images.sample}",
            do="give a data set of images",
        )
    render.heading(f"{choice.name} on {data.name}", f"{images.num_train:,} images")
    with atomic_replacement(target) as partial_file:
        told = choice.call(
            "train_generator",
            images=images,
            report=lambda text: render.line(f"  {text}", "dim"),
            out=partial_file,
        )
    file = f"{target} ({size_text(target.stat().st_size)})"
    rows = [*told.items(), ("file", file), ("use it", f"--set generator.weights={target}")]
    if as_json:
        print_json({"rows": pair_values(rows)})
        return
    render.pairs(rows)


def _trainable(registry: Any, name: str) -> bool:  # noqa: ANN401 - a Registry
    return "train_generator" in registry.status(registry.find("generator", name))[1]


app = group_of({"train": train}, help="Train image generators for the server.")
