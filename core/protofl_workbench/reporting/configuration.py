"""The configuration of runs on a page: options, deviations from papers, and commands."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from protofl.errors import ProtoflError
from protofl.hooks.discovery.registry import Registry
from protofl.system.files.home import expand_user
from protofl.system.options.parsing import options_in
from protofl.system.options.plugin_options import Config, VariantConfig, option_names
from protofl.system.options.table import (
    CHOOSING,
    OPTIONS,
    usual_values,
)
from protofl.system.options.value_text import value_text
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.reporting.number_formats import NONE, count, listed
from protofl_workbench.reporting.page_parts import Command, PageTable, Section

# --- options --------------------------------------------------------------------------------------


def user_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run by users' names; options of plugins are ``PLUGIN.OPTION``."""
    values = {k: v for k, v in options_in(config).items() if k != "data_dir"}
    values |= {k: config[k] for k in ("engine", "precision") if k in config}  # of its device
    plugins = values.pop("options", {})
    result = {name.replace("_", "-"): value for name, value in values.items()}
    for owner, options in plugins.items():
        result |= {f"{owner}.{key}": value for key, value in options.items()}
    return result


def _defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known defaults by the names of `user_options`.

    Plugins that are not installed, or that the run names by their place, have no known defaults:
    nothing that a run folder names is executed.
    """
    result = {name.replace("_", "-"): value for name, value in usual_values(config).items()}
    choosing = {kind: word for word, kind in CHOOSING.items()}
    for plugin in config.get("plugins", ()):
        kind, name = plugin["kind"], plugin["name"]
        owner, declared = choosing.get(kind, name), _declared(config, kind, name)
        if declared is None:
            continue
        deviations = declared.deviations if issubclass(declared, VariantConfig) else {}
        for key, option in option_names(declared).items():
            field = declared.model_fields[option]
            if option in deviations and field.default is None:
                result[f"{owner}.{key}"] = deviations[option].paper
            elif not field.is_required():
                result[f"{owner}.{key}"] = field.get_default(call_default_factory=True)
    return result


def _declared(config: Mapping[str, Any], kind: str, name: str) -> type[Config] | None:
    """Return the options that an installed plugin declares; None if it is not installed."""
    return None if f"{kind}/{name}" in config.get("classes", {}) else _installed(kind, name)


@lru_cache(maxsize=256)
def _installed(kind: str, name: str) -> type[Config] | None:
    try:
        plugin: Any = Registry().load(kind, name)
    except ProtoflError:
        return None
    declared: type[Config] = getattr(plugin, "Config", Config)
    return declared


def options_section(config: Mapping[str, Any]) -> Section:
    """Return the configuration of a run: options that differ from their default, then all."""
    values, defaults = user_options(config), _defaults(config)
    help_texts = {name.replace("_", "-"): option.help for name, option in OPTIONS.items()}

    def default(name: str) -> str:
        if name not in defaults:
            return NONE
        return "depends" if defaults[name] is None else value_text(defaults[name])

    texts = {name: value_text(value) for name, value in values.items()}
    changed = [n for n in values if n not in defaults or texts[n] != value_text(defaults[n])]
    long = frozenset({1, 2})
    return Section(
        "Configuration",
        [
            PageTable(
                "Options that differ from their default",
                ("option", "here", "default"),
                [(name, texts[name], default(name)) for name in changed],
                words=long,
            ),
            PageTable(
                f"All {len(values)} options, as they were resolved",
                ("option", "value", "description"),
                [(name, text, help_texts.get(name, "")) for name, text in texts.items()],
                folded=True,
                words=long,
            ),
        ],
    )


def differences_section(runs: Sequence[Run]) -> Section:
    """Return the options that differ between runs: a row for each option, or for each run.

    An option of another method or plugin does not count: there the name of the plugin differs.
    """
    names = [run.folder.name for run in runs]
    tables = [user_options(run.config) for run in runs]
    keys = [
        name
        for name in dict.fromkeys(name for table in tables for name in table)
        if len({value_text(table[name]) for table in tables if name in table}) > 1
    ]
    if not keys:
        return Section("Differences")
    rows = [[value_text(t[key]) if key in t else NONE for key in keys] for t in tables]
    if len(names) > len(keys):
        by_run = [(name, *row) for name, row in zip(names, rows, strict=True)]
        table = PageTable("Options that differ, by run", ("run", *keys), by_run, sortable=True)
    else:
        by_option = [(k, *values) for k, values in zip(keys, zip(*rows, strict=True), strict=True)]
        table = PageTable("Options that differ", ("option", *names), by_option)
    return Section("Differences", [table])


# --- deviations from papers -----------------------------------------------------------------------


def deviations_section(configs: Sequence[Mapping[str, Any]]) -> Section:
    """Return how runs deviate from the papers of their methods; empty if nothing is known."""
    tables: list[PageTable] = []
    lines: list[str] = []
    for config in configs:
        lines += [f"{line}." for line in _combined(config)]
        rows: list[tuple[str, ...]] = []
        for method in [p["name"] for p in config.get("plugins", ()) if p["kind"] == "method"]:
            declared = _declared(config, "method", method)
            if declared is None:
                lines.append(f"{method} is not installed here; its deviations are unknown.")
                continue
            deviations = declared.deviations if issubclass(declared, VariantConfig) else {}
            method_options = config["options"].get(method, {})
            names = {name: key for key, name in option_names(declared).items()}
            here = {n: method_options.get(names.get(n, n), d.paper) for n, d in deviations.items()}
            rows += [
                (method, d.where, f"{names.get(n, n)} = {value_text(here[n])}",
                 value_text(d.paper), d.note)
                for n, d in deviations.items()
                if value_text(here[n]) != value_text(d.paper)
            ]  # fmt: skip
            if deviations and not any(row[0] == method for row in rows):
                lines.append(
                    f"{method} follows its paper in all {count(len(deviations), 'place')} in which "
                    "its published code deviates from it."
                )
        if rows:
            columns = ("method", "where", "option here", "in the paper", "difference")
            caption = f"In force: {count(len(rows), 'deviation')} of published code"
            tables.append(PageTable(caption, columns, rows, words=frozenset({2, 4})))
    unique = [table for n, table in enumerate(tables) if table not in tables[:n]]
    title = "Deviations from the paper" + "s" * (len(configs) > 1)
    return Section(title, [*unique, *dict.fromkeys(lines)])


def _combined(config: Mapping[str, Any]) -> Iterator[str]:
    """Describe hooks of other methods, loss terms and transforms."""
    method = config["method"]
    for hook, donor in config.get("use", {}).items():
        yield f"{hook} of {donor} replaces that of {method}"
    for item in config.get("add", ()):
        hook, sign, donor = str(item).partition("=")
        yield f"{hook} of {donor} is added" if sign else f"The loss term {item} is added"
    if dropped := config.get("drop"):
        yield f"Without the loss term {listed([str(term) for term in dropped])}"
    if transforms := config.get("transforms"):
        yield f"Payloads pass through {listed([str(one) for one in transforms])}"


# --- commands -------------------------------------------------------------------------------------


def commands(run: Run) -> list[Command]:
    """Return the commands that repeat or resume a run."""
    folder, config = shell_path(run.folder), shell_path(run.folder / "config.json")
    result = [Command("Repeat the run from its folder", f"protofl run --config {config}")]
    if not run.finished:
        text = f"protofl run --resume --out {folder}"
        result.append(Command("Resume the run, if no process is using it", text))
    return result


def shell_path(path: Path) -> str:
    """Return a path for a shell in the current folder."""
    full = expand_user(path).absolute()
    relative = os.path.relpath(full)
    return shlex.quote(relative if not relative.startswith("..") else str(full))
