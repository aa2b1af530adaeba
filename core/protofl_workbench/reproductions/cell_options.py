"""Files and plugin options that a user gives for a reproduction, assigned to its cells.

The table ``[files]`` of a reproduction names files that users provide, such as a generator's
weights. In options ``{NAME}`` stands for such a file. Plugin options apply to the cells that use
the plugin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from protofl.errors import ProtoflError
from protofl.runs.request.request import Request
from protofl.system.options.parsing import read_names
from protofl.system.options.plugin_options import Config, option_names
from protofl.system.options.table import OWNERS, SEVERAL

Values = Mapping[str, Any]

FILE = re.compile(r"\{([A-Za-z0-9_.-]+)\}")
"""Pattern of a user's file in an option."""


def files_in(value: Any) -> list[str]:  # noqa: ANN401 - options are of many types
    """Return the names of the user's files in options."""
    if isinstance(value, str):
        return FILE.findall(value)
    if isinstance(value, Mapping):
        value = [*value.values()]
    return [n for v in value for n in files_in(v)] if isinstance(value, (list, tuple)) else []


def with_files(value: Any, files: Mapping[str, str]) -> Any:  # noqa: ANN401 - options are of many types
    """Replace ``{NAME}`` in options by the path of the file; keep it if no path is given."""
    if isinstance(value, str):
        return FILE.sub(lambda match: files.get(match[1], match[0]), value)
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
        requests: The runs without these options.

    Returns:
        For each run the options of its plugins. An option ``generator.…`` applies to the runs whose
        generator declares it. An option that applies to no run is given to all, so that planning
        fails with an error about it.
    """
    result: list[dict[str, Any]] = [{} for _ in requests]
    for key, value in said.items():
        owner, _, name = key.rpartition(".")
        have = [not owner or _has(owner, request) for request in requests]
        if owner == "generator":
            declared = [
                h and name in _generator_options(r) for h, r in zip(have, requests, strict=True)
            ]
            have = declared if any(declared) else have
        for run_options, applies in zip(result, have, strict=True):
            if applies or not any(have):
                run_options[key] = value
    return result


def _has(owner: str, request: Request) -> bool:
    """Return True if a run has the plugin of an option."""
    if owner == "generator":
        return needs_generator(request)
    options = request.options
    names = {options.get("method"), *options.get("use", {}).values()}
    names.update(options.get("transforms", ()))
    for text in options.get("add", ()):
        hook, sign, method = text.partition("=")
        names.add((method if sign else hook).partition(".")[0])
    names |= {name for option in SEVERAL for name in read_names(options.get(option, []))}
    return owner in {*OWNERS, *names}


def needs_generator(request: Request) -> bool:
    """Return True if a method of the run needs an image generator."""
    options, registry = request.options, request.registry
    names = {str(options.get("method")), *map(str, options.get("use", {}).values())}
    loaded: list[Any] = [registry.load("method", name) for name in names]
    return any(getattr(plugin, "needs_generator", False) for plugin in loaded)


def generator_class(request: Request) -> Any:  # noqa: ANN401 - a plugin's class
    """Return the class of a run's image generator.

    Raises:
        UsageError: The generator is not installed.
    """
    name = str(request.options.get("generator", "tiny-style")).partition(":")[0]
    return request.registry.load("generator", name)


def _generator_options(request: Request) -> Mapping[str, str]:
    try:
        return option_names(getattr(generator_class(request), "Config", Config))
    except ProtoflError:  # planning fails with this error
        return {}
