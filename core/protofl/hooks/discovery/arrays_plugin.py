"""The data set plugin of arrays that a program gives to `protofl.run`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

from protofl.data.dataset import Dataset
from protofl.data.in_memory import ARRAYS, opened
from protofl.data.tasks import Task, TaskOptions
from protofl.errors import UsageError
from protofl.hooks.hookspecs import hookimpl
from protofl.system.options.plugin_options import Config, Field


class Arrays:
    """Arrays that a program gave (protofl.run with dataset=…), named by their content."""

    argument = "digest"

    class Config(TaskOptions):
        """Options of arrays."""

        digest: str = Field(description="digest of the arrays; protofl.run computes it")
        kind: Literal["image", "series", "tokens", "table"] | None = Field(
            None, description="kind of sample. None: as the arrays' shape and type suggest"
        )
        vocabulary: int | None = Field(
            None, ge=2, description="number of token ids V. None: the largest id plus one"
        )
        padding: int | None = Field(
            None, ge=0, description="the id that pads short token sequences. None: no padding"
        )
        standardise: bool = Field(
            False,
            description="bring every column of a table, every channel of a series to mean 0 and "
            "standard deviation 1 over the training part",
        )

    @hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """Return the digest, followed by a digest of the options if any is set."""
        chosen = repr(sorted(_options(config).items())).encode()
        suffix = [hashlib.sha256(chosen).hexdigest()[:8]] if _options(config) else []
        return "-".join([ARRAYS, config.digest, *suffix])

    @hookimpl
    def decode(self, config: Config, data_dir: Path) -> Dataset:
        """Check the arrays that the program gave."""
        if config.digest not in opened:
            raise UsageError(
                f"the arrays {config.digest} are not in {data_dir}",
                "a program gave them to protofl.run, and only the cache holds them now",
                "give them again: protofl.run(…, dataset=…)",
            )
        options = _options(config)
        options.pop("group", None)  # filled in when the data are loaded
        if task := {*TaskOptions.model_fields} & {*options}:
            options = {key: value for key, value in options.items() if key not in task}
            options["task"] = Task.of(config)
        return opened[config.digest].decoded(options)


def _options(config: Config) -> dict[str, Any]:
    return config.model_dump(exclude_defaults=True, exclude={"digest"})
