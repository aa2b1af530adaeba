"""A user's files and plugin options for a study, assigned to its cells.

A study names files that are the user's, such as a generator's weights, in its table ``[files]``; in
options ``{NAME}`` stands for one. Options of plugins concern the cells that have the plugin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from protofl.errors import ProtoflError
from protofl.runs.recipes import named_in
from protofl.runs.request import Request
from protofl.system.options.plugin_options import Config, option_names
from protofl.system.options.table import OWNERS, SEVERAL

Values = Mapping[str, Any]

FILE = re.compile(r"\{([A-Za-z0-9_.-]+)\}")
"""Pattern of a file of the study in an option."""


def files_in(value: Any) -> list[str]:  # noqa: ANN401 - options are of many types
    """The files that options name."""
    if isinstance(value, str):
        return FILE.findall(value)
    if isinstance(value, Mapping):
        value = [*value.values()]
    return [n for v in value for n in files_in(v)] if isinstance(value, (list, tuple)) else []


def with_files(value: Any, files: Mapping[str, str]) -> Any:  # noqa: ANN401 - options are of many types
    """Options with the user's files in their places; those that are not given stay as they are."""
    if isinstance(value, str):
        return FILE.sub(lambda found: files.get(found[1], found[0]), value)
    if isinstance(value, Mapping):
        return {key: with_files(inner, files) for key, inner in value.items()}
    return (
        [with_files(inner, files) for inner in value] if isinstance(value, (list, tuple)) else value
    )


# --- options of plugins ---------------------------------------------------------------------------


def options_by_run(said: Values, requests: Sequence[Request]) -> list[dict[str, Any]]:
    """Return the plugin options that apply to each run.

    Args:
        said: {``OWNER.OPTION`` or ``OPTION``: value}.
        requests: The runs without them.

    Returns:
        For each run those whose owner it has; of its generator, those that this one knows. What
        no run has goes to all, so that the mistake is told.
    """
    found: list[dict[str, Any]] = [{} for _ in requests]
    for key, value in said.items():
        owner, _, name = key.rpartition(".")
        have = [not owner or _has(owner, request) for request in requests]
        if owner == "generator":
            know = [h and name in _of_generator(r) for h, r in zip(have, requests, strict=True)]
            have = know if any(know) else have
        for given, concerned in zip(found, have, strict=True):
            if concerned or not any(have):
                given[key] = value
    return found


def _has(owner: str, request: Request) -> bool:
    """Return True if a run has the plugin of an option."""
    if owner == "generator":
        return needs_generator(request)
    composed = {"method", "wrapper", *SEVERAL.values()}
    names = {name for kind, name in named_in(request.options) if kind in composed}
    return owner in {*OWNERS, *names}


def needs_generator(request: Request) -> bool:
    """Return True if a method of the run needs an image generator."""
    options, registry = request.options, request.registry
    names = {str(options.get("method")), *map(str, options.get("use", {}).values())}
    loaded: list[Any] = [registry.load("method", name) for name in names]
    return any(getattr(plugin, "needs_generator", False) for plugin in loaded)


def generator_class(request: Request) -> Any:  # noqa: ANN401 - a plugin's class
    """The plugin of a run's generator.

    Raises:
        UsageError: It is not installed.
    """
    name = str(request.options.get("generator", "tiny-style")).partition(":")[0]
    return request.registry.load("generator", name)


def _of_generator(request: Request) -> Mapping[str, str]:
    try:
        return option_names(getattr(generator_class(request), "Config", Config))
    except ProtoflError:  # the plan tells
        return {}
